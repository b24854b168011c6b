"""A queue of messages as fields, for classes that have one: the oldest stands by itself, the others in a ring.

The ring is a list that is used from ``head`` on and filled up with ``None``: the garbage collector sees it as it is.
"""

from cpython.list cimport PyList_GET_ITEM, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

cdef enum:
    RING_SIZE_FIRST = 8
    RING_SIZE_KEPT = 64     # a larger ring is given back when it is empty


cdef class Mail:
    cdef object first       # the oldest, while count is not 0
    cdef list ring          # its length is a power of two; None where there was never more than one message
    cdef unsigned int head
    cdef unsigned int count # with first
    cdef unsigned int limit


cdef int mail_grow(Mail mail) except -1
cdef object mail_take(Mail mail, unsigned int place)
cdef int mail_clear(Mail mail) except -1


cdef inline int mail_push(Mail mail, object item) except -1:
    """Put *item* behind the others, whatever the limit. Raises MemoryError."""
    cdef unsigned int place
    if mail.count == 0:
        mail.first = item
    else:
        if mail.ring is None or mail.count > <unsigned int>len(mail.ring):
            mail_grow(mail)
        place = (mail.head + mail.count - 1) & (<unsigned int>len(mail.ring) - 1)
        Py_INCREF(item)
        Py_DECREF(None)
        PyList_SET_ITEM(mail.ring, place, item)
    mail.count += 1
    return 0


cdef inline object mail_pop(Mail mail):
    """Take out the oldest; there must be one."""
    item = mail.first
    if mail.count > 1:
        # The reference that the ring held goes over to ``first``.
        following = <object>PyList_GET_ITEM(mail.ring, mail.head)
        mail.first = following
        Py_DECREF(following)
        Py_INCREF(None)
        PyList_SET_ITEM(mail.ring, mail.head, None)
        mail.head = (mail.head + 1) & (<unsigned int>len(mail.ring) - 1)
    else:
        mail.first = None
        if mail.ring is not None and len(mail.ring) > RING_SIZE_KEPT:
            mail.ring = None
            mail.head = 0
    mail.count -= 1
    return item


cdef inline object mail_at(Mail mail, unsigned int place):
    """The message at a place that is in use, 0 for the oldest."""
    if place == 0:
        return mail.first
    return <object>PyList_GET_ITEM(mail.ring, (mail.head + place - 1) & (<unsigned int>len(mail.ring) - 1))


cdef class Mailbox(Mail):
    pass
