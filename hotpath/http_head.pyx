# cython: binding=False
"""The heads of usual requests and answers, compiled. Contract and prose: ``reference/http_head.py``."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from .reference.http_head import CONNECTION, HEADERS_MAX, HOST, LENGTH, NOT_PASSED, PLAIN, UNUSUAL, UsualAnswer, UsualHead

cdef enum:
    K_PLAIN = 0
    K_HOST = 2
    K_LENGTH = 3
    K_CONNECTION = 4
    K_UNUSUAL = 5
    MOST_HEADERS = 256
    MOST_DIGITS = 15

assert (PLAIN, HOST, LENGTH, CONNECTION, UNUSUAL, HEADERS_MAX) == (
    K_PLAIN, K_HOST, K_LENGTH, K_CONNECTION, K_UNUSUAL, MOST_HEADERS
)

# 1: may be in a name; 2: in a path; 4: in a query. All of them are in ASCII.
cdef unsigned char allowed[256]
cdef unsigned char lower[256]


cdef struct Lines:
    Py_ssize_t end                      # where the lines are over; -1: they are not usual
    long long length                    # of the body; -1: none is said
    int hosts
    Py_ssize_t passed_bytes


cdef object new_tuple = tuple.__new__
cdef bytes POST = b"POST", GET = b"GET", EMPTY = b""


cdef int fill_tables() except -1:
    cdef int at
    for at in range(256):
        allowed[at] = 0
        lower[at] = at + 32 if 65 <= at <= 90 else at
    for at in b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz":
        allowed[at] |= 1
    for at in b"-._~/%!$&'()*+,;=:@0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz":
        allowed[at] |= 2 | 4
    allowed[63] |= 4
    return 0


fill_tables()


cpdef object read_usual_head(bytes data, dict kinds, tuple ours):
    """The head that *data* begins with; ``None`` where it is not whole, or is not a usual one."""
    if data is None or kinds is None or ours is None:
        raise TypeError("a head is bytes")
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at, start, path_end
    cdef bytes method, query = EMPTY, passed
    cdef list headers = []
    cdef dict first = {}
    cdef Lines lines
    if end > 5 and memcmp(text, b"POST ", 5) == 0:
        method, start = POST, 5
    elif end > 4 and memcmp(text, b"GET ", 4) == 0:
        method, start = GET, 4
    else:
        return None
    if text[start] != c"/":
        return None
    at = start
    while allowed[text[at]] & 2:
        at += 1
    path_end = at
    if text[at] == c"?":
        at += 1
        while allowed[text[at]] & 4:
            at += 1
        if at == path_end + 1:
            return None
        query = data[path_end + 1 : at]
    if end - at < 11 or memcmp(text + at, b" HTTP/1.1\r\n", 11) != 0:
        return None
    passed = read_lines(text, at + 11, end, kinds, ours, headers, first, &lines)
    if lines.end < 0 or lines.hosts != 1:
        return None
    return new_tuple(
        UsualHead,
        (
            lines.end, method, data[start:at], PyUnicode_DecodeASCII(<char*> text + start, path_end - start, NULL),
            query, headers, first, None if lines.length < 0 else lines.length, passed,
        ),
    )


cpdef object read_usual_answer(bytes data, dict kinds, tuple ours):
    """The head of the answer that *data* begins with; ``None`` where it is not whole, or is not a usual one."""
    if data is None or kinds is None or ours is None:
        raise TypeError("a head is bytes")
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 12
    cdef int status
    cdef bytes passed
    cdef list headers = []
    cdef dict first = {}
    cdef Lines lines
    if end < 16 or memcmp(text, b"HTTP/1.1 ", 9) != 0:
        return None
    if not (c"2" <= text[9] <= c"5" and c"0" <= text[10] <= c"9" and c"0" <= text[11] <= c"9"):
        return None
    status = (text[9] - 48) * 100 + (text[10] - 48) * 10 + (text[11] - 48)
    if status == 204 or status == 304:
        return None
    if text[at] == c" ":
        while 0x20 <= text[at] <= 0x7e:
            at += 1
    if end - at < 2 or text[at] != c"\r" or text[at + 1] != c"\n":
        return None
    passed = read_lines(text, at + 2, end, kinds, ours, headers, first, &lines)
    if lines.end < 0 or lines.length < 0:
        return None
    return new_tuple(UsualAnswer, (lines.end, status, headers, first, lines.length, passed))


cdef bytes read_lines(
    const unsigned char* text, Py_ssize_t at, Py_ssize_t end, dict kinds, tuple ours, list headers, dict first,
    Lines* lines,
):
    """Read the lines of a head from *at* on; gives those that are passed on."""
    lines.end, lines.length, lines.hosts, lines.passed_bytes = -1, -1, 0, 0
    cdef char* passed = <char*> malloc(end - at + MOST_HEADERS)  # to each header a space is added at most
    if passed == NULL:
        raise MemoryError
    try:
        read_each(text, at, end, passed, kinds, ours, headers, first, lines)
        return PyBytes_FromStringAndSize(passed, lines.passed_bytes)
    finally:
        free(passed)


# Behind the last byte of a bytes object there is a 0, which is allowed nowhere: a loop over what is allowed ends there.
cdef int read_each(
    const unsigned char* text, Py_ssize_t at, Py_ssize_t end, char* passed, dict kinds, tuple ours, list headers,
    dict first, Lines* lines,
) except -1:
    cdef Py_ssize_t name_at, name_bytes, value_at, value_bytes, place, to = 0
    cdef int count = 0, kind
    cdef bytes name, value
    cdef bint is_ours
    while True:
        if end - at < 2:
            return 0
        if text[at] == c"\r" and text[at + 1] == c"\n":
            break
        if count == MOST_HEADERS:
            return 0
        count += 1
        name_at = at
        while allowed[text[at]] & 1:
            at += 1
        name_bytes = at - name_at
        if not name_bytes or text[at] != c":":
            return 0
        at += 1
        while text[at] == c" ":
            at += 1
        value_at = at
        while 0x20 <= text[at] <= 0x7e:
            at += 1
        value_bytes = at - value_at
        if not value_bytes or text[at - 1] == c" " or end - at < 2 or text[at] != c"\r" or text[at + 1] != c"\n":
            return 0
        at += 2
        name = PyBytes_FromStringAndSize(NULL, name_bytes)
        for place in range(name_bytes):
            PyBytes_AS_STRING(name)[place] = <char> lower[text[name_at + place]]
        value = PyBytes_FromStringAndSize(<char*> text + value_at, value_bytes)
        found = kinds.get(name)
        kind = K_PLAIN if found is None else found
        if kind == K_PLAIN:
            is_ours = False
            for prefix in ours:
                if name.startswith(prefix):
                    is_ours = True
            if not is_ours:
                memcpy(passed + to, PyBytes_AS_STRING(name), name_bytes)
                to += name_bytes
                passed[to] = c":"
                passed[to + 1] = c" "
                memcpy(passed + to + 2, text + value_at, value_bytes)
                to += value_bytes + 2
                passed[to] = c"\r"
                passed[to + 1] = c"\n"
                to += 2
        elif kind == K_HOST:
            lines.hosts += 1
        elif kind == K_LENGTH:
            if lines.length >= 0 or value_bytes > MOST_DIGITS:
                return 0
            lines.length = 0
            for place in range(value_at, value_at + value_bytes):
                if not c"0" <= text[place] <= c"9":
                    return 0
                lines.length = lines.length * 10 + (text[place] - c"0")
        elif kind == K_UNUSUAL or (kind == K_CONNECTION and value.lower() != b"keep-alive"):
            return 0
        headers.append((name, value))
        if name not in first:
            first[name] = value
    lines.end, lines.passed_bytes = at + 2, to
    return 0
