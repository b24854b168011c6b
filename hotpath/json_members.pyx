# cython: binding=False
"""The members of a JSON object, compiled. Contract and prose: ``reference/json_members.py``."""

import json
from json.decoder import scanstring

from cpython.unicode cimport PyUnicode_GET_LENGTH, PyUnicode_READ_CHAR

from .reference.json_members import JsonMember

cdef object scan = json.JSONDecoder().scan_once
cdef object read_string = scanstring
cdef object new_tuple = tuple.__new__


cdef Py_ssize_t after_space(str text, Py_ssize_t at, Py_ssize_t end):
    cdef Py_UCS4 found
    while at < end:
        found = PyUnicode_READ_CHAR(text, at)
        if found != c" " and found != c"\n" and found != c"\t" and found != c"\r":
            break
        at += 1
    return at


cdef Py_UCS4 character(str text, Py_ssize_t at, Py_ssize_t end) except? 0:
    if at >= end:
        raise ValueError(at)
    return PyUnicode_READ_CHAR(text, at)


cpdef dict json_members(str text):
    """The members of the object in *text*, by name. Raises ValueError, StopIteration, IndexError, RecursionError."""
    if text is None:
        raise TypeError("members are in a text")
    cdef Py_ssize_t end = PyUnicode_GET_LENGTH(text), at, start, stop
    cdef Py_UCS4 found
    cdef dict members = {}
    cdef tuple pair
    at = opened(text)
    if character(text, at, end) == c"}":
        at += 1
    else:
        while True:
            if character(text, at, end) != c'"':
                raise ValueError(at)
            pair = read_string(text, at + 1, True)
            name = pair[0]
            at = after_space(text, pair[1], end)
            if character(text, at, end) != c":" or name in members:
                raise ValueError(at)
            start = after_space(text, at + 1, end)
            pair = scan(text, start)
            stop = pair[1]
            members[name] = new_tuple(JsonMember, (pair[0], start, stop))
            at = after_space(text, stop, end)
            found = character(text, at, end)
            if found == c"}":
                at += 1
                break
            if found != c",":
                raise ValueError(at)
            at = after_space(text, at + 1, end)
    if after_space(text, at, end) != end:
        raise ValueError(at)
    return members


cpdef Py_ssize_t opened(str text) except -1:
    """Where the first member of the object in *text* begins, or its end is. Raises ValueError, IndexError."""
    if text is None:
        raise TypeError("members are in a text")
    cdef Py_ssize_t end = PyUnicode_GET_LENGTH(text), at = after_space(text, 0, end)
    if character(text, at, end) != c"{":
        raise ValueError(at)
    return after_space(text, at + 1, end)
