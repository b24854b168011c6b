"""State of the pid table: items in a list, so that the garbage collector sees them, generations in a C array."""


cdef class PidTable:
    cdef list items                     # None: free
    cdef unsigned long long* generations
    cdef int* following                 # of a free place: the next free one
    cdef int capacity
    cdef int used                       # places in use or once used
    cdef int free_head
    cdef int count
    cdef int limit

    cdef int put(self, object item) except -1
    cdef object find(self, long long place, unsigned long long generation)
    cdef int drop(self, long long place, unsigned long long generation) except -1
    cdef int grow(self) except -1
