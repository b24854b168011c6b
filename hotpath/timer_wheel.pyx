# cython: cdivision=True
"""Timers by the tick they are due at, compiled. Contract and prose: ``reference/timer_wheel.py``."""

from libc.stdlib cimport free, realloc

from actorgrid.errors import BadRequest

cdef extern from *:
    int ctz "__builtin_ctzll"(unsigned long long) noexcept nogil
    int clz "__builtin_clzll"(unsigned long long) noexcept nogil

TICK_MAX = (1 << 63) - 1
cdef long long LAST = TICK_MAX


cdef long long checked(object tick) except -1:
    if not 0 <= tick <= TICK_MAX:
        raise BadRequest("a tick out of range", asked=str(tick), hint="ticks are 0 to 2**63 - 1")
    return tick


cdef class TimerWheel:
    def __cinit__(self, now=0):
        cdef int slot
        self.now = checked(now)
        self.free_head = -1
        self.items = []
        for slot in range(WHEELS):
            self.bits[slot] = 0
        for slot in range(WHEELS * SLOTS):
            self.heads[slot] = self.tails[slot] = -1

    def __dealloc__(self):
        free(self.timers)

    def __len__(self):
        return self.count

    def add(self, tick, item):
        """Let *item* be due at *tick* (at once, when that is past); gives its handle. Raises BadRequest below 0."""
        return self.put(checked(tick), item)

    def cancel(self, long long handle):
        """Forget the timer and give its item; the handle is void from here on, as it is once the timer was due."""
        if not (0 <= handle < self.used and self.timers[handle].slot >= 0):
            raise AssertionError(f"no timer is set under {handle}")
        return self.take(<int>handle)

    def advance(self, tick):
        """Move on to *tick* (an earlier one is as the present one) and take out what is due by then, earliest first.

        What is due at one tick comes in the order in which it was set.
        """
        cdef long long to, start = 0
        cdef int slot, at, behind
        cdef list due = []
        if tick < 0:
            return self.advance(self.now)
        to = LAST if tick > TICK_MAX else tick
        if to < self.now:
            to = self.now
        while True:
            slot = self.next_slot(&start)
            if slot < 0 or start > to:
                break
            self.now = start
            at = self.heads[slot]
            self.heads[slot] = self.tails[slot] = -1
            self.bits[slot >> BITS] &= ~(<unsigned long long>1 << (slot & (SLOTS - 1)))
            while at >= 0:
                behind = self.timers[at].next
                if slot >= SLOTS:
                    self.link(at)
                else:
                    due.append(self.drop(at))
                at = behind
        self.now = to
        return due

    def next_tick(self):
        """The tick at which the next timer is due, or ``None``. Costs the timers that share its slot."""
        cdef long long earliest = 0
        cdef int slot = self.next_slot(&earliest)
        cdef int at
        if slot < 0:
            return None
        if slot >= SLOTS:
            at = self.heads[slot]
            earliest = self.timers[at].tick
            while at >= 0:
                if self.timers[at].tick < earliest:
                    earliest = self.timers[at].tick
                at = self.timers[at].next
        return earliest

    cdef int put(self, long long at, object item) except -1:
        """``add`` of a tick that is in range."""
        cdef int handle = self.free_head
        if handle >= 0:
            self.free_head = self.timers[handle].next
            self.items[handle] = item
        else:
            if self.used == self.capacity:
                self.grow()
            handle = self.used
            self.items.append(item)
            self.used += 1
        self.timers[handle].tick = at if at > self.now else self.now
        self.count += 1
        self.link(handle)
        return handle

    cdef object take(self, int at):
        """``cancel`` of a handle that is in use."""
        cdef int slot = self.timers[at].slot
        cdef int before = self.timers[at].previous
        cdef int behind = self.timers[at].next
        if before >= 0:
            self.timers[before].next = behind
        else:
            self.heads[slot] = behind
        if behind >= 0:
            self.timers[behind].previous = before
        else:
            self.tails[slot] = before
        if self.heads[slot] < 0:
            self.bits[slot >> BITS] &= ~(<unsigned long long>1 << (slot & (SLOTS - 1)))
        return self.drop(at)

    cdef int grow(self) except -1:
        cdef int capacity = 2 * self.capacity if self.capacity else 16
        cdef Timer* timers
        if capacity < self.capacity:
            raise MemoryError
        timers = <Timer*>realloc(self.timers, capacity * sizeof(Timer))
        if timers == NULL:
            raise MemoryError
        self.timers = timers
        self.capacity = capacity
        return 0

    cdef int next_slot(self, long long* start) noexcept:
        """The earliest slot in use, or -1; *start* is then its first tick, or the present one when that is later."""
        cdef int wheel, slot, shift
        cdef long long above
        for wheel in range(WHEELS):
            if self.bits[wheel]:
                slot = ctz(self.bits[wheel])
                shift = BITS * wheel
                above = 0
                if shift + BITS < 63:
                    above = self.now >> (shift + BITS) << (shift + BITS)
                start[0] = above | <long long>slot << shift
                if start[0] < self.now:
                    start[0] = self.now
                return wheel * SLOTS + slot
        return -1

    cdef void link(self, int handle) noexcept:
        cdef Timer* timer = &self.timers[handle]
        cdef int wheel = (63 - clz(<unsigned long long>(timer.tick ^ self.now) | 1)) // BITS
        cdef int slot = wheel * SLOTS + <int>((timer.tick >> (BITS * wheel)) & (SLOTS - 1))
        cdef int before = self.tails[slot]
        timer.slot = slot
        timer.previous = before
        timer.next = -1
        if before >= 0:
            self.timers[before].next = handle
        else:
            self.heads[slot] = handle
        self.tails[slot] = handle
        self.bits[wheel] |= <unsigned long long>1 << (slot & (SLOTS - 1))

    cdef object drop(self, int handle):
        item = self.items[handle]
        self.items[handle] = None
        self.timers[handle].slot = -1
        self.timers[handle].next = self.free_head
        self.free_head = handle
        self.count -= 1
        return item
