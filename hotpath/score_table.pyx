# cython: cdivision=True
"""What each live class of members would score on each node, kept current as nodes change, and the best node of a class.

Members of requests with the same needs are a class: the table has a row for each of the last ROWS_MAX and a cell for
each node: 0 where they do not fit, else how good a place it is. A node that changes has its column worked
out anew (cost: the rows, not the nodes); the best node is found over one maximum for each BLOCK nodes. The layout is
that of Borg's score cache and equivalence classes (EuroSys 2015, 3.4), made small enough for a CPU's cache.

The scores themselves are told in prose in ``reference/score_table.py``, which gives the same numbers.
"""

cimport cython
from cpython.array cimport array
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from actorgrid.hotpath.closeness import CLOSENESS, DEVICES_MAX, STEPS_MAX as _STEPS_MAX
from actorgrid.hotpath.typical_mix import MIX_WEIGHT as _MIX_WEIGHT
from actorgrid.hotpath.typical_mix import DEMAND_UNIT as _DEMAND_UNIT, KINDS_MAX as _KINDS_MAX
from actorgrid.hotpath.reference.completion import PART_BITS as _PART_BITS, UNIT as _UNIT
from actorgrid.hotpath.reference.model_price import (
    FILLED_TENTHS as _FILLED_TENTHS,
    PRICE_MAX as _PRICE_MAX,
    PRICE_SHIFT as _PRICE_SHIFT,
    PRICE_SLOPE as _PRICE_SLOPE,
    SHORTAGE_FREE as _SHORTAGE_FREE,
)

from .completion cimport CPU_KEPT, ints, worth_between

cdef extern from *:
    """
    #include <string.h>
    #if defined(__GNUC__)
    #define actorgrid_popcount(bits) __builtin_popcountll(bits)
    #else
    static int actorgrid_popcount(unsigned long long bits)
    {
        int found = 0;
        for (; bits; bits &= bits - 1) found++;
        return found;
    }
    #endif
    #define actorgrid_lowest(bits) actorgrid_popcount(((bits) & (0 - (bits))) - 1)
    static short actorgrid_highest(const short* scores, int count)
    {
        short found = 0;
        for (int at = 0; at < count; at++) found = scores[at] > found ? scores[at] : found;
        return found;
    }
    /* Where the two differ, as places in rising order; four are compared at a time. */
    static int actorgrid_differing(const short* before, const short* after, int count, unsigned short* places)
    {
        int found = 0;
        for (int at = 0; at < count; at += 4) {
            unsigned long long a, b;
            memcpy(&a, before + at, 8);
            memcpy(&b, after + at, 8);
            if (a == b) continue;
            for (int each = at; each < at + 4; each++)
                if (before[each] != after[each]) places[found++] = (unsigned short)each;
        }
        return found;
    }
    """
    int popcount "actorgrid_popcount"(unsigned long long bits) noexcept nogil
    int lowest "actorgrid_lowest"(unsigned long long bits) noexcept nogil
    short highest_of "actorgrid_highest"(const short* scores, int count) noexcept nogil
    int differing "actorgrid_differing"(const short* before, const short* after, int count,
                                        unsigned short* places) noexcept nogil

cdef enum:
    MIX_WEIGHT = 4096           # what the weights of the typical mix add up to
    FGD_STEP = 40 * 4096        # 40 milli-GPU make a difference
    UNIT = 16                   # of worth in a thousandth of a GPU; see reference/completion.py
    COMPLETION_STEP = 16 * UNIT
    COMPLETION_BAND = 4         # steps that are as good as the best
    PART_BITS = 10
    CORES_OF_A_GPU = 16         # best_fit: as many left-over cores weigh as much as a left-over GPU
    DEMAND_UNIT = 65536         # see reference/model_price.py
    SHORTAGE_FREE = 655
    PRICE_SLOPE = 10
    PRICE_MAX = 13107
    FILLED_TENTHS = 7
    PRICE_SHIFT = 20
    NEAR_WORDS = 5
    BLOCK_EMPTY = -3
    BLOCK_MIXED = -2

assert (NEAR_MAX, len(CLOSENESS)) == (DEVICES_MAX, NEAR_WORDS)
assert (MIX_WEIGHT, UNIT, PART_BITS, KINDS_MAX) == (_MIX_WEIGHT, _UNIT, _PART_BITS, _KINDS_MAX)
assert (DEMAND_UNIT, SHORTAGE_FREE, PRICE_SLOPE, PRICE_MAX, FILLED_TENTHS, PRICE_SHIFT) == (
    _DEMAND_UNIT, _SHORTAGE_FREE, _PRICE_SLOPE, _PRICE_MAX, _FILLED_TENTHS, _PRICE_SHIFT)


cdef void* grown(void* block, Py_ssize_t count, Py_ssize_t size) except NULL:
    cdef void* larger = realloc(block, count * size)
    if larger == NULL:
        raise MemoryError(f"no memory for {count} placement records")
    return larger


cdef int STEPS_MAX = _STEPS_MAX


cdef unsigned long long* near_bits(object masks, Py_ssize_t count) except? NULL:
    """The bits of ``closeness.near_masks``, to be freed by who asked; NULL of none."""
    cdef unsigned long long* found
    cdef Py_ssize_t at, word
    if masks is None:
        return NULL
    count = min(count, <Py_ssize_t>NEAR_MAX)
    found = <unsigned long long*>calloc(NEAR_WORDS * count, sizeof(unsigned long long))
    if found == NULL:
        raise MemoryError("no memory for how close devices are")
    for word in range(NEAR_WORDS):
        for at in range(count):
            found[word * count + at] = masks[word][at]
    return found


cdef bint near_devices(const unsigned long long* near, int count, int number, unsigned long long usable, int wanted,
                       int* chosen) noexcept nogil:
    """See ``closeness.near_set``: whether there is a set; *chosen*, unless NULL, gets it, lowest number first."""
    cdef int word
    cdef int found[NEAR_MAX]
    cdef int* into = chosen
    if chosen == NULL:
        into = found
    if wanted > NEAR_MAX:
        return False
    for word in range(number):
        if search_near(near + word * count, count, usable, wanted, into):
            sort(into, wanted)
            return True
    return False


cdef bint search_near(const unsigned long long* near, int count, unsigned long long usable, int wanted,
                      int* chosen) noexcept nogil:
    cdef int starts[NEAR_MAX]
    cdef int at, start, used = 0, steps = STEPS_MAX
    # By how many others are that close, then by number.
    for at in range(count):
        if usable >> at & 1:
            starts[used] = popcount(near[at] & usable) << 8 | at
            used += 1
    sort(starts, used)
    for at in range(used):
        start = starts[at] & 255
        usable &= ~(<unsigned long long>1 << start)
        chosen[0] = start
        if extend_near(near, near[start] & usable, wanted - 1, chosen + 1, &steps):
            return True
    return False


cdef bint extend_near(const unsigned long long* near, unsigned long long among, int missing, int* chosen,
                      int* steps) noexcept nogil:
    cdef int at
    if missing == 0:
        return True
    while popcount(among) >= missing:
        if steps[0] == 0:
            return False
        steps[0] -= 1
        at = lowest(among)
        among &= among - 1
        chosen[0] = at
        if extend_near(near, among & near[at], missing - 1, chosen + 1, steps):
            return True
    return False


cdef inline int clamped(long long score) noexcept nogil:
    return 1 if score < 1 else SCORE_MAX if score > SCORE_MAX else <int>score


cdef inline int fgd_score(long long loss) noexcept nogil:
    return clamped(2 * SCORE_EVEN - (loss + <long long>SCORE_EVEN * FGD_STEP) // FGD_STEP)


cdef inline int completion_score(long long loss, int count) noexcept nogil:
    loss += <long long>SCORE_EVEN * COMPLETION_STEP * count
    return clamped(2 * SCORE_EVEN - (loss if count == 1 else loss // count) // COMPLETION_STEP)


cdef inline int worth_score(int policy, long long before, long long after, MemberNeeds* needs) noexcept nogil:
    """From the worth of a node before and after a member's part is gone."""
    cdef long long loss = before - after
    cdef long long taken = <long long>needs.gpu_milli * needs.gpu_count
    if policy == FGD:
        return fgd_score(loss - MIX_WEIGHT * taken)
    return completion_score(loss - UNIT * taken, needs.gpu_count if needs.gpu_count else 1)


@cython.final
cdef class ScoreTable:
    def __cinit__(self, int policy):
        self.policy = policy
        self.used = self.capacity = self.block_count = self.block_capacity = 0
        self.rows = 0
        self.class_count = 0
        self.dirty_count = self.dirty_start = 0
        self.mix_ranks = self.mix_steps = self.mix_counts = 0
        self.kind_capacity = 0
        self.kinds = self.named_count = 0
        self.is_priced = False
        self.set_count = 1
        memset(self.index, 0, sizeof(self.index))
        memset(self.mix_step, 0, sizeof(self.mix_step))

    def __dealloc__(self):
        cdef Py_ssize_t slot
        for slot in range(self.used):
            free(self.nodes[slot].gpus)
            free(self.nodes[slot].near)
        free(self.nodes)
        free(self.cells)
        free(self.maxima)
        free(self.columns)
        free(self.dirty)
        free(self.may)
        free(self.scratch)
        free(self.mix_cpus)
        free(self.kind_of)
        free(self.share_mass)
        free(self.whole_mass)
        free(self.completion)
        free(self.partial)
        free(self.partial_cpu)
        free(self.model_free)
        free(self.named_kinds)
        free(self.named_demand)
        free(self.block_model)

    # -- room

    cdef int grow_nodes(self, Py_ssize_t wanted) except -1:
        """Room for *wanted* nodes."""
        cdef Py_ssize_t capacity, blocks, at, row
        if wanted > self.capacity:
            capacity = max(16, 2 * self.capacity)
            self.nodes = <Node*>grown(self.nodes, capacity, sizeof(Node))
            self.dirty = <int*>grown(self.dirty, capacity, sizeof(int))
            self.columns = <short*>grown(self.columns, capacity * ROWS_MAX, sizeof(short))
            memset(self.columns + self.capacity * ROWS_MAX, 0, (capacity - self.capacity) * ROWS_MAX * sizeof(short))
            self.capacity = capacity
        blocks = (wanted + BLOCK - 1) // BLOCK
        if blocks > self.block_capacity:
            capacity = max(1, 2 * self.block_capacity)
            self.cells = <short*>grown(self.cells, capacity * ROWS_MAX * BLOCK, sizeof(short))
            memset(self.cells + self.block_capacity * ROWS_MAX * BLOCK, 0,
                   (capacity - self.block_capacity) * ROWS_MAX * BLOCK * sizeof(short))
            self.block_model = <int*>grown(self.block_model, capacity, sizeof(int))
            for at in range(self.block_capacity, capacity):
                self.block_model[at] = BLOCK_EMPTY
            self.maxima = <short*>grown(self.maxima, capacity * ROWS_MAX, sizeof(short))
            # From the last row to the first: each moves up, over what was moved already.
            row = ROWS_MAX - 1
            while row >= 0:
                at = capacity - 1
                while at >= 0:
                    self.maxima[row * capacity + at] = (
                        self.maxima[row * self.block_capacity + at] if at < self.block_capacity else 0
                    )
                    at -= 1
                row -= 1
            self.block_capacity = capacity
        if blocks > self.block_count:
            self.block_count = blocks
        return 0

    def allow_models(self, int number, list numbers, Py_ssize_t models):
        """Make *number* the set of these models; there are *models* in all."""
        cdef Py_ssize_t sets = max(number + 1, self.set_count)
        cdef Py_ssize_t at, model, capacity
        cdef unsigned char* larger
        if models > self.model_capacity or sets > self.set_capacity:
            capacity = max(16, 2 * models)
            larger = <unsigned char*>calloc(2 * sets * capacity, 1)
            if larger == NULL:
                raise MemoryError(f"no memory for {sets} sets of models")
            for at in range(self.set_count):
                for model in range(self.model_capacity):
                    larger[at * capacity + model] = self.may[at * self.model_capacity + model]
            free(self.may)
            self.may = larger
            self.model_capacity = capacity
            self.set_capacity = 2 * sets
        self.set_count = <int>sets
        memset(self.may + number * self.model_capacity, 0, self.model_capacity)
        for model in numbers:
            self.may[number * self.model_capacity + model] = 1

    def need_scratch(self, Py_ssize_t gpus):
        """Room to think about nodes of as many devices."""
        if 3 * gpus > self.scratch_size:
            self.scratch = <int*>grown(self.scratch, 3 * gpus, sizeof(int))
            self.scratch_size = 3 * gpus

    def set_kind(self, Py_ssize_t model, int kind):
        """What the typical mix takes a model for. A model that is new has nothing free."""
        cdef Py_ssize_t capacity = max(16, 2 * model)
        if model >= self.kind_capacity:
            self.kind_of = <int*>grown(self.kind_of, capacity, sizeof(int))
            self.model_free = <long long*>grown(self.model_free, capacity, sizeof(long long))
            memset(self.model_free + self.kind_capacity, 0, (capacity - self.kind_capacity) * sizeof(long long))
            self.kind_capacity = capacity
        self.kind_of[model] = kind
        if kind:
            self.model_of[kind] = <int>model

    def set_named(self, int kinds, tuple named):
        """What part of the demand names which kinds, before any ``set_kind`` for this mix; prices begin at nothing."""
        cdef Py_ssize_t at
        self.kinds = kinds
        self.named_count = 0
        self.named_kinds = <int*>grown(self.named_kinds, max(1, len(named)), sizeof(int))
        self.named_demand = <long long*>grown(self.named_demand, max(1, len(named)), sizeof(long long))
        for at in range(len(named)):
            self.named_kinds[at] = 0
            for kind in named[at][0]:
                self.named_kinds[at] |= 1 << <int>kind
            self.named_demand[at] = named[at][1]
        self.named_count = len(named)
        self.is_priced = False
        for at in range(KINDS_MAX):
            self.model_of[at] = -1
            self.price_of[at] = 0

    def set_mix(self, list cpus, list thresholds, int counts, list share_mass, list whole_mass):
        """The typical mix as sums; see ``mix.py``."""
        cdef Py_ssize_t at
        cdef int milli
        self.mix_cpus = <long long*>grown(self.mix_cpus, max(1, len(cpus)), sizeof(long long))
        self.share_mass = <long long*>grown(self.share_mass, max(1, len(share_mass)), sizeof(long long))
        self.whole_mass = <long long*>grown(self.whole_mass, max(1, len(whole_mass)), sizeof(long long))
        for at in range(len(cpus)):
            self.mix_cpus[at] = cpus[at]
        for at in range(len(share_mass)):
            self.share_mass[at] = share_mass[at]
        for at in range(len(whole_mass)):
            self.whole_mass[at] = whole_mass[at]
        self.mix_ranks, self.mix_steps, self.mix_counts = len(cpus), len(thresholds), counts
        for milli in range(WHOLE + 1):
            at = 0
            while at < self.mix_steps and <int>thresholds[at] <= milli:
                at += 1
            self.mix_step[milli] = <unsigned char>at
        self.rebuild()

    def set_completion(self, list tables, list shares, int cpu_buckets, int cpu_shift, int wholes):
        """Expected completion by kind; before ``set_mix``, which works out all scores anew."""
        cdef Py_ssize_t kind, size = cpu_buckets * (wholes + 1)
        cdef array values
        self.completion = <int*>grown(self.completion, len(tables) * size, sizeof(int))
        self.partial = <int*>grown(self.partial, len(tables) * WHOLE, sizeof(int))
        self.partial_cpu = <int*>grown(self.partial_cpu, len(tables) * WHOLE, sizeof(int))
        for kind in range(len(tables)):
            values = tables[kind]
            memcpy(self.completion + kind * size, ints(values), size * sizeof(int))
            values = shares[kind].worth
            memcpy(self.partial + kind * WHOLE, ints(values), WHOLE * sizeof(int))
            values = shares[kind].cpu
            memcpy(self.partial_cpu + kind * WHOLE, ints(values), WHOLE * sizeof(int))
        self.cpu_buckets, self.cpu_shift, self.wholes = cpu_buckets, cpu_shift, wholes

    # -- rows

    cdef int find_row(self, MemberNeeds* needs) noexcept nogil:
        """The row of *needs*, whatever memory it asks for, or -1."""
        cdef unsigned long long mark = hashed(needs)
        cdef int row
        cdef MemberNeeds* other
        while self.index[mark & (INDEX_SIZE - 1)]:
            row = self.index[mark & (INDEX_SIZE - 1)] - 1
            other = &self.row_needs[row]
            if (
                other.cpu == needs.cpu and other.gpu_memory == needs.gpu_memory
                and other.gpu_count == needs.gpu_count and other.gpu_milli == needs.gpu_milli
                and other.models == needs.models and other.near == needs.near
            ):
                return row
            mark += 1
        return -1

    cdef int row_of(self, MemberNeeds* needs) except -1:
        """The row of *needs*, current; one is made, in the place of the least recently used if need be."""
        cdef int row, other
        self.tick += 1
        row = self.find_row(needs)
        if row >= 0:
            self.row_needs[row].used_at = self.tick
            return row
        if self.rows < ROWS_MAX:
            row = self.rows
            self.rows += 1
        else:
            row = 0
            for other in range(1, ROWS_MAX):
                if self.row_needs[other].used_at < self.row_needs[row].used_at:
                    row = other
            self.forget_row(row)
        self.row_needs[row] = needs[0]
        self.row_needs[row].memory = 0
        self.row_needs[row].used_at = self.tick
        self.row_needs[row].cpu_class = self.cpu_class_of(needs.cpu)
        self.index_row(row)
        self.sort_rows()
        self.build_row(row)
        return row

    cdef void sort_rows(self) noexcept nogil:
        """Put rows in order; it is seldom that a class is new."""
        cdef int at, back, moved, row, end
        cdef bint same_devices
        cdef MemberNeeds* needs
        cdef MemberNeeds* before
        while self.rows_ordered < self.rows:
            self.order[self.rows_ordered] = <unsigned short>self.rows_ordered
            self.rows_ordered += 1
        # All but one are in order already, so that an insertion sort needs one pass.
        for at in range(1, self.rows):
            moved = self.order[at]
            back = at
            while back > 0 and self.goes_after(self.order[back - 1], moved):
                self.order[back] = self.order[back - 1]
                back -= 1
            self.order[back] = <unsigned short>moved
        self.first_whole = self.first_share = 0
        end = self.rows
        at = self.rows - 1
        while at >= 0:
            row = self.order[at]
            needs = &self.row_needs[row]
            self.first_whole += needs.gpu_count == 0
            self.first_share += needs.gpu_count == 0 or needs.gpu_milli == WHOLE
            before = &self.row_needs[self.order[at - 1 if at else 0]]
            same_devices = at > 0 and before.gpu_count == needs.gpu_count and before.gpu_milli == needs.gpu_milli
            self.places[at] = Place(
                needs.cpu, row, needs.gpu_milli, needs.gpu_count, needs.cpu_class, end,
                needs.models != 0 or needs.gpu_memory != 0 or needs.near != 0
                or (needs.gpu_count > 1 and needs.gpu_milli < WHOLE),
            )
            if not same_devices:
                end = at
            at -= 1

    cdef bint goes_after(self, int row, int other) noexcept nogil:
        cdef MemberNeeds* a = &self.row_needs[row]
        cdef MemberNeeds* b = &self.row_needs[other]
        cdef int kind_of_a = 0 if a.gpu_count == 0 else 1 if a.gpu_milli == WHOLE else 2
        cdef int kind_of_b = 0 if b.gpu_count == 0 else 1 if b.gpu_milli == WHOLE else 2
        if kind_of_a != kind_of_b:
            return kind_of_a > kind_of_b
        if a.gpu_milli != b.gpu_milli:
            return a.gpu_milli > b.gpu_milli
        if a.gpu_count != b.gpu_count:
            return a.gpu_count > b.gpu_count
        if a.cpu != b.cpu:
            return a.cpu > b.cpu
        if a.gpu_memory != b.gpu_memory:
            return a.gpu_memory > b.gpu_memory
        if a.models != b.models:
            return a.models > b.models
        return a.near > b.near

    cdef void index_row(self, int row) noexcept nogil:
        cdef unsigned long long mark = hashed(&self.row_needs[row])
        while self.index[mark & (INDEX_SIZE - 1)]:
            mark += 1
        self.index[mark & (INDEX_SIZE - 1)] = <unsigned short>(row + 1)

    cdef int cpu_class_of(self, long long cpu) noexcept nogil:
        cdef int at, unused = -1
        for at in range(self.class_count):
            if self.class_uses[at] == 0:
                unused = at
            elif self.class_cpu[at] == cpu:
                self.class_uses[at] += 1
                return at
        if unused < 0:
            unused = self.class_count
            self.class_count += 1
        self.class_cpu[unused] = cpu
        self.class_uses[unused] = 1
        return unused

    cdef void forget_row(self, int row) noexcept nogil:
        cdef int other
        self.class_uses[self.row_needs[row].cpu_class] -= 1
        memset(self.index, 0, sizeof(self.index))
        for other in range(self.rows):
            if other != row:
                self.index_row(other)

    def forget_rows(self):
        """Drop every row; they are made again as they are asked for."""
        self.rows = 0
        self.class_count = self.first_whole = self.first_share = 0
        self.rows_ordered = 0
        memset(self.index, 0, sizeof(self.index))

    cdef void build_row(self, int row) noexcept nogil:
        cdef Py_ssize_t slot, block
        for block in range(self.block_count):
            self.maxima[row * self.block_capacity + block] = 0
            memset(self.cells + (block * ROWS_MAX + row) * BLOCK, 0, BLOCK * sizeof(short))
        for slot in range(self.used):
            self.columns[slot * ROWS_MAX + row] = 0
            self.set_cell(row, slot, self.cell(row, slot))

    cdef void rebuild(self) noexcept nogil:
        """Work out everything anew: the mix has changed."""
        cdef int row
        self.settle(self.dirty_count)
        for row in range(self.rows):
            self.build_row(row)

    # -- cells

    cdef void set_cell(self, int row, Py_ssize_t slot, int score) noexcept nogil:
        cdef short* own = &self.columns[slot * ROWS_MAX + row]
        cdef short before = own[0]
        cdef short* line
        cdef short* highest
        if before == score:
            return
        own[0] = <short>score
        line = self.cells + ((slot // BLOCK) * ROWS_MAX + row) * BLOCK
        line[slot % BLOCK] = <short>score
        highest = &self.maxima[row * self.block_capacity + slot // BLOCK]
        if score > highest[0]:
            highest[0] = <short>score
        elif before == highest[0]:
            highest[0] = highest_of(line, BLOCK)

    cdef int cell(self, int row, Py_ssize_t slot) noexcept nogil:
        return self.score(&self.nodes[slot], &self.row_needs[row], 0)

    cdef void touch(self, Py_ssize_t slot, bint grown) noexcept nogil:
        """The node has changed: its column is out of date. *grown*: it may have more of something."""
        cdef Node* node = &self.nodes[slot]
        cdef Py_ssize_t at
        self.version += 1
        node.grown |= grown
        if node.dirty:
            return
        node.dirty = True
        if self.dirty_count == 0:  # it is worked out soon: have its column fetched meanwhile
            for at in range(0, self.rows, 32):
                prefetch(self.columns + slot * ROWS_MAX + at)
        if self.dirty_start + self.dirty_count == self.capacity:
            for at in range(self.dirty_count):
                self.dirty[at] = self.dirty[self.dirty_start + at]
            self.dirty_start = 0
        self.dirty[self.dirty_start + self.dirty_count] = <int>slot
        self.dirty_count += 1

    cdef void settle(self, Py_ssize_t limit) noexcept nogil:
        """Bring up to *limit* columns up to date, the oldest first."""
        cdef Py_ssize_t slot
        while limit > 0 and self.dirty_count > 0:
            slot = self.dirty[self.dirty_start]
            self.dirty_start += 1
            self.dirty_count -= 1
            self.nodes[slot].dirty = False
            self.refresh(slot)
            limit -= 1
        if self.dirty_count == 0:
            self.dirty_start = 0

    cdef void settle_row(self, int row) noexcept nogil:
        """Bring one row up to date."""
        cdef Py_ssize_t at
        for at in range(self.dirty_start, self.dirty_start + self.dirty_count):
            self.set_cell(row, self.dirty[at], self.cell(row, self.dirty[at]))

    cdef void refresh(self, Py_ssize_t slot) noexcept nogil:
        cdef int row
        cdef Node* node = &self.nodes[slot]
        if self.policy <= FGD and node.alive and not node.draining and node.model >= 0:
            self.refresh_alike(slot)
            return
        for row in range(self.rows):
            self.set_cell(row, slot, self.cell(row, slot))

    cdef void refresh_alike(self, Py_ssize_t slot) noexcept nogil:
        """By worth, the column of a node whose devices are of one model."""
        cdef short scores[ROWS_MAX]
        cdef Node* node = &self.nodes[slot]
        memset(scores, 0, sizeof(scores))
        # What did not fit before still does not when the node has less than before.
        self.score_alike(node, scores, NULL if node.grown else self.columns + slot * ROWS_MAX)
        node.grown = False
        self.set_column(slot, scores)

    cdef void set_column(self, Py_ssize_t slot, const short* scores) noexcept nogil:
        """Set the cells of a node, of as many as ROWS_MAX *scores*; what is beyond the rows is 0."""
        cdef short* column = self.columns + slot * ROWS_MAX
        cdef short* cells = self.cells + (slot // BLOCK) * ROWS_MAX * BLOCK + slot % BLOCK
        cdef short* maxima = self.maxima + slot // BLOCK
        cdef short* highest
        cdef unsigned short rows[ROWS_MAX]
        cdef int at, row, changed = differing(column, scores, self.rows, rows)
        cdef short score, before
        for at in range(changed):  # lines far apart: have them fetched side by side
            prefetch(cells + rows[at] * BLOCK)
            prefetch(maxima + rows[at] * self.block_capacity)
        for at in range(changed):
            row = rows[at]
            before, score = column[row], scores[row]
            column[row] = score
            cells[row * BLOCK] = score
            highest = maxima + row * self.block_capacity
            if score > highest[0]:
                highest[0] = score
            elif before == highest[0]:
                highest[0] = highest_of(cells + row * BLOCK - slot % BLOCK, BLOCK)

    cdef void score_alike(self, Node* node, short* scores, const short* fitted) noexcept nogil:
        """As ``score`` for each row that fits; what rows have in common is found once.

        *fitted*: only rows that are not 0 there are looked at; NULL: all.
        """
        cdef Place* place
        cdef MemberNeeds* needs
        cdef Served served[ROWS_MAX]
        cdef bint is_served[ROWS_MAX]
        cdef Served* of_class = NULL
        cdef Devices devices
        cdef int at = 0, row, wholes = node.whole_free
        cdef long long before, cpu_free = node.cpu_free
        if not self.look_at_devices(node, &devices):
            for row in range(self.rows):
                scores[row] = <short>self.score(node, &self.row_needs[row], 0)
            return
        if self.policy == FGD:
            memset(is_served, 0, self.class_count * sizeof(bint))
        before = self.worth_now(node, &devices)
        while at < self.rows:
            place = &self.places[at]
            if place.cpu > cpu_free:
                at = place.group_end  # within a group the CPU grows
                continue
            if at >= self.first_share:
                if place.gpu_milli > node.most_free:
                    return
            elif at >= self.first_whole and place.gpu_count > wholes:
                at = self.first_share  # they are in order of their number
                continue
            at += 1
            row = place.row
            if fitted != NULL and fitted[row] == 0:
                continue
            needs = &self.row_needs[row]
            if place.is_special:
                if needs.models and not self.may[needs.models * self.model_capacity + node.model]:
                    continue
                if needs.near or needs.gpu_memory or (needs.gpu_count > 1 and needs.gpu_milli < WHOLE):
                    scores[row] = <short>self.score(node, needs, 0)
                    continue
            if self.policy == FGD:
                of_class = &served[place.cpu_class]
                if not is_served[place.cpu_class]:
                    is_served[place.cpu_class] = True
                    self.serve(of_class, &devices, cpu_free - place.cpu)
            scores[row] = <short>worth_score(
                self.policy, before, self.worth_after(of_class, &devices, cpu_free - place.cpu, needs), needs)

    cdef int score_by_worth(self, Node* node, MemberNeeds* needs) noexcept nogil:
        """``score`` of one member that fits a node of one model, as ``score_alike`` finds it; -1: not this way."""
        cdef Served then
        cdef Devices devices
        cdef long long cpu_left = node.cpu_free - needs.cpu
        if needs.gpu_memory or (needs.gpu_count > 1 and needs.gpu_milli < WHOLE):
            return -1
        if not self.look_at_devices(node, &devices):
            return -1
        if self.policy == FGD:
            self.serve(&then, &devices, cpu_left)
        return worth_score(self.policy, self.worth_now(node, &devices),
                           self.worth_after(&then, &devices, cpu_left, needs), needs)

    cdef bint look_at_devices(self, Node* node, Devices* devices) noexcept nogil:
        """Sum up the devices of a node of one model; ``False`` when they differ too much."""
        cdef int at, other, milli
        cdef const int* partial
        cdef const int* cpu
        devices.kind = self.kind_of[node.model]
        devices.count = 0
        devices.partials = 0
        devices.asked = 0
        devices.wholes = node.whole_free
        partial = self.partial + devices.kind * WHOLE
        cpu = self.partial_cpu + devices.kind * WHOLE
        for at in range(node.gpu_count):
            milli = node.gpus[at].milli_free
            if milli == 0:
                continue
            if self.policy == COMPLETION and milli < WHOLE:
                devices.partials += partial[milli]
                devices.asked += cpu[milli]
            for other in range(devices.count):
                if devices.free[other] == milli:
                    devices.times[other] += 1
                    break
            else:
                if devices.count == DISTINCT_MAX:
                    return False
                devices.free[devices.count] = milli
                devices.steps[devices.count] = self.mix_step[milli]
                devices.times[devices.count] = 1
                devices.count += 1
        return True

    cdef long long worth_now(self, Node* node, Devices* devices) noexcept nogil:
        cdef Served now
        if self.policy == COMPLETION:
            return self.completed(devices.kind, node.cpu_free, node.whole_free, devices.partials, devices.asked)
        self.serve(&now, devices, node.cpu_free)
        return now.use + self.whole_use(now.wholes, node.whole_free)

    cdef long long worth_with(self, Served* served, Devices* devices, long long cpu_left, int free,
                              int milli) noexcept nogil:
        """Of a node once *milli* of a device with *free* are gone, and *cpu_left* is left."""
        cdef int left = free - milli
        cdef const int* partial
        cdef const int* cpu
        cdef long long partials, asked
        if self.policy != COMPLETION:
            return (
                served.use + served.shares[self.mix_step[left]] * left - served.shares[self.mix_step[free]] * free
                + self.whole_use(served.wholes, devices.wholes - (free == WHOLE))
            )
        partial = self.partial + devices.kind * WHOLE
        cpu = self.partial_cpu + devices.kind * WHOLE
        partials, asked = devices.partials + partial[left], devices.asked + cpu[left]
        if free == WHOLE:
            return self.completed(devices.kind, cpu_left, devices.wholes - 1, partials, asked)
        return self.completed(devices.kind, cpu_left, devices.wholes, partials - partial[free], asked - cpu[free])

    cdef long long worth_after(self, Served* served, Devices* devices, long long cpu_left,
                                   MemberNeeds* needs) noexcept nogil:
        """Of a node once one member has its part; *served* is for FGD, by *cpu_left*, which is what is left then."""
        cdef int at, wholes = devices.wholes
        cdef long long best = -1
        if needs.gpu_count == 0 or needs.gpu_milli == WHOLE:
            wholes -= needs.gpu_count
            if self.policy == COMPLETION:
                return self.completed(devices.kind, cpu_left, wholes, devices.partials, devices.asked)
            best = served.use + self.whole_use(served.wholes, wholes)
            return best - served.shares[self.mix_steps] * WHOLE * needs.gpu_count
        for at in range(devices.count):
            if devices.free[at] >= needs.gpu_milli:
                best = max(best, self.worth_with(served, devices, cpu_left, devices.free[at], needs.gpu_milli))
        return best

    cdef void serve(self, Served* found, Devices* devices, long long cpu_left) noexcept nogil:
        """What is left to serve the mix with so much CPU."""
        cdef int rank = devices.kind * (self.mix_ranks + 1) + self.rank(cpu_left), at
        cdef long long value = 0
        found.shares = self.share_mass + rank * (self.mix_steps + 1)
        found.wholes = self.whole_mass + rank * (self.mix_counts + 1)
        for at in range(devices.count):
            value += found.shares[devices.steps[at]] * devices.times[at] * devices.free[at]
        found.use = value

    cdef Py_ssize_t best(self, int row, MemberNeeds* needs) noexcept nogil:
        """The first node whose score is the highest, or in its band; -1 when none fits."""
        cdef short* highest = self.maxima + row * self.block_capacity
        cdef short* line
        cdef short found = 0
        cdef Py_ssize_t at, block
        if needs.memory or (self.is_priced and needs.gpu_count):
            return self.best_with_limits(row, needs, needs.gpu_milli if needs.gpu_count else 0)
        for at in range(self.block_count):
            found = highest[at] if highest[at] > found else found
        if found == 0:
            return -1
        found = <short>self.as_good_as(found)
        block = 0
        while highest[block] < found:
            block += 1
        line = self.cells + (block * ROWS_MAX + row) * BLOCK
        at = 0
        while line[at] < found:
            at += 1
        return block * BLOCK + at

    cdef Py_ssize_t best_with_limits(self, int row, MemberNeeds* needs, int milli) noexcept nogil:
        """As ``best``, of nodes that have the memory, and with the price of *milli* of their model.

        A block's maximum, less the price when all its nodes are of one model, is as much as any of them can have: the
        block where it is highest is looked at first, and then only those where it is higher than what was found.
        """
        cdef int found = 0, bound, highest = 0
        cdef Py_ssize_t at, block, first = 0
        cdef short* line
        cdef const short* maxima = self.maxima + row * self.block_capacity
        highest = highest_of(maxima, <int>self.block_count)
        if highest == 0:
            return -1
        if milli == 0 or not self.is_priced:
            milli = 0
            while maxima[first] < highest:
                first += 1
        else:
            highest = 0
            for block in range(self.block_count):
                bound = self.block_bound(row, block, milli)
                if bound > highest:
                    highest, first = bound, block
        found = self.best_in_block(row, first, needs, milli, 0)
        if found < highest:
            for block in range(self.block_count):
                if maxima[block] > found and self.block_bound(row, block, milli) > found:
                    found = self.best_in_block(row, block, needs, milli, found)
        if found == 0:
            return -1
        found = self.as_good_as(found)
        for block in range(self.block_count):
            if maxima[block] < found or self.block_bound(row, block, milli) < found:
                continue
            line = self.cells + (block * ROWS_MAX + row) * BLOCK
            for at in range(BLOCK):
                if (
                    line[at] >= found and self.nodes[block * BLOCK + at].memory_free >= needs.memory
                    and (milli == 0 or self.charged(line[at], &self.nodes[block * BLOCK + at], milli) >= found)
                ):
                    return block * BLOCK + at
        return -1  # not reached: the best one is there

    cdef int best_in_block(self, int row, Py_ssize_t block, MemberNeeds* needs, int milli, int over) noexcept nogil:
        """The highest charged score of a node that has the memory, if over *over*; else *over*."""
        cdef short* line = self.cells + (block * ROWS_MAX + row) * BLOCK
        cdef Py_ssize_t at
        cdef int value
        for at in range(BLOCK):
            if line[at] > over and self.nodes[block * BLOCK + at].memory_free >= needs.memory:
                value = self.charged(line[at], &self.nodes[block * BLOCK + at], milli) if milli else line[at]
                if value > over:
                    over = value
        return over

    # -- prices of models

    cdef long long price(self, int model) noexcept nogil:
        return 0 if model < 0 else self.price_of[self.kind_of[model]]

    cdef int charged(self, int score, Node* node, int milli) noexcept nogil:
        """The *score* of a node that fits, less the price of *milli* of a device."""
        return max(1, score - <int>((self.price(node.model) * milli) >> PRICE_SHIFT))

    cdef int block_bound(self, int row, Py_ssize_t block, int milli) noexcept nogil:
        """No node of the block has a higher charged score."""
        cdef int highest = self.maxima[row * self.block_capacity + block], model = self.block_model[block]
        if milli == 0 or highest == 0 or model < 0:
            return highest
        return max(1, highest - <int>((self.price(model) * milli) >> PRICE_SHIFT))

    cdef void place_in_block(self, Py_ssize_t slot) noexcept nogil:
        """Note the model of a node that was added."""
        cdef int* model = &self.block_model[slot // BLOCK]
        if model[0] == BLOCK_EMPTY:
            model[0] = self.nodes[slot].model
        elif model[0] != self.nodes[slot].model:
            model[0] = BLOCK_MIXED

    cdef void price_models(self, long long total_free) noexcept nogil:
        """See ``reference/model_price.py``."""
        cdef long long expected[KINDS_MAX]
        cdef long long free_of[KINDS_MAX]
        cdef long long part, room, shortage = 0, level
        cdef int kind, at
        if self.named_count == 0:
            return
        for kind in range(1, self.kinds + 1):
            expected[kind] = 0
            free_of[kind] = 0 if self.model_of[kind] < 0 else self.model_free[self.model_of[kind]]
        for at in range(self.named_count):
            room = 0
            for kind in range(1, self.kinds + 1):
                if self.named_kinds[at] >> kind & 1:
                    room += free_of[kind]
            if room == 0:
                continue
            for kind in range(1, self.kinds + 1):
                if self.named_kinds[at] >> kind & 1:
                    expected[kind] += self.named_demand[at] * free_of[kind] // room
        for kind in range(1, self.kinds + 1):
            part = free_of[kind] * DEMAND_UNIT // total_free if total_free else 0
            shortage += max(0, expected[kind] - part)
        level = min(<long long>PRICE_MAX, PRICE_SLOPE * max(0, shortage - SHORTAGE_FREE))
        self.is_priced = False
        for kind in range(1, self.kinds + 1):
            part = free_of[kind] * DEMAND_UNIT // total_free if total_free else 0
            self.price_of[kind] = 0
            if part and level:
                self.price_of[kind] = level * max(0, min(part, 10 * expected[kind] - FILLED_TENTHS * part)) // part
                self.is_priced = self.is_priced or self.price_of[kind] > 0

    cdef int as_good_as(self, int score) noexcept nogil:
        """The lowest score of which the first node is taken when *score* is the highest."""
        if self.policy != COMPLETION:
            return score
        return score - COMPLETION_BAND if score > COMPLETION_BAND else 1

    # -- whether it fits, and how well

    cdef bint usable(self, Node* node, int at, MemberNeeds* needs, unsigned long long call) noexcept nogil:
        """*call*: only devices that it listed; 0: any."""
        cdef Gpu* gpu = &node.gpus[at]
        return (
            gpu.milli_free >= needs.gpu_milli
            and gpu.memory_free >= needs.gpu_memory
            and (needs.models == 0 or self.may[needs.models * self.model_capacity + gpu.model])
            and (call == 0 or details(node)[at].allowed == call)
        )

    cdef bint fits(self, Node* node, MemberNeeds* needs, unsigned long long call) noexcept nogil:
        cdef int at, found = 0
        if not node.alive or node.draining or node.cpu_free < needs.cpu or node.memory_free < needs.memory:
            return False
        if call and node.allowed != call:
            return False
        if needs.gpu_count == 0:
            return True
        if node.gpu_count < needs.gpu_count or node.most_free < needs.gpu_milli:
            return False
        if needs.gpu_milli == WHOLE and node.whole_free < needs.gpu_count:
            return False
        for at in range(node.gpu_count):
            found += self.usable(node, at, needs, call)
            if found == needs.gpu_count:
                return needs.near == 0 or self.near_set(node, needs, call, NULL)
        return False

    cdef int score(self, Node* node, MemberNeeds* needs, unsigned long long call) noexcept nogil:
        """0 when it does not fit, else up to SCORE_MAX. The prose is in the reference."""
        cdef long long taken, left, value, load, other
        cdef int count, at
        cdef int* chosen = self.scratch
        if not self.fits(node, needs, call):
            return 0
        taken = <long long>needs.gpu_milli * needs.gpu_count
        if self.policy <= FGD:
            if call == 0 and node.model >= 0 and not (node.several_domains and needs.gpu_count):
                count = self.score_by_worth(node, needs)
                if count >= 0:
                    return count
            count = self.pick(node, needs, call, chosen)
            value = self.worth_without(node, 0, NULL, 0, 0)
            left = self.worth_without(node, needs.cpu, chosen, count, needs.gpu_milli)
            return worth_score(self.policy, value, left, needs)
        if self.policy == FIRST_FIT or self.policy == RANDOM:
            return 1
        if self.policy == PACKING:
            if needs.gpu_count and needs.gpu_milli < WHOLE:
                for at in range(node.gpu_count):
                    if node.gpus[at].milli_free < WHOLE and self.usable(node, at, needs, call):
                        return 3
            if node.cpu_free < node.cpu or node.milli_free < <long long>WHOLE * node.gpu_count:
                return 2
            return 1
        if self.policy == SPREAD:
            value = <long long>WHOLE * node.gpu_count
            load = (value - node.milli_free) * 1000 // value if value else 0
            other = (node.cpu - node.cpu_free) * 1000 // node.cpu if node.cpu else 0
            if needs.gpu_count == 0:
                load, other = other, load
            return clamped(SCORE_MAX - load * 32 - other // 32)
        if self.policy == DEVICE_SCORE:
            count = self.pick(node, needs, call, chosen)
            if count == 0:
                return clamped(SCORE_MAX - ((node.cpu - node.cpu_free) * 32_000 // node.cpu if node.cpu else 0))
            value = 0
            for at in range(count):
                value += details(node)[chosen[at]].score
            return clamped(1 + value * 32 // count)
        left = node.milli_free - taken + (node.cpu_free - needs.cpu) // CORES_OF_A_GPU
        if self.policy == BEST_FIT:
            return clamped(SCORE_MAX - left)
        value = SCORE_EVEN - left // 2
        if value < 1:
            value = 1
        if self.policy == TOPOLOGY:
            return clamped(value + (SCORE_EVEN - 1 if self.in_one_domain(node, needs, call) else 0))
        # affinity: like with like
        if needs.gpu_count == 0:
            return clamped(value + (SCORE_EVEN - 1 if node.gpu_count == 0 else 0))
        count = 0
        for at in range(node.gpu_count):
            count += 0 < node.gpus[at].milli_free < WHOLE
        if needs.gpu_milli < WHOLE:
            return clamped(value + (SCORE_EVEN - 1 if count else 0))
        return clamped(value + (0 if count else SCORE_EVEN - 1))

    cdef bint near_set(self, Node* node, MemberNeeds* needs, unsigned long long call, int* chosen) noexcept nogil:
        """As ``near_devices``, of the devices that may serve; *chosen* may be NULL."""
        cdef unsigned long long usable = 0
        cdef int at, count = min(node.gpu_count, <int>NEAR_MAX)
        if node.near == NULL:
            return False
        for at in range(count):
            usable |= <unsigned long long>self.usable(node, at, needs, call) << at
        return near_devices(node.near, count, needs.near, usable, needs.gpu_count, chosen)

    cdef int pick(self, Node* node, MemberNeeds* needs, unsigned long long call, int* chosen) noexcept nogil:
        """The devices that a member gets on a node that it fits, lowest number first; gives how many."""
        cdef int at, best, taken, other, wanted = needs.gpu_count
        cdef bint is_taken
        cdef Gpu* gpus = node.gpus
        cdef long long value, best_value
        if wanted == 0:
            return 0
        if needs.near:
            self.near_set(node, needs, call, chosen)
            return wanted
        if needs.gpu_milli == WHOLE and node.several_domains and self.policy != DEVICE_SCORE:
            return self.pick_in_domains(node, needs, call, chosen)
        if self.policy <= FGD and wanted == 1:
            chosen[0] = self.pick_by_worth(node, needs, call)
            return 1
        for taken in range(wanted):
            best = -1
            best_value = 0
            for at in range(node.gpu_count):
                if not self.usable(node, at, needs, call):
                    continue
                is_taken = False
                for other in range(taken):
                    is_taken = is_taken or chosen[other] == at
                if is_taken:
                    continue
                if self.policy == SPREAD:
                    value = gpus[at].milli_free
                elif self.policy == DEVICE_SCORE:
                    value = details(node)[at].score
                elif self.policy == FIRST_FIT or self.policy == RANDOM:
                    value = 0
                else:
                    value = -gpus[at].milli_free
                if best < 0 or value > best_value or (value == best_value and self.policy != FIRST_FIT
                                                      and self.policy != RANDOM and roomier(&gpus[best], &gpus[at],
                                                                                            self.policy == SPREAD)):
                    best, best_value = at, value
            chosen[taken] = best
        sort(chosen, wanted)
        return wanted

    cdef int pick_by_worth(self, Node* node, MemberNeeds* needs, unsigned long long call) noexcept nogil:
        """The device whose share costs the node the least of its worth."""
        cdef Gpu* gpus = node.gpus
        cdef int at, best = -1
        cdef Devices devices
        cdef Served served
        cdef long long value, best_value = 0
        cdef bint alike = node.model >= 0 and self.look_at_devices(node, &devices)
        if alike and self.policy == FGD:
            self.serve(&served, &devices, node.cpu_free - needs.cpu)
        for at in range(node.gpu_count):
            if not self.usable(node, at, needs, call):
                continue
            if best >= 0 and alike and gpus[at].milli_free == gpus[best].milli_free:
                value = best_value
            elif alike:
                value = self.worth_with(&served, &devices, node.cpu_free - needs.cpu, gpus[at].milli_free,
                                        needs.gpu_milli)
            else:
                value = self.worth_without(node, needs.cpu, &at, 1, needs.gpu_milli)
            if best < 0 or value > best_value or (value == best_value and roomier(&gpus[best], &gpus[at], False)):
                best, best_value = at, value
        return best

    cdef int pick_in_domains(self, Node* node, MemberNeeds* needs, unsigned long long call, int* chosen) noexcept nogil:
        """Devices that are close: of the tightest domain with enough of them, else of the largest, and so on."""
        cdef int* counts = self.scratch + node.gpu_count
        cdef int at, domain, best, taken = 0, wanted = needs.gpu_count
        for at in range(node.gpu_count):
            counts[at] = 0
        for at in range(node.gpu_count):
            counts[details(node)[at].domain] += self.usable(node, at, needs, call)
        while taken < wanted:
            best = -1
            for domain in range(node.gpu_count):
                if counts[domain] >= wanted - taken and (best < 0 or counts[domain] < counts[best]):
                    best = domain
            if best < 0:
                for domain in range(node.gpu_count):
                    if counts[domain] > 0 and (best < 0 or counts[domain] > counts[best]):
                        best = domain
            for at in range(node.gpu_count):
                if taken < wanted and details(node)[at].domain == best and self.usable(node, at, needs, call):
                    chosen[taken] = at
                    taken += 1
            counts[best] = 0
        sort(chosen, wanted)
        return wanted

    cdef bint in_one_domain(self, Node* node, MemberNeeds* needs, unsigned long long call) noexcept nogil:
        cdef int* counts = self.scratch + node.gpu_count
        cdef int at
        if needs.gpu_count < 2 or not node.several_domains:
            return True
        for at in range(node.gpu_count):
            counts[at] = 0
        for at in range(node.gpu_count):
            counts[details(node)[at].domain] += self.usable(node, at, needs, call)
        for at in range(node.gpu_count):
            if counts[at] >= needs.gpu_count:
                return True
        return False

    # -- what the typical mix makes of what is free

    cdef int rank(self, long long cpu_free) noexcept nogil:
        """How many of the mix's distinct CPU demands are served by as much."""
        cdef int low = 0, high = self.mix_ranks, middle
        while low < high:
            middle = (low + high) // 2
            if self.mix_cpus[middle] <= cpu_free:
                low = middle + 1
            else:
                high = middle
        return low

    cdef long long use_of_share(self, int kind, int rank, int milli) noexcept nogil:
        return milli * self.share_mass[
            (kind * (self.mix_ranks + 1) + rank) * (self.mix_steps + 1) + self.mix_step[milli]
        ]

    cdef long long use_of_whole(self, int kind, int rank, int count) noexcept nogil:
        return self.whole_use(self.whole_mass + (kind * (self.mix_ranks + 1) + rank) * (self.mix_counts + 1), count)

    cdef long long whole_use(self, const long long* masses, int count) noexcept nogil:
        return masses[count if count < self.mix_counts else self.mix_counts] * WHOLE * count

    cdef long long completed(self, int kind, long long cpu_left, int wholes, long long partials,
                             long long asked) noexcept nogil:
        """Expected completion in units: of shares worth *partials* that will ask for so much CPU, and of whole devices."""
        cdef long long more = 0
        if cpu_left < asked:
            partials = (partials * ((cpu_left << PART_BITS) // asked)) >> PART_BITS
        cpu_left = max(0, cpu_left - (asked * CPU_KEPT >> 4))
        if wholes > self.wholes:
            more = <long long>(wholes - self.wholes) * WHOLE * UNIT
            wholes = self.wholes
        return partials + more + worth_between(
            self.completion + (kind * (self.wholes + 1) + wholes) * self.cpu_buckets, self.cpu_buckets, self.cpu_shift,
            cpu_left)

    cdef long long worth_without(self, Node* node, long long cpu, int* chosen, int count, int milli) noexcept nogil:
        """Of a node once *cpu*, and *milli* of each of the *chosen* are gone."""
        cdef int* left = self.scratch + 2 * (self.scratch_size // 3)
        cdef int at, other, wholes, kind, model, rank = self.rank(node.cpu_free - cpu)
        cdef long long total = 0, partials = 0, asked = 0, cpu_left = node.cpu_free - cpu
        cdef bint is_first
        for at in range(node.gpu_count):
            left[at] = node.gpus[at].milli_free
        for at in range(count):
            left[chosen[at]] -= milli
        for at in range(node.gpu_count):
            kind = self.kind_of[node.gpus[at].model]
            if self.policy != COMPLETION:
                total += self.use_of_share(kind, rank, left[at])
            elif left[at] < WHOLE:
                partials += self.partial[kind * WHOLE + left[at]]
                asked += self.partial_cpu[kind * WHOLE + left[at]]
        if self.policy == COMPLETION:
            # No device is left out by this: of no whole ones the worth is nothing.
            total = self.completed(0, cpu_left, 0, partials, asked)
            cpu_left = max(0, cpu_left - (asked * CPU_KEPT >> 4))
        for at in range(1 if node.model >= 0 else node.gpu_count):
            model = node.gpus[at].model
            is_first = True
            for other in range(at):
                is_first = is_first and node.gpus[other].model != model
            if not is_first:
                continue
            kind = self.kind_of[model]
            wholes = 0
            for other in range(at, node.gpu_count):
                wholes += node.gpus[other].model == model and left[other] == WHOLE
            if self.policy == COMPLETION:
                total += self.completed(kind, cpu_left, wholes, 0, 0)
            else:
                total += self.use_of_whole(kind, rank, wholes)
        return total


cdef inline bint roomier(Gpu* a, Gpu* b, bint least) noexcept nogil:
    """Whether *b* is to be taken before *a*, by device memory."""
    return b.memory_free > a.memory_free if least else b.memory_free < a.memory_free


cdef inline unsigned long long hashed(MemberNeeds* needs) noexcept nogil:
    cdef unsigned long long z = <unsigned long long>needs.cpu * <unsigned long long>0x9E3779B97F4A7C15
    z ^= <unsigned long long>(needs.gpu_milli * 67 + needs.gpu_count) * <unsigned long long>0x165667B19E3779F9
    z ^= <unsigned long long>(needs.gpu_memory * 31 + needs.models + needs.near * 8191) * <unsigned long long>0x27D4EB2F165667C5
    return z ^ (z >> 29) ^ (z >> 47)


cdef void sort(int* numbers, int count) noexcept nogil:
    cdef int at, back, number
    for at in range(1, count):
        number = numbers[at]
        back = at
        while back > 0 and numbers[back - 1] > number:
            numbers[back] = numbers[back - 1]
            back -= 1
        numbers[back] = number
