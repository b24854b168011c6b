"""The fields of a side of a ring in shared memory, and where the words of the header are."""

from libc.stdint cimport uint64_t

cdef enum:
    HEAD = 0
    TAIL = 64
    SLEEPING = 128
    STARVING = 192
    HEADER = 256
    UNLOCKED_BYTES = 32768  # a copy of so much is worth letting other threads have the interpreter


cdef class MessageRing:
    cdef Py_buffer buffer
    cdef char *base
    cdef char *data
    cdef uint64_t size
    cdef uint64_t mask
    cdef uint64_t head      # who pushes: what it pushed; who pops: what it knows to be pushed
    cdef uint64_t tail      # who pops: what it popped; who pushes: what it knows to be popped
    cdef bint pushes
    cdef bint held
    cdef readonly bint owed

    cdef int check(self, bint pushes) except -1
    cdef int look_at_head(self) except -1
    cdef int look_at_tail(self) except -1
    cpdef int push(self, message) except -1
    cpdef pop(self)
    cpdef bint arm(self) except -1
