# cython: binding=False, cdivision=True
"""A ring of messages from one process to another, in memory that both have mapped, compiled.

Contract and prose: ``reference/message_ring.py``; why each order of memory holds: ``docs/memory_ordering.md``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from actorgrid.errors import BadRequest, FrameTooLarge, MalformedMessage

cdef extern from *:
    """
    #include <stdint.h>
    #include <errno.h>
    #include <sys/epoll.h>
    #include <time.h>
    #include <unistd.h>

    static inline uint64_t ring_load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static inline void ring_store(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
    static inline void ring_release(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
    static inline uint64_t ring_swap(uint64_t *at, uint64_t value) {
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
    }
    static inline void ring_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    static inline void ring_pause(void) {
    #if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
    #elif defined(__aarch64__)
        __asm__ volatile("yield");
    #endif
    }
    /* One that is as loud as it can be is rung. */
    static inline int ring_bell(int fd) {
        uint64_t one = 1;
        return write(fd, &one, sizeof one) == sizeof one || errno == EAGAIN;
    }
    /* 0: in vain; 1: our bell; 2: something else, perhaps besides. */
    static inline int ring_sleep(int sleeper, int own_bell, int timeout_ms) {
        struct epoll_event found[4];
        int index, others = 0, count = epoll_wait(sleeper, found, 4, timeout_ms);
        for (index = 0; index < count; index++) others |= found[index].data.fd != own_bell;
        return count <= 0 ? 0 : others ? 2 : 1;
    }
    static inline uint64_t ring_now_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }
    """
    int ring_bell(int fd) noexcept nogil
    int ring_sleep(int sleeper, int own_bell, int timeout_ms) noexcept nogil
    uint64_t ring_load(const uint64_t *at) noexcept nogil
    void ring_store(uint64_t *at, uint64_t value) noexcept nogil
    void ring_release(uint64_t *at, uint64_t value) noexcept nogil
    uint64_t ring_swap(uint64_t *at, uint64_t value) noexcept nogil
    void ring_fence() noexcept nogil
    void ring_pause() noexcept nogil
    uint64_t ring_now_ns() noexcept nogil

FULL, PUSHED, PUSHED_RING = 0, 1, 2
IN_VAIN, RUNG, OTHERS = 0, 1, 2
cdef enum:
    RUNG_ = 1
HEADER_BYTES = HEADER
CAPACITY_MIN, CAPACITY_MAX = 64, 1 << 30


cdef class MessageRing:
    def __cinit__(self, memory, offset, capacity, pushes):
        cdef uint64_t wanted
        if not 64 <= capacity <= 1 << 30 or capacity & (capacity - 1):
            raise BadRequest("no capacity of a ring", asked=str(capacity), hint="a power of two from 64 to 2**30")
        PyObject_GetBuffer(memory, &self.buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.held = True
        if offset < 0 or offset % 64 or offset + HEADER + capacity > self.buffer.len:
            found = str(self.buffer.len)
            raise BadRequest("no room for a ring", asked=f"{offset} + {HEADER + capacity}", found=found)
        wanted = capacity
        self.size = wanted
        self.mask = wanted - 1
        self.pushes = pushes
        self.base = <char *>self.buffer.buf + <Py_ssize_t>offset
        self.data = self.base + HEADER
        self.head = self.tail = 0
        self.owed = False

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)

    @property
    def capacity(self):
        return self.size

    @property
    def largest_bytes(self):
        return self.size // 2 - 8

    cdef int check(self, bint pushes) except -1:
        if not self.held:
            raise BadRequest("the ring is closed")
        if self.pushes != pushes:
            raise BadRequest("a ring has one side that pushes, and one that pops")
        return 0

    cdef int look_at_head(self) except -1:
        """Read the other side's head once, and believe it only where it can be."""
        cdef uint64_t head = ring_load(<uint64_t *>(self.base + HEAD))
        if head - self.head > self.size or head - self.tail > self.size or head & 7:
            raise MalformedMessage("the head of a ring in shared memory is nowhere in it", found=str(head))
        self.head = head
        return 0

    cdef int look_at_tail(self) except -1:
        cdef uint64_t tail = ring_load(<uint64_t *>(self.base + TAIL))
        if tail - self.tail > self.size or self.head - tail > self.size or tail & 7:
            raise MalformedMessage("the tail of a ring in shared memory is nowhere in it", found=str(tail))
        self.tail = tail
        return 0

    cpdef int push(self, message) except -1:
        """As in the reference."""
        cdef Py_buffer given
        cdef uint64_t need
        cdef uint32_t length
        self.check(True)
        PyObject_GetBuffer(message, &given, PyBUF_SIMPLE)
        try:
            if <uint64_t>given.len > self.size // 2 - 8:
                raise FrameTooLarge(
                    f"a message of {given.len} bytes is over the limit of {self.size // 2 - 8}",
                    hint="send it in pieces",
                )
            length = <uint32_t>given.len
            need = (4 + <uint64_t>length + 7) & ~<uint64_t>7
            if need > self.size - (self.head - self.tail):
                self.look_at_tail()
                if need > self.size - (self.head - self.tail):
                    return 0
            # A length never wraps: messages begin at multiples of 8.
            memcpy(self.data + (self.head & self.mask), &length, 4)
            if length >= UNLOCKED_BYTES:
                with nogil:
                    ring_in(self.data, self.mask, self.head + 4, <const char *>given.buf, length)
            else:
                ring_in(self.data, self.mask, self.head + 4, <const char *>given.buf, length)
        finally:
            PyBuffer_Release(&given)
        self.head += need
        ring_release(<uint64_t *>(self.base + HEAD), self.head)
        ring_fence()
        if ring_load(<uint64_t *>(self.base + SLEEPING)) and ring_swap(<uint64_t *>(self.base + SLEEPING), 0):
            return 2
        return 1

    cpdef pop(self):
        """As in the reference."""
        cdef uint32_t length
        cdef uint64_t taken
        cdef char *into
        self.check(False)
        if self.head == self.tail:
            self.look_at_head()
            if self.head == self.tail:
                return None
        memcpy(&length, self.data + (self.tail & self.mask), 4)
        taken = (4 + <uint64_t>length + 7) & ~<uint64_t>7
        if length > self.size // 2 - 8 or taken > self.head - self.tail:
            raise MalformedMessage("a message in shared memory is longer than what was pushed", found=str(length))
        message = PyBytes_FromStringAndSize(NULL, length)
        into = PyBytes_AS_STRING(message)
        if length >= UNLOCKED_BYTES:
            with nogil:
                ring_out(self.data, self.mask, self.tail + 4, into, length)
        else:
            ring_out(self.data, self.mask, self.tail + 4, into, length)
        self.tail += taken
        ring_release(<uint64_t *>(self.base + TAIL), self.tail)
        ring_fence()
        if ring_load(<uint64_t *>(self.base + STARVING)) and self.head - self.tail <= self.size // 2:
            if ring_swap(<uint64_t *>(self.base + STARVING), 0):
                self.owed = True
        return message

    def send(self, message, int bell):
        """As in the reference."""
        cdef int pushed = self.push(message)
        if pushed == 2 and not ring_bell(bell):
            raise BadRequest("a bell that cannot be rung", asked=str(bell))
        return pushed != 0

    def sleep(self, int sleeper, int own_bell, int timeout_ms):
        """As in the reference."""
        cdef int found
        if not self.arm():
            return RUNG
        with nogil:
            found = ring_sleep(sleeper, own_bell, timeout_ms)
        return found

    def receive(self, int sleeper, int own_bell, int timeout_ms):
        """As in the reference."""
        cdef int found
        message = self.pop()
        if message is not None:
            return message
        if self.arm():
            with nogil:
                found = ring_sleep(sleeper, own_bell, timeout_ms)
            if found != RUNG_:
                return found
        message = self.pop()
        return RUNG_ if message is None else message

    def take_ring(self):
        """As in the reference."""
        owed = self.owed
        self.owed = False
        return bool(owed)

    cpdef bint arm(self) except -1:
        """As in the reference."""
        self.check(False)
        ring_store(<uint64_t *>(self.base + SLEEPING), 1)
        ring_fence()
        self.look_at_head()
        if self.head == self.tail:
            return True
        ring_store(<uint64_t *>(self.base + SLEEPING), 0)
        return False

    def starve(self):
        """As in the reference."""
        self.check(True)
        ring_store(<uint64_t *>(self.base + STARVING), 1)
        ring_fence()
        self.look_at_tail()
        if (self.head - self.tail) * 2 > self.size:
            return True
        ring_store(<uint64_t *>(self.base + STARVING), 0)
        return False

    def spin(self, unsigned int microseconds):
        """As in the reference, without the interpreter's lock."""
        cdef uint64_t end
        cdef int turns
        cdef uint64_t *at
        cdef uint64_t seen
        self.check(False)
        at = <uint64_t *>(self.base + HEAD)
        seen = self.tail
        if ring_load(at) != seen:
            return True
        with nogil:
            end = ring_now_ns() + <uint64_t>microseconds * 1000
            while ring_load(at) == seen:
                if ring_now_ns() >= end:
                    break
                for turns in range(16):
                    ring_pause()
        return ring_load(at) != seen

    def close(self):
        """As in the reference."""
        if self.held:
            self.held = False
            PyBuffer_Release(&self.buffer)


cdef void ring_in(char *data, uint64_t mask, uint64_t position, const char *source, uint64_t count) noexcept nogil:
    """Copy into the ring, around its end."""
    cdef uint64_t at = position & mask
    cdef uint64_t first = mask + 1 - at
    if first > count:
        first = count
    memcpy(data + at, source, first)
    memcpy(data, source + first, count - first)


cdef void ring_out(const char *data, uint64_t mask, uint64_t position, char *to, uint64_t count) noexcept nogil:
    """Copy out of the ring, around its end."""
    cdef uint64_t at = position & mask
    cdef uint64_t first = mask + 1 - at
    if first > count:
        first = count
    memcpy(to, data + at, first)
    memcpy(to + first, data, count - first)
