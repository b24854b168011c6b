# cython: cdivision=True
"""A heap by rank whose items may be moved, compiled. Contract and prose: ``reference/rank_heap.py``."""

from libc.stdlib cimport free, realloc

from actorgrid.errors import BadRequest


cdef double checked(double rank) except? -1:
    if rank != rank:
        raise BadRequest("a rank that is no number", asked=str(rank), hint="tenants' shares are finite")
    return rank


cdef class RankHeap:
    def __cinit__(self):
        self.free_head = -1
        self.items = []

    def __dealloc__(self):
        free(self.places)
        free(self.heap)

    def __len__(self):
        return self.count

    def insert(self, double rank, long long level, long long order, long long sequence, item):
        """Put *item* (not ``None``) at its place; gives its handle. Raises BadRequest, OverflowError."""
        cdef int handle
        checked(rank)
        handle = self.free_head
        if handle >= 0:
            self.free_head = self.places[handle].next_free
            self.items[handle] = item
        else:
            if self.used == self.capacity:
                self.grow()
            handle = self.used
            self.items.append(item)
            self.used += 1
        self.places[handle].rank = rank
        self.places[handle].level = level
        self.places[handle].order = order
        self.places[handle].sequence = sequence
        self.heap[self.count] = handle
        self.count += 1
        self.up(self.count - 1)
        return handle

    def move(self, long long handle, double rank, long long level, long long order, long long sequence):
        """Put the item of *handle* at another place. Raises BadRequest, OverflowError."""
        cdef int which = self.held(handle)
        checked(rank)
        self.places[which].rank = rank
        self.places[which].level = level
        self.places[which].order = order
        self.places[which].sequence = sequence
        self.down(self.up(self.places[which].at))

    def remove(self, long long handle):
        """Take the item of *handle* out and give it; the handle is void from here on."""
        cdef int which = self.held(handle)
        cdef int at = self.places[which].at
        cdef int last
        self.count -= 1
        last = self.heap[self.count]
        if last != which:
            self.heap[at] = last
            self.places[last].at = at
            self.down(self.up(at))
        item = self.items[which]
        self.items[which] = None
        self.places[which].at = -1
        self.places[which].next_free = self.free_head
        self.free_head = which
        return item

    def first(self):
        """The item at the lowest place, or ``None``."""
        return self.items[self.heap[0]] if self.count else None

    cdef int grow(self) except -1:
        cdef int capacity = 2 * self.capacity if self.capacity else 16
        cdef Place* places
        cdef int* heap
        if capacity < self.capacity:
            raise MemoryError
        places = <Place*>realloc(self.places, capacity * sizeof(Place))
        if places == NULL:
            raise MemoryError
        self.places = places
        heap = <int*>realloc(self.heap, capacity * sizeof(int))
        if heap == NULL:
            raise MemoryError
        self.heap = heap
        self.capacity = capacity
        return 0

    cdef int held(self, long long handle) except -1:
        if not (0 <= handle < self.used and self.places[handle].at >= 0):
            raise AssertionError(f"nothing is held under {handle}")
        return <int>handle

    cdef bint before(self, int one, int other) noexcept:
        cdef Place* left = &self.places[one]
        cdef Place* right = &self.places[other]
        if left.rank != right.rank:
            return left.rank < right.rank
        if left.level != right.level:
            return left.level < right.level
        if left.order != right.order:
            return left.order < right.order
        return left.sequence < right.sequence

    cdef int up(self, int at) noexcept:
        cdef int handle = self.heap[at]
        cdef int above
        while at:
            above = (at - 1) // 2
            if not self.before(handle, self.heap[above]):
                break
            self.heap[at] = self.heap[above]
            self.places[self.heap[at]].at = at
            at = above
        self.heap[at] = handle
        self.places[handle].at = at
        return at

    cdef void down(self, int at) noexcept:
        cdef int handle = self.heap[at]
        cdef int below = 2 * at + 1
        while below < self.count:
            if below + 1 < self.count and self.before(self.heap[below + 1], self.heap[below]):
                below += 1
            if not self.before(self.heap[below], handle):
                break
            self.heap[at] = self.heap[below]
            self.places[self.heap[at]].at = at
            at = below
            below = 2 * at + 1
        self.heap[at] = handle
        self.places[handle].at = at
