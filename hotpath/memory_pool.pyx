# cython: cdivision=True
"""The memory pool, compiled. Contract and prose: ``reference/memory_pool.py``."""

cimport cython
from cpython.mem cimport PyMem_RawFree as c_free, PyMem_RawMalloc as malloc, PyMem_RawRealloc as realloc
from libc.limits cimport INT_MAX
from libc.stdlib cimport qsort
from libc.string cimport memset

from actorgrid.errors import BadRequest
from actorgrid.hotpath.memory_records import (
    PoolStats,
    Segment,
    freed_already,
    geometry,
    not_a_block,
    out_of_memory,
    stale_move,
    whole_number,
)

cdef extern from "Python.h":
    bint PyLong_CheckExact(object)
    long long PyLong_AsLongLongAndOverflow(object, int*) except? -1

cdef extern from *:
    """
    #define actorgrid_lowest(bits) __builtin_ctzll(bits)
    #define actorgrid_highest(bits) (63 - __builtin_clzll(bits))
    """
    int actorgrid_lowest(unsigned long long) noexcept nogil
    int actorgrid_highest(unsigned long long) noexcept nogil

cdef enum:
    UNUSED = 0
    FREE = 1
    USED = 2
    RESERVED = 3                    # the target of an uncommitted move
    PINNED = 4                      # a hole that a defragmentation is enlarging
    NO_PLAN = 0
    CLEARING = 1
    SLIDING = 2
    PICKED = 4                      # holes looked at in a bin
    LARGE = 8                       # times the mean block
    CHARGE_SHIFT = 16               # a move costs as much as the pool's size >> this
    WORK = 16                       # segments looked at by planning, for each there is
    WORK_LEAST = 4096
    WIDE = 8                        # largest holes that planning knows one by one
    WORK_SHARE = 8                  # part of it for each size when the largest hole is wanted

cdef tuple STATES = ("unused", "free", "used", "held", "held")


cdef inline int bin_of(long long size) noexcept nogil:
    """Sixteen bins to each power of two; exact below 16."""
    cdef int high
    if size < 16:
        return <int>size
    high = actorgrid_highest(<unsigned long long>size)
    return ((high - 3) << 4) | <int>((size >> (high - 4)) & 15)


cdef int cheaper(const void* left, const void* right) noexcept nogil:
    cdef const Window* a = <const Window*>left
    cdef const Window* b = <const Window*>right
    if a.late != b.late:
        return 1 if a.late else -1
    if a.cost != b.cost:
        return -1 if a.cost < b.cost else 1
    return -1 if a.first < b.first else 1


cdef int larger(const void* left, const void* right) noexcept nogil:
    cdef const Planned* a = <const Planned*>left
    cdef const Planned* b = <const Planned*>right
    if a.size != b.size:
        return -1 if a.size > b.size else 1
    return -1 if a.offset < b.offset else 1


@cython.final
@cython.no_gc                       # it refers to the pool, and the pool to no Python object
@cython.freelist(1024)
cdef class Block:
    def __init__(self):
        raise TypeError("a block comes from MemoryPool.allocate")

    cdef Node* at(self) except NULL:
        if self.pool is None:
            raise not_a_block(self)
        if self.pool.nodes[self.node].serial != self.serial:
            raise freed_already()
        return &self.pool.nodes[self.node]

    @property
    def offset(self):
        return self.at().offset << self.pool.shift

    @property
    def size(self):
        return self.at().size << self.pool.shift

    @property
    def live(self):
        return self.pool is not None and self.pool.nodes[self.node].serial == self.serial

    def __eq__(self, other):
        return (
            type(other) is Block
            and (<Block>other).pool is self.pool
            and (<Block>other).serial == self.serial
        )

    def __hash__(self):
        return hash((<size_t><void*>self.pool, self.serial))

    def __repr__(self):
        if not self.live:
            return "Block(freed)"
        return f"Block(offset={self.offset}, size={self.size})"


cdef inline Block block_of(MemoryPool pool, int node, long long serial):
    cdef Block block = Block.__new__(Block)
    block.pool = pool
    block.node = node
    block.serial = serial
    return block


@cython.final
@cython.no_gc
cdef class Blocks:
    def __init__(self):
        raise TypeError("blocks come from MemoryPool.allocate_many")

    def __dealloc__(self):
        c_free(self.nodes)

    def __len__(self):
        return self.count

    def __getitem__(self, key):
        cdef Py_ssize_t at
        if isinstance(key, slice):
            return [block_of(self.pool, self.nodes[i], self.first_serial + i) for i in range(*key.indices(self.count))]
        at = key
        if at < 0:
            at += self.count
        if not 0 <= at < self.count:
            raise IndexError(f"block {key} of a batch of {self.count}")
        return block_of(self.pool, self.nodes[at], self.first_serial + at)

    def __iter__(self):
        cdef Py_ssize_t at
        for at in range(self.count):
            yield block_of(self.pool, self.nodes[at], self.first_serial + at)

    def offsets(self):
        cdef Py_ssize_t at
        cdef Node* node
        found = []
        for at in range(self.count):
            node = &self.pool.nodes[self.nodes[at]]
            if node.serial != self.first_serial + at:
                raise freed_already(at)
            found.append(node.offset << self.pool.shift)
        return found


@cython.final
cdef class Move:
    def __init__(self):
        raise TypeError("a move comes from MemoryPool.defragment")

    @property
    def block(self):
        if self.pool is None:
            raise not_a_block(self)
        return block_of(self.pool, self.node, self.serial)

    @property
    def overlaps(self):
        return self.source - self.destination < self.size and self.destination - self.source < self.size

    def chunks(self):
        cdef long long step, done = 0
        step = self.source - self.destination if self.overlaps else self.size
        while done < self.size:
            yield self.source + done, self.destination + done, min(step, self.size - done)
            done += step

    def __repr__(self):
        return f"Move(source={self.source}, destination={self.destination}, size={self.size})"

    def __del__(self):
        if self.pool is not None and self.pool.pending(self):
            self.pool.drop_reservation(self.target)
            self.pool.settle()


@cython.final
cdef class Defragmentation:
    def __init__(self):
        raise TypeError("a defragmentation comes from MemoryPool.defragment")

    def __dealloc__(self):
        c_free(self.planned)

    def __del__(self):
        if self.pool is not None:
            self.close()

    @property
    def planned_bytes(self):
        return self.total << self.pool.shift if self.pool is not None else 0

    @property
    def hole_bytes(self):
        return self.hole << self.pool.shift if self.pool is not None else 0

    def __iter__(self):
        return self

    def __next__(self):
        cdef MemoryPool pool = self.pool
        cdef Planned* planned
        cdef Move move = Move.__new__(Move)
        cdef int target = -1, node = -1
        if pool is None or pool.plan != self.plan:
            raise StopIteration
        if pool.plan_mode == CLEARING:
            while target < 0 and self.given < self.count:
                planned = &self.planned[self.given]
                self.given += 1
                if pool.nodes[planned.target].serial == planned.target_serial:
                    target = planned.target
                    node = planned.node
            if self.given == self.count:
                pool.plan_open = False
        elif pool.plan_mode == SLIDING and pool.plan_open and pool.moves != self.moves_before:
            # The first hole of the window is where the next block goes.
            target = pool.head
            while target >= 0 and not (pool.nodes[target].state == PINNED
                                       and pool.nodes[target].offset >= pool.plan_from):
                target = pool.nodes[target].after
            if target >= 0:
                node = pool.nodes[target].after
                if node < 0 or pool.nodes[node].offset >= pool.plan_to or pool.nodes[node].size > self.allowance:
                    target = -1
                else:
                    self.allowance -= pool.nodes[node].size
                    self.moves_before = pool.moves
                    pool.pinned -= pool.nodes[target].size
                    pool.reserved += pool.nodes[target].size
                    pool.serial += 1
                    pool.nodes[target].state = RESERVED
                    pool.nodes[target].serial = pool.serial
                    pool.nodes[target].link = node
                    pool.nodes[node].link = target
        if target < 0:
            self.close()
            raise StopIteration
        move.pool = pool
        move.node = node
        move.serial = pool.nodes[node].serial
        move.target = target
        move.target_serial = pool.nodes[target].serial
        move.source = pool.nodes[node].offset << pool.shift
        move.destination = pool.nodes[target].offset << pool.shift
        move.size = pool.nodes[node].size << pool.shift
        return move

    def close(self):
        cdef Planned* planned
        if self.pool is None or self.pool.plan != self.plan:
            return
        while self.given < self.count:
            planned = &self.planned[self.given]
            self.given += 1
            if self.pool.nodes[planned.target].serial == planned.target_serial:
                self.pool.drop_reservation(planned.target)
        self.pool.plan_open = False
        self.pool.settle()


@cython.final
cdef class MemoryPool:
    def __cinit__(self, size_bytes, alignment_bytes=256):
        cdef int index
        self.shift, self.units = geometry(size_bytes, alignment_bytes)
        self.nodes = NULL
        self.nodes_known = self.nodes_room = self.spares = 0
        self.spare = -1
        memset(self.sub_bits, 0, sizeof(self.sub_bits))
        for index in range(1024):
            self.bins[index] = -1
        self.ensure(1)
        self.head = self.fresh()
        self.nodes[self.head].offset = 0
        self.nodes[self.head].size = self.units
        self.nodes[self.head].before = self.nodes[self.head].after = -1
        self.insert(self.head)

    def __dealloc__(self):
        c_free(self.nodes)

    @property
    def size_bytes(self):
        return self.units << self.shift

    @property
    def alignment_bytes(self):
        return 1 << self.shift

    def allocate(self, n_bytes):
        cdef long long n = self.units_of(n_bytes)
        cdef int index
        self.ensure(1)
        index = self.take(n)
        if index < 0:
            raise self.refusal(n)
        return block_of(self, index, self.nodes[index].serial)

    def free(self, block):
        if type(block) is not Block:
            raise not_a_block(block)
        self.give_back(self.held_by(<Block>block))
        self.settle()

    def allocate_many(self, sizes):
        cdef tuple asked
        cdef Py_ssize_t count, at
        cdef long long* units
        cdef Blocks blocks
        cdef int index
        cdef long long refused = 0, peak = self.peak
        try:
            asked = tuple(sizes)
        except TypeError as error:
            raise BadRequest("sizes come as a sequence of whole numbers", asked=f"a {type(sizes).__name__}") from error
        count = len(asked)
        blocks = Blocks.__new__(Blocks)
        blocks.pool = self
        blocks.nodes = <int*>malloc((count + 1) * sizeof(int))
        units = <long long*>malloc((count + 1) * sizeof(long long))
        try:
            if blocks.nodes == NULL or units == NULL:
                raise MemoryError(f"no memory for a batch of {count}")
            for at in range(count):
                units[at] = self.units_of(asked[at])
            # Last of what may raise: what is taken below is given back whole, or stands.
            self.ensure(count)
            blocks.first_serial = self.serial + 1
            for at in range(count):
                index = self.take(units[at])
                if index < 0:
                    refused = units[at]
                    while at > 0:
                        at -= 1
                        self.give_back(blocks.nodes[at])
                    self.peak = peak
                    break
                blocks.nodes[at] = index
            if refused:
                raise self.refusal(refused)
        finally:
            c_free(units)
        blocks.count = count
        return blocks

    def free_many(self, blocks):
        cdef Py_ssize_t at, count
        cdef Blocks batch
        cdef Block block
        cdef tuple listed
        cdef int* nodes
        if type(blocks) is Blocks:
            batch = <Blocks>blocks
            if batch.pool is not self:
                raise not_a_block(blocks)
            # All are looked at before the first goes: a refused batch has changed nothing.
            for at in range(batch.count):
                if self.nodes[batch.nodes[at]].serial != batch.first_serial + at:
                    raise freed_already(at)
            for at in range(batch.count):
                self.give_back(batch.nodes[at])
            self.settle()
            return
        try:
            listed = tuple(blocks)
        except TypeError as error:
            raise not_a_block(blocks) from error
        count = len(listed)
        # A live block is on no list of holes, so its link there can say whether it was seen in this batch.
        for at in range(count):
            if type(listed[at]) is Block:
                block = <Block>listed[at]
                if block.pool is self and self.nodes[block.node].serial == block.serial:
                    self.nodes[block.node].bin_before = -1
        for at in range(count):
            if type(listed[at]) is not Block or (<Block>listed[at]).pool is not self:
                raise not_a_block(listed[at])
            block = <Block>listed[at]
            if self.nodes[block.node].serial != block.serial or self.nodes[block.node].bin_before == 0:
                raise freed_already(at)
            self.nodes[block.node].bin_before = 0
        for at in range(count):
            self.give_back((<Block>listed[at]).node)
        self.settle()

    def defragment(self, want_bytes=None, max_moved_bytes=None, allow_overlap=False):
        cdef Defragmentation found = Defragmentation.__new__(Defragmentation)
        cdef long long want = self.units - self.used, most = self.units
        if want_bytes is not None:
            want = self.units_of(want_bytes)
        if max_moved_bytes is not None:
            most = min(self.units, whole_number(max_moved_bytes, "a bound in bytes", 0) >> self.shift)
        if want > self.units - self.used:
            raise self.refusal(want)
        # A plan holds back the holes that it enlarges, also from the next plan: one at a time.
        self.end_plan()
        self.plan += 1
        found.plan = self.plan
        found.want_bytes = want << self.shift
        found.pool = self
        found.allowance = most
        found.moves_before = -1
        if want > self.largest():
            self.plan_moves(found, want, most, allow_overlap, want_bytes is None)
        return found

    def commit(self, move):
        cdef Move known
        if type(move) is not Move:
            raise stale_move(f"a {type(move).__name__} is none")
        known = <Move>move
        if not self.pending(known):
            raise stale_move("it was committed already" if known.committed else
                             "it is of another pool, was cancelled, or its block was freed")
        known.committed = True
        self.moves += 1
        self.moved += self.nodes[known.node].size
        self.reserved -= self.nodes[known.target].size
        # Nothing is kept for the block any more: freed later, it would drop a reservation that is somebody else's by then.
        self.nodes[known.node].link = self.nodes[known.target].link = -1
        self.swap_places(known.node, known.target)
        self.release(known.target)
        self.settle()

    def cancel(self, move):
        if type(move) is not Move:
            raise stale_move(f"a {type(move).__name__} is none")
        if not self.pending(<Move>move):
            raise stale_move("it was committed or cancelled, or its block was freed")
        self.drop_reservation((<Move>move).target)
        self.settle()

    def stats(self):
        cdef long long unused = self.units - self.used, largest = self.largest()
        return PoolStats(
            size=self.units << self.shift,
            used=self.used << self.shift,
            free=unused << self.shift,
            held=(self.reserved + self.pinned) << self.shift,
            largest_free=largest << self.shift,
            peak_used=self.peak << self.shift,
            fragmentation=<double>(unused - largest) / unused if unused else 0.0,
            blocks=self.live,
            holes=self.holes,
            moves=self.moves,
            moved_bytes=self.moved << self.shift,
        )

    def segments(self):
        cdef int index = self.head
        found = []
        while index >= 0:
            found.append(Segment(
                self.nodes[index].offset << self.shift,
                self.nodes[index].size << self.shift,
                STATES[self.nodes[index].state],
            ))
            index = self.nodes[index].after
        return found

    # Numbers in, numbers out.

    cdef long long units_of(self, object n_bytes) except -1:
        cdef int overflow = 0
        cdef long long number
        if not PyLong_CheckExact(n_bytes):
            n_bytes = whole_number(n_bytes, "a size in bytes", 1)
        number = PyLong_AsLongLongAndOverflow(n_bytes, &overflow)
        if overflow > 0 or number > self.units << self.shift:
            raise out_of_memory(n_bytes, self.units << self.shift, (self.units - self.used) << self.shift,
                                self.largest() << self.shift, (self.reserved + self.pinned) << self.shift)
        if overflow < 0 or number < 1:
            whole_number(n_bytes, "a size in bytes", 1)
        return (number + ((<long long>1 << self.shift) - 1)) >> self.shift

    cdef object refusal(self, long long n):
        return out_of_memory(n << self.shift, self.units << self.shift, (self.units - self.used) << self.shift,
                             self.largest() << self.shift, (self.reserved + self.pinned) << self.shift)

    cdef int held_by(self, Block block) except -1:
        if block.pool is not self:
            raise not_a_block(block)
        if self.nodes[block.node].serial != block.serial:
            raise freed_already()
        return block.node

    # Slots.

    cdef int ensure(self, Py_ssize_t count) except -1:
        """Make sure of *count* unused slots, so that nothing below can fail."""
        cdef Py_ssize_t room
        cdef Node* larger_array
        if self.spares + (self.nodes_room - self.nodes_known) >= count:
            return 0
        room = max(64, 2 * <Py_ssize_t>self.nodes_room, self.nodes_known + count)
        if room > INT_MAX:
            raise MemoryError("a memory pool knows at most 2^31 segments")
        larger_array = <Node*>realloc(self.nodes, room * sizeof(Node))
        if larger_array == NULL:
            raise MemoryError(f"no memory for {room} segments")
        self.nodes = larger_array
        self.nodes_room = <int>room
        return 0

    cdef inline int fresh(self) noexcept nogil:
        cdef int index = self.spare
        if index >= 0:
            self.spare = self.nodes[index].after
            self.spares -= 1
        else:
            index = self.nodes_known
            self.nodes_known += 1
        self.nodes[index].link = -1
        self.nodes[index].serial = 0
        return index

    cdef inline void recycle(self, int index) noexcept nogil:
        self.nodes[index].state = UNUSED
        self.nodes[index].serial = 0
        self.nodes[index].after = self.spare
        self.spare = index
        self.spares += 1

    # Holes, by size.

    cdef inline void insert(self, int index) noexcept nogil:
        cdef Node* node = &self.nodes[index]
        cdef int bin = bin_of(node.size)
        cdef int after = self.bins[bin]
        node.state = FREE
        node.bin_before = -1
        node.bin_after = after
        if after >= 0:
            self.nodes[after].bin_before = index
        else:
            self.top_bits |= <unsigned long long>1 << (bin >> 4)
            self.sub_bits[bin >> 4] |= <unsigned int>1 << (bin & 15)
        self.bins[bin] = index
        self.open_units += node.size
        self.holes += 1

    cdef inline void remove(self, int index) noexcept nogil:
        cdef Node* node = &self.nodes[index]
        cdef int bin
        if node.bin_after >= 0:
            self.nodes[node.bin_after].bin_before = node.bin_before
        if node.bin_before >= 0:
            self.nodes[node.bin_before].bin_after = node.bin_after
        else:
            bin = bin_of(node.size)
            self.bins[bin] = node.bin_after
            if node.bin_after < 0:
                self.sub_bits[bin >> 4] &= ~(<unsigned int>1 << (bin & 15))
                if not self.sub_bits[bin >> 4]:
                    self.top_bits &= ~(<unsigned long long>1 << (bin >> 4))
        self.open_units -= node.size
        self.holes -= 1

    cdef inline int pick(self, int bin, long long n, bint high, int most) noexcept nogil:
        cdef int index = self.bins[bin], best = -1
        while index >= 0 and most:
            most -= 1
            if self.nodes[index].size >= n and (
                best < 0 or (self.nodes[index].offset > self.nodes[best].offset) == high
            ):
                best = index
            index = self.nodes[index].bin_after
        return best

    cdef inline int find(self, long long n, bint high) noexcept nogil:
        cdef int bin = bin_of(n), top = bin >> 4, found
        cdef unsigned int subs
        cdef unsigned long long tops
        # Of its own bin only a few are looked at, since not all of them are large enough; any of a larger bin is. Only
        # where there is none of those, the whole of its own bin is gone through before it is refused.
        found = self.pick(bin, n, high, PICKED)
        if found >= 0:
            return found
        subs = self.sub_bits[top] & (<unsigned int>0xFFFE << (bin & 15))
        if not subs:
            tops = self.top_bits & (~<unsigned long long>0 << (top + 1))
            if not tops:
                return self.pick(bin, n, high, -1)
            top = actorgrid_lowest(tops)
            subs = self.sub_bits[top]
        return self.pick((top << 4) | actorgrid_lowest(subs), n, high, PICKED)

    cdef long long largest(self) noexcept nogil:
        cdef int top, index
        cdef long long most = 0
        if not self.top_bits:
            return 0
        top = actorgrid_highest(self.top_bits)
        index = self.bins[(top << 4) | actorgrid_highest(self.sub_bits[top])]
        while index >= 0:
            most = max(most, self.nodes[index].size)
            index = self.nodes[index].bin_after
        return most

    # Blocks.

    cdef inline bint is_large(self, long long n) noexcept nogil:
        return self.live > 0 and n > LARGE * self.used // self.live

    cdef inline int carve(self, long long n) noexcept nogil:
        """A segment of *n* units out of a hole, or -1; a slot must be there."""
        cdef bint high = self.is_large(n)
        cdef int hole = self.find(n, high), block, neighbour
        if hole < 0:
            return -1
        self.remove(hole)
        if self.nodes[hole].size == n:
            return hole
        block = self.fresh()
        self.nodes[block].size = n
        self.nodes[hole].size -= n
        if high:
            neighbour = self.nodes[hole].after
            self.nodes[block].offset = self.nodes[hole].offset + self.nodes[hole].size
            self.nodes[block].before = hole
            self.nodes[block].after = neighbour
            self.nodes[hole].after = block
            if neighbour >= 0:
                self.nodes[neighbour].before = block
        else:
            neighbour = self.nodes[hole].before
            self.nodes[block].offset = self.nodes[hole].offset
            self.nodes[block].before = neighbour
            self.nodes[block].after = hole
            self.nodes[hole].before = block
            self.nodes[hole].offset += n
            if neighbour >= 0:
                self.nodes[neighbour].after = block
            else:
                self.head = block
        self.insert(hole)
        return block

    cdef inline int take(self, long long n) noexcept nogil:
        cdef int index = self.carve(n)
        if index < 0:
            return -1
        self.serial += 1
        self.nodes[index].state = USED
        self.nodes[index].serial = self.serial
        self.nodes[index].link = -1
        self.live += 1
        self.used += n
        if self.used > self.peak:
            self.peak = self.used
        return index

    cdef inline void give_back(self, int index) noexcept nogil:
        # A block that is to move has a place kept for it, which would stay kept for good.
        if self.nodes[index].link >= 0:
            self.drop_reservation(self.nodes[index].link)
        self.live -= 1
        self.used -= self.nodes[index].size
        self.release(index)

    cdef inline void release(self, int index) noexcept nogil:
        """Make a hole of a segment, and one of it and the holes beside it."""
        cdef int before = self.nodes[index].before, after = self.nodes[index].after
        cdef bint pin = False
        if self.plan_mode != NO_PLAN:
            pin = self.plan_from <= self.nodes[index].offset < self.plan_to
        if before >= 0 and (self.nodes[before].state == FREE or self.nodes[before].state == PINNED):
            if self.nodes[before].state == FREE:
                self.remove(before)
            else:
                pin = True
                self.pinned -= self.nodes[before].size
            self.nodes[before].size += self.nodes[index].size
            self.nodes[before].after = after
            if after >= 0:
                self.nodes[after].before = before
            self.recycle(index)
            index = before
        if after >= 0 and (self.nodes[after].state == FREE or self.nodes[after].state == PINNED):
            if self.nodes[after].state == FREE:
                self.remove(after)
            else:
                pin = True
                self.pinned -= self.nodes[after].size
            # The hole keeps its slot: a plan that is tried and given up leaves every slot where it was.
            before = self.nodes[index].before
            self.nodes[after].offset = self.nodes[index].offset
            self.nodes[after].size += self.nodes[index].size
            self.nodes[after].before = before
            if before >= 0:
                self.nodes[before].after = after
            else:
                self.head = after
            self.recycle(index)
            index = after
        self.nodes[index].serial = 0
        if pin:
            self.nodes[index].state = PINNED
            self.pinned += self.nodes[index].size
        else:
            self.insert(index)

    # Moves.

    cdef int pending(self, Move move) except -1:
        return (
            move.pool is self
            and self.nodes[move.target].serial == move.target_serial
            and self.nodes[move.target].state == RESERVED
        )

    cdef void swap_places(self, int block, int target) noexcept nogil:
        """Let a block and its target change places in the order of addresses."""
        cdef Node* a = &self.nodes[block]
        cdef Node* b = &self.nodes[target]
        cdef int before, after
        cdef long long offset = a.offset
        if b.after == block or a.after == target:
            # Neighbours: the two keep the stretch between them; sizes may differ when sliding.
            if b.after == block:
                before, after = b.before, a.after
                a.offset = b.offset
                b.offset = a.offset + a.size
                a.before, a.after, b.before, b.after = before, target, block, after
                if before >= 0:
                    self.nodes[before].after = block
                else:
                    self.head = block
                if after >= 0:
                    self.nodes[after].before = target
            else:
                before, after = a.before, b.after
                b.offset = offset
                a.offset = offset + b.size
                b.before, b.after, a.before, a.after = before, block, target, after
                if before >= 0:
                    self.nodes[before].after = target
                else:
                    self.head = target
                if after >= 0:
                    self.nodes[after].before = block
            return
        a.offset, b.offset = b.offset, offset
        a.before, b.before = b.before, a.before
        a.after, b.after = b.after, a.after
        if a.before >= 0:
            self.nodes[a.before].after = block
        else:
            self.head = block
        if a.after >= 0:
            self.nodes[a.after].before = block
        if b.before >= 0:
            self.nodes[b.before].after = target
        else:
            self.head = target
        if b.after >= 0:
            self.nodes[b.after].before = target

    cdef void drop_reservation(self, int target) noexcept nogil:
        self.nodes[self.nodes[target].link].link = -1
        self.nodes[target].link = -1
        self.reserved -= self.nodes[target].size
        self.release(target)

    cdef inline void settle(self) noexcept nogil:
        """End the plan when nothing of it is left to do."""
        if self.plan_mode != NO_PLAN and self.reserved == 0 and (self.plan_mode == CLEARING or not self.plan_open):
            self.end_plan()

    cdef void end_plan(self) noexcept nogil:
        """Cancel what is uncommitted and give the window's holes back to allocate."""
        cdef int index = self.head, after
        if self.plan_mode == NO_PLAN:
            return
        while index >= 0 and self.reserved:
            if self.nodes[index].state == RESERVED:
                after = self.nodes[index].after
                if after >= 0 and (self.nodes[after].state == FREE or self.nodes[after].state == PINNED):
                    after = self.nodes[after].after     # the hole beside it will be one with it
                self.drop_reservation(index)
                index = after
            else:
                index = self.nodes[index].after
        self.plan_mode = NO_PLAN
        self.plan_open = False
        index = self.head
        while index >= 0 and self.pinned:
            if self.nodes[index].state == PINNED:
                self.pinned -= self.nodes[index].size
                self.insert(index)
            index = self.nodes[index].after

    cdef int plan_moves(self, Defragmentation into, long long want, long long most, bint overlap, bint best) except -1:
        """Plan one window of *want* units, or of as much as can be had up to that; *best*: do not insist on it."""
        cdef int* order
        cdef int count = 0, index = self.head
        cdef long long work
        if self.live > INT_MAX // 2:
            raise MemoryError("too many blocks to plan moves of")
        self.ensure(self.live)
        order = <int*>malloc(<size_t>self.nodes_known * sizeof(int))
        if order == NULL:
            raise MemoryError("no memory to plan moves")
        try:
            while index >= 0:
                order[count] = index
                count += 1
                index = self.nodes[index].after
            work = max(<long long>WORK_LEAST, <long long>WORK * count)
            if not best and self.plan_window(into, want, most, order, count, work):
                return 0
            if overlap:
                return self.plan_slide(into, want, order, count)
            # A larger hole than there is will take blocks that now fit nowhere: a step on the way.
            while want > self.largest() and not self.plan_window(into, want, most, order, count, work // WORK_SHARE):
                want -= max(1, want >> 3)
        finally:
            c_free(order)
        return 0

    cdef int plan_window(self, Defragmentation into, long long want, long long most, int* order, int count,
                         long long work) except -1:
        """Try the runs of segments that span *want* units, cheapest first; whether one can be cleared."""
        cdef Window* windows = <Window*>malloc(<size_t>count * sizeof(Window))
        # Positions of blocks that no later block of the window outgrows: the first is the window's largest.
        cdef int* largest = <int*>malloc(<size_t>count * sizeof(int))
        cdef int wide[WIDE]         # positions of the largest holes, largest first
        cdef int wides = 0, first, last = 0, found = 0, at, room = 0, low = 0, high = 0
        cdef long long span = 0, moved = 0, blocks = 0, charge = self.units >> CHARGE_SHIFT
        cdef Node* node
        try:
            if windows == NULL or largest == NULL:
                raise MemoryError("no memory to plan moves")
            for first in range(count):
                node = &self.nodes[order[first]]
                if node.state == FREE and (wides < WIDE or node.size > self.nodes[order[wide[WIDE - 1]]].size):
                    at = wides if wides < WIDE else WIDE - 1
                    wides = at + 1
                    while at > 0 and self.nodes[order[wide[at - 1]]].size < node.size:
                        wide[at] = wide[at - 1]
                        at -= 1
                    wide[at] = first
            for first in range(count):
                while last < count and span < want:
                    node = &self.nodes[order[last]]
                    span += node.size
                    if node.state == USED:
                        moved += node.size
                        blocks += 1
                        while high > low and self.nodes[order[largest[high - 1]]].size <= node.size:
                            high -= 1
                        largest[high] = last
                        high += 1
                    last += 1
                if span < want:
                    break
                # Its largest block needs a hole outside.
                at = 0
                while at < wides and first <= wide[at] < last:
                    at += 1
                if low == high or at == WIDE or (
                    at < wides and self.nodes[order[largest[low]]].size <= self.nodes[order[wide[at]]].size
                ):
                    windows[found].cost = moved + blocks * charge
                    windows[found].moved = moved
                    windows[found].first = first
                    windows[found].last = last
                    windows[found].late = moved > most
                    found += 1
                node = &self.nodes[order[first]]
                span -= node.size
                if node.state == USED:
                    moved -= node.size
                    blocks -= 1
                    if largest[low] == first:
                        low += 1
            qsort(windows, found, sizeof(Window), cheaper)
            for at in range(found):
                work -= windows[at].last - windows[at].first
                if work < 0:
                    break
                if room < windows[at].last - windows[at].first:
                    c_free(into.planned)
                    room = windows[at].last - windows[at].first
                    into.planned = <Planned*>malloc(<size_t>room * sizeof(Planned))
                    if into.planned == NULL:
                        raise MemoryError("no memory to plan moves")
                if self.clear_window(into, &windows[at], most, order):
                    into.hole = want
                    return 1
            return 0
        finally:
            c_free(windows)
            c_free(largest)

    cdef bint clear_window(self, Defragmentation into, Window* window, long long most, int* order) noexcept nogil:
        """Reserve a place outside of the window for every block in it, largest first; or leave all as it was."""
        cdef Planned* planned = into.planned
        cdef Node* node
        cdef Py_ssize_t count = 0, at, kept = 0
        cdef int position, target = 0
        cdef long long sum = 0
        for position in range(window.first, window.last):
            node = &self.nodes[order[position]]
            if node.state == USED:
                planned[count].node = order[position]
                planned[count].size = node.size
                planned[count].offset = node.offset
                count += 1
            else:
                self.remove(order[position])
                node.state = PINNED
                self.pinned += node.size
        qsort(planned, count, sizeof(Planned), larger)
        for at in range(count):
            target = self.carve(planned[at].size)
            if target < 0:
                break
            self.serial += 1
            planned[at].target = target
            planned[at].target_serial = self.serial
            self.nodes[target].state = RESERVED
            self.nodes[target].serial = self.serial
            self.nodes[target].link = planned[at].node
            self.nodes[planned[at].node].link = target
            self.reserved += planned[at].size
        else:
            target = 0
        if target < 0:
            while at > 0:
                at -= 1
                self.drop_reservation(planned[at].target)
            for position in range(window.first, window.last):
                if self.nodes[order[position]].state == PINNED:
                    self.pinned -= self.nodes[order[position]].size
                    self.insert(order[position])
            return False
        self.plan_mode = CLEARING
        self.plan_open = True
        self.plan_from = self.nodes[order[window.first]].offset
        self.plan_to = self.nodes[order[window.last - 1]].offset + self.nodes[order[window.last - 1]].size
        for at in range(count):
            if sum + planned[at].size <= most:
                sum += planned[at].size
                planned[kept] = planned[at]
                kept += 1
            else:
                self.drop_reservation(planned[at].target)
        into.count = kept
        into.total = window.moved
        self.settle()
        return True

    cdef int plan_slide(self, Defragmentation into, long long want, int* order, int count) noexcept nogil:
        """Choose the cheapest stretch with *want* units of holes in it, to be closed up towards its beginning."""
        cdef int first, last = 0, best_first = -1, best_last = 0
        cdef long long open_units = 0, moved = 0, blocks = 0, cost, best_cost = 0
        cdef long long charge = self.units >> CHARGE_SHIFT
        cdef Node* node
        for first in range(count):
            while last < count and open_units < want:
                node = &self.nodes[order[last]]
                if node.state == USED:
                    moved += node.size
                    blocks += 1
                else:
                    open_units += node.size
                last += 1
            if open_units < want:
                break
            node = &self.nodes[order[first]]
            if node.state == USED:
                moved -= node.size
                blocks -= 1
                continue
            cost = moved + blocks * charge
            if best_first < 0 or cost < best_cost:
                best_first, best_last, best_cost = first, last, cost
                into.total = moved
            open_units -= node.size
        for first in range(best_first, best_last):
            if self.nodes[order[first]].state != USED:
                self.remove(order[first])
                self.nodes[order[first]].state = PINNED
                self.pinned += self.nodes[order[first]].size
        into.hole = want
        self.plan_mode = SLIDING
        self.plan_open = True
        self.plan_from = self.nodes[order[best_first]].offset
        self.plan_to = self.nodes[order[best_last - 1]].offset + self.nodes[order[best_last - 1]].size
        return 0
