# cython: cdivision=True
"""Lines by priority level, compiled. Contract and prose: ``reference/priority_bitmap.py``."""

from libc.stdlib cimport calloc, free, malloc, realloc

from actorgrid.errors import BadRequest

cdef extern from *:
    int ctz "__builtin_ctzll"(unsigned long long) noexcept nogil

LEVELS_MAX = 4096


cdef class PriorityBitmap:
    def __cinit__(self, long long levels):
        cdef int level
        if not 1 <= levels <= 4096:
            raise BadRequest("a number of levels out of range", asked=str(levels), hint="1 to 4096")
        self.levels = <int>levels
        self.words = (self.levels + 63) // 64
        self.free_head = -1
        self.items = []
        self.bits = <unsigned long long*>calloc(self.words, sizeof(unsigned long long))
        self.heads = <int*>malloc(3 * self.levels * sizeof(int))
        if self.bits == NULL or self.heads == NULL:
            raise MemoryError
        self.tails = self.heads + self.levels
        self.fingers = self.tails + self.levels
        for level in range(3 * self.levels):
            self.heads[level] = -1

    def __dealloc__(self):
        free(self.bits)
        free(self.heads)
        free(self.nodes)

    def __len__(self):
        return self.count

    def insert(self, long long level, long long order, item):
        """Put *item* (not ``None``) into a level by its *order*; gives its handle. Raises BadRequest."""
        cdef int handle
        self.check(level)
        handle = self.free_head
        if handle >= 0:
            self.free_head = self.nodes[handle].next
            self.items[handle] = item
        else:
            if self.used == self.capacity:
                self.grow()
            handle = self.used
            self.items.append(item)
            self.used += 1
        self.nodes[handle].order = order
        self.count += 1
        self.link(handle, <int>level)
        return handle

    def remove(self, long long handle):
        """Take the item of *handle* out and give it; the handle is void from here on."""
        cdef int at = self.held(handle)
        self.unlink(at)
        item = self.items[at]
        self.items[at] = None
        self.nodes[at].level = -1
        self.nodes[at].next = self.free_head
        self.free_head = at
        self.count -= 1
        return item

    def move(self, long long handle, long long level):
        """Put the item of *handle* into another level, by the order it has. Raises BadRequest for a bad level."""
        cdef int at = self.held(handle)
        self.check(level)
        self.unlink(at)
        self.link(at, <int>level)

    def first(self):
        """The item that stands first, or ``None``."""
        cdef int at = self.first_from(0)
        return None if at < 0 else self.items[at]

    def after(self, long long handle):
        """The item that stands next behind that of *handle*, or ``None``."""
        cdef int at = self.held(handle)
        cdef int behind = self.nodes[at].next
        if behind < 0:
            behind = self.first_from(self.nodes[at].level + 1)
        return None if behind < 0 else self.items[behind]

    def __iter__(self):
        """All items, first to last; nothing may be put in or taken out meanwhile."""
        cdef int level, at
        for level in range(self.levels):
            at = self.heads[level]
            while at >= 0:
                yield self.items[at]
                at = self.nodes[at].next

    cdef int check(self, long long level) except -1:
        if not 0 <= level < self.levels:
            raise BadRequest("there is no such level", asked=str(level), found=f"levels 0 to {self.levels - 1}")
        return 0

    cdef int held(self, long long handle) except -1:
        if not (0 <= handle < self.used and self.nodes[handle].level >= 0):
            raise AssertionError(f"nothing is held under {handle}")
        return <int>handle

    cdef int grow(self) except -1:
        cdef int capacity = 2 * self.capacity if self.capacity else 16
        cdef Node* nodes
        if capacity < self.capacity:
            raise MemoryError
        nodes = <Node*>realloc(self.nodes, capacity * sizeof(Node))
        if nodes == NULL:
            raise MemoryError
        self.nodes = nodes
        self.capacity = capacity
        return 0

    cdef void link(self, int handle, int level) noexcept:
        cdef Node* nodes = self.nodes
        cdef long long order = nodes[handle].order
        cdef int before = self.tails[level]
        cdef int behind
        if before >= 0 and nodes[before].order > order:
            before = self.fingers[level]
            while before >= 0 and nodes[before].order > order:
                before = nodes[before].previous
            while True:
                behind = nodes[before].next if before >= 0 else self.heads[level]
                if behind < 0 or nodes[behind].order > order:
                    break
                before = behind
        behind = nodes[before].next if before >= 0 else self.heads[level]
        nodes[handle].level = level
        nodes[handle].previous = before
        nodes[handle].next = behind
        if before >= 0:
            nodes[before].next = handle
        else:
            self.heads[level] = handle
        if behind >= 0:
            nodes[behind].previous = handle
        else:
            self.tails[level] = handle
        self.fingers[level] = handle
        self.bits[level >> 6] |= <unsigned long long>1 << (level & 63)
        self.summary |= <unsigned long long>1 << (level >> 6)

    cdef void unlink(self, int handle) noexcept:
        cdef Node* nodes = self.nodes
        cdef int level = nodes[handle].level
        cdef int before = nodes[handle].previous
        cdef int behind = nodes[handle].next
        if before >= 0:
            nodes[before].next = behind
        else:
            self.heads[level] = behind
        if behind >= 0:
            nodes[behind].previous = before
        else:
            self.tails[level] = before
        if self.fingers[level] == handle:
            self.fingers[level] = before if before >= 0 else behind
        if self.heads[level] < 0:
            self.bits[level >> 6] &= ~(<unsigned long long>1 << (level & 63))
            if self.bits[level >> 6] == 0:
                self.summary &= ~(<unsigned long long>1 << (level >> 6))

    cdef int first_from(self, int level) noexcept:
        """Place of the first item in this level or behind it, or -1."""
        cdef int word
        cdef unsigned long long bits
        if level >= self.levels:
            return -1
        word = level >> 6
        bits = self.bits[word] >> (level & 63)
        if bits:
            return self.heads[level + ctz(bits)]
        if word == 63:
            return -1
        bits = self.summary >> (word + 1)
        if bits == 0:
            return -1
        word += 1 + ctz(bits)
        return self.heads[64 * word + ctz(self.bits[word])]
