"""State of the rank heap: places in C arrays, items in a list, so that the garbage collector sees them."""


cdef struct Place:
    double rank
    long long level
    long long order
    long long sequence
    int at                  # index in the heap; -1: not in use
    int next_free


cdef class RankHeap:
    cdef Place* places      # by handle
    cdef int* heap          # handles
    cdef int count
    cdef int used           # handles in use or once used
    cdef int capacity
    cdef int free_head
    cdef list items

    cdef int grow(self) except -1
    cdef int held(self, long long handle) except -1
    cdef bint before(self, int one, int other) noexcept
    cdef int up(self, int at) noexcept
    cdef void down(self, int at) noexcept
