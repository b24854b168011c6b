"""State of the timer wheel: links in C arrays, items in a list, so that the garbage collector sees them."""

cdef enum:
    BITS = 6
    SLOTS = 64
    WHEELS = 11


cdef struct Timer:
    long long tick
    int slot                # -1: not in use
    int next                # in a free timer: the next free one
    int previous


cdef class TimerWheel:
    cdef long long now
    cdef unsigned long long bits[WHEELS]
    cdef int heads[WHEELS * SLOTS]
    cdef int tails[WHEELS * SLOTS]
    cdef Timer* timers
    cdef int used           # timers in use or once used
    cdef int capacity
    cdef int free_head
    cdef int count
    cdef list items

    cdef int put(self, long long at, object item) except -1
    cdef object take(self, int at)
    cdef int grow(self) except -1
    cdef void link(self, int handle) noexcept
    cdef object drop(self, int handle)
    cdef int next_slot(self, long long* start) noexcept
