"""State of the run queue: a ring for each priority, in a list that is filled up with ``None``."""

cdef enum:
    PRIORITIES = 4
    RING_LENGTH_FIRST = 64
    NORMAL_TURNS = 8


cdef class RunQueue:
    cdef list rings                     # the collector sees what is in them
    cdef Py_ssize_t heads[PRIORITIES]
    cdef Py_ssize_t counts[PRIORITIES]
    cdef Py_ssize_t count
    cdef bint hidden                    # from the garbage collector, by who owns it
    cdef int normal_turns               # since low had its turn

    cdef int put(self, object item, int priority) except -1
    cdef object take(self)
    cdef object take_from(self, int priority)
    cdef list grow(self, int priority)
