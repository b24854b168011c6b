"""State of the priority bitmap: links in C arrays, items in a list, so that the garbage collector sees them."""


cdef struct Node:
    long long order
    int level               # -1: not in use
    int next                # in a free node: the next free one
    int previous


cdef class PriorityBitmap:
    cdef int levels
    cdef int words
    cdef unsigned long long summary         # which words of bits are not zero
    cdef unsigned long long* bits
    cdef int* heads
    cdef int* tails
    cdef int* fingers
    cdef Node* nodes
    cdef int used                           # nodes in use or once used
    cdef int capacity
    cdef int free_head
    cdef int count
    cdef list items

    cdef int check(self, long long level) except -1
    cdef int held(self, long long handle) except -1
    cdef int grow(self) except -1
    cdef void link(self, int handle, int level) noexcept
    cdef void unlink(self, int handle) noexcept
    cdef int first_from(self, int level) noexcept
