# cython: cdivision=True
"""What will be free where and when, compiled. Contract and prose: ``reference/forecast.py``."""

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from libc.math cimport INFINITY, fmax, isinf
from libc.stdlib cimport free as c_free, qsort
from libc.string cimport memcpy, memmove, memset

from actorgrid.hotpath.capacity import ENDS_MAX as _ENDS_MAX
from actorgrid.hotpath.closeness import near_masks

from .score_table cimport NEAR_MAX, near_bits, near_devices

cdef enum:
    BY_END, BY_START_AND_SEQUENCE, BY_START, BY_END_ALONE

cdef Py_ssize_t ENDS_MAX = _ENDS_MAX


# -- spans in order

cdef inline double key_of(Span* span, int by) noexcept:
    return span.end if by == BY_END or by == BY_END_ALONE else span.start


cdef inline long long tie_of(Span* span, int by) noexcept:
    return span.sequence if by == BY_END or by == BY_START_AND_SEQUENCE else 0


cdef Py_ssize_t first_from(Order* order, double key, long long tie, int by) noexcept:
    """Where the first stands that is not before (*key*, *tie*)."""
    cdef Py_ssize_t low = 0, high = order.used, middle
    cdef double other
    while low < high:
        middle = (low + high) >> 1
        other = key_of(order.items[middle], by)
        if other < key or (other == key and tie_of(order.items[middle], by) < tie):
            low = middle + 1
        else:
            high = middle
    return low


cdef int insert(Order* order, Span* span, int by) except -1:
    cdef Py_ssize_t at, capacity
    cdef Span** items
    if order.used == order.capacity:
        capacity = 2 * order.capacity + 16
        items = <Span**>PyMem_Realloc(order.items, capacity * sizeof(Span*))
        if items == NULL:
            raise MemoryError
        order.items = items
        order.capacity = capacity
    at = first_from(order, key_of(span, by), tie_of(span, by), by)
    memmove(order.items + at + 1, order.items + at, (order.used - at) * sizeof(Span*))
    order.items[at] = span
    order.used += 1
    return 0


cdef void remove(Order* order, Span* span, int by) noexcept:
    cdef Py_ssize_t at = first_from(order, key_of(span, by), tie_of(span, by), by)
    while order.items[at] != span:
        at += 1
    order.used -= 1
    memmove(order.items + at, order.items + at + 1, (order.used - at) * sizeof(Span*))


# -- one span

cdef double end_seen_at(Span* run, double now) noexcept:
    cdef double end = run.start + run.expected_s
    cdef double step = fmax(run.expected_s, 1.0)
    while end <= now:
        end += step
        step *= 2
    return end


cdef inline bint overlaps(Span* kept, double start, double end) noexcept:
    if isinf(kept.start):
        return True
    return kept.start < end and (kept.end > start or isinf(kept.end))


cdef inline bint holds_at(Span* kept, double moment) noexcept:
    if isinf(kept.start):
        return True
    return kept.start <= moment and (moment < kept.end or isinf(kept.end))


# -- what is free

cdef inline void copy(Free* to, Free* source, int gpus) noexcept:
    to.cpu = source.cpu
    to.memory = source.memory
    to.total = source.total
    memcpy(to.milli, source.milli, gpus * sizeof(long long))
    memcpy(to.device_memory, source.device_memory, gpus * sizeof(long long))


cdef inline void change(Free* to, Span* span, int* devices, int count, int sign) noexcept:
    cdef int each
    to.cpu += sign * span.cpu
    to.memory += sign * span.memory
    for each in range(count):
        to.milli[devices[each]] += sign * span.milli
        to.device_memory[devices[each]] += sign * span.device_memory
    to.total += sign * span.milli * count


cdef inline void lower_to(Free* to, Free* other, int gpus) noexcept:
    cdef int each
    to.cpu = min(to.cpu, other.cpu)
    to.memory = min(to.memory, other.memory)
    to.total = 0
    for each in range(gpus):
        to.milli[each] = min(to.milli[each], other.milli[each])
        to.device_memory[each] = min(to.device_memory[each], other.device_memory[each])
        to.total += to.milli[each]


cdef int rank_slots(const void* one, const void* other) noexcept nogil:
    cdef const Slot* a = <const Slot*>one
    cdef const Slot* b = <const Slot*>other
    if a.key != b.key:
        return -1 if a.key < b.key else 1
    return a.index - b.index


cdef int rank_able(const void* one, const void* other) noexcept nogil:
    cdef const Able* a = <const Able*>one
    cdef const Able* b = <const Able*>other
    if a.count != b.count:
        return b.count - a.count
    if a.total != b.total:
        return -1 if a.total < b.total else 1
    return a.number - b.number


cdef class Forecast:
    def __cinit__(self, nodes):
        self.vacant = []
        self.ids = []
        self.awaited = []
        self.names = []
        self.numbers = {}
        self.model_numbers = {}
        self.runs = {}
        self.kept = {}
        self.set_up(list(nodes))

    cdef int set_up(self, list views) except -1:
        cdef Py_ssize_t devices = 0, first = 0
        cdef int number = 0, index
        cdef Node* node
        for view in views:
            devices += len(view.gpus)
            self.gpus_max = max(self.gpus_max, len(view.gpus))
            for gpu in view.gpus:
                self.model_numbers.setdefault(gpu.model, len(self.model_numbers))
        self.node_count = len(views)
        self.nodes = <Node*>PyMem_Calloc(self.node_count + 1, sizeof(Node))
        self.amounts = <long long*>PyMem_Calloc(4 * devices + 4 * self.gpus_max + 1, sizeof(long long))
        self.models = <int*>PyMem_Calloc(devices + 1, sizeof(int))
        self.wanted = <unsigned char*>PyMem_Calloc(len(self.model_numbers) + 1, 1)
        self.allowed = <unsigned char*>PyMem_Calloc(devices + 1, 1)
        self.allowed_on = <unsigned char*>PyMem_Calloc(self.node_count + 1, 1)
        self.slots = <Slot*>PyMem_Calloc(self.gpus_max + 1, sizeof(Slot))
        self.able = <Able*>PyMem_Calloc(self.node_count + 1, sizeof(Able))
        self.touched = <int*>PyMem_Calloc(self.node_count + 1, sizeof(int))
        if (self.nodes == NULL or self.amounts == NULL or self.models == NULL or self.wanted == NULL
                or self.allowed == NULL or self.allowed_on == NULL or self.slots == NULL or self.able == NULL
                or self.touched == NULL):
            raise MemoryError
        self.left.milli = self.amounts + 4 * devices
        self.left.device_memory = self.left.milli + self.gpus_max
        self.here.milli = self.left.device_memory + self.gpus_max
        self.here.device_memory = self.here.milli + self.gpus_max
        for number, view in enumerate(views):
            node = self.nodes + number
            node.first = first
            node.gpus = len(view.gpus)
            node.draining = view.draining
            node.near = near_bits(near_masks(view.name, view.near, len(view.gpus)), node.gpus)
            node.free.cpu = view.cpu_milli_free
            node.free.memory = view.memory_mib_free
            node.free.milli = self.amounts + 4 * first
            node.free.device_memory = node.free.milli + node.gpus
            node.thought.milli = node.free.device_memory + node.gpus
            node.thought.device_memory = node.thought.milli + node.gpus
            for index, gpu in enumerate(view.gpus):
                node.free.milli[index] = gpu.milli_free
                node.free.device_memory[index] = gpu.memory_mib_free
                node.free.total += node.free.milli[index]
                self.models[first + index] = self.model_numbers[gpu.model]
            first += node.gpus
            self.names.append(view.name)
            self.numbers[view.name] = number
        return 0

    def __dealloc__(self):
        cdef Py_ssize_t each
        for each in range(self.spans_used):
            PyMem_Free(self.spans[each])
        PyMem_Free(self.spans)
        if self.nodes != NULL:
            for each in range(self.node_count):
                PyMem_Free(self.nodes[each].runs.items)
                PyMem_Free(self.nodes[each].kept.items)
                c_free(self.nodes[each].near)
        PyMem_Free(self.nodes)
        PyMem_Free(self.amounts)
        PyMem_Free(self.models)
        PyMem_Free(self.wanted)
        PyMem_Free(self.allowed)
        PyMem_Free(self.allowed_on)
        PyMem_Free(self.slots)
        PyMem_Free(self.able)
        PyMem_Free(self.touched)
        PyMem_Free(self.ends.items)
        PyMem_Free(self.endless.items)
        PyMem_Free(self.enters.items)
        PyMem_Free(self.exits.items)

    # -- what is known

    def begin(self, str id, needs, shares, double started_at, double expected_s, long long sequence, *,
              bint counted_in=False):
        """*id* runs on *shares*; unless *counted_in*, they were free so far."""
        cdef Span* span
        assert id not in self.runs, f"{id} runs already"
        span = self.new_span(id, needs, shares, started_at, expected_s)
        span.sequence = sequence
        self.runs[id] = span.slot
        self.place(span)
        self.enlist(span, False)
        if not counted_in:
            self.change_all(span, -1)

    def end(self, str id):
        """*id* runs no longer: what it had is free."""
        cdef Span* span = self.spans[<Py_ssize_t>self.runs.pop(id)]
        self.take_out(span)
        self.unlist(span, False)
        self.change_all(span, 1)
        self.forget(span)

    def stop_at(self, str id, at):
        """The running *id* is to stop by *at*; ``None``: it is let off."""
        cdef Span* span = self.spans[<Py_ssize_t>self.runs[id]]
        cdef double end = span.start + span.expected_s if at is None else at
        self.take_out(span)
        span.stopping = at is not None
        span.end = end
        self.place(span)

    def reserve(self, str id, needs, shares, double start, double expected_s, awaited=frozenset()):
        """Keep *shares* for *id* for *expected_s* from *start*; infinite: from when those *awaited* have ended."""
        cdef Span* span
        assert id not in self.kept, f"{id} has a reservation already"
        span = self.new_span(id, needs, shares, start, expected_s)
        self.awaited[span.slot] = awaited
        self.kept[id] = span.slot
        insert(&self.enters, span, BY_START)
        insert(&self.exits, span, BY_END_ALONE)
        self.enlist(span, True)

    def drop(self, str id):
        """Keep nothing for *id* any more."""
        cdef Span* span = self.spans[<Py_ssize_t>self.kept.pop(id)]
        remove(&self.enters, span, BY_START)
        remove(&self.exits, span, BY_END_ALONE)
        self.unlist(span, True)
        self.forget(span)

    # -- questions

    def earliest(self, str id, needs, double now, double duration_s, double latest=INFINITY, *, bint alone=False):
        """When *id* could first start, where, and whose unknown ends that awaits there; ``None``: not by *latest*."""
        cdef GangNeeds needed
        cdef Span* own = NULL
        cdef Span* span
        cdef Py_ssize_t ended = 0, over = 0, met = 0, known = 0, entering = 0, looked_at = 0, before, each
        cdef double at
        cdef long long total = 0
        cdef int number
        if now > latest:
            return None
        needed = self.read_needs(needs)
        slot = self.kept.get(id)
        if slot is not None:
            own = self.spans[<Py_ssize_t>slot]
        self.question += 1
        for number in range(self.node_count):
            self.nodes[number].count = 0
            self.count(number, &needed, own, alone, now, duration_s, &total)
            if total >= needed.gang:
                return now, self.choose(&needed, own, alone, number + 1, now, duration_s), frozenset()
        self.renew(now)
        if not alone:
            entering = self.enters.used
            known = first_from(&self.exits, INFINITY, 0, BY_END_ALONE)
            while over < known and self.exits.items[over].end <= now:
                over += 1
            met = first_from(&self.enters, now + duration_s, 0, BY_START)
        while looked_at < ENDS_MAX:
            while over < known and self.exits.items[over] == own:
                over += 1
            at = fmax(self.ends.items[ended].end, now) if ended < self.ends.used else INFINITY
            if over < known and self.exits.items[over].end < at:
                at = self.exits.items[over].end
            if isinf(at):
                break
            if at > latest:
                return None
            self.event += 1
            self.touched_count = 0
            before = looked_at
            while ended < self.ends.used and fmax(self.ends.items[ended].end, now) == at:
                self.give_back(self.ends.items[ended])
                self.touch(self.ends.items[ended])
                ended += 1
                looked_at += 1
            if looked_at == before:
                looked_at += 1
            while over < known and self.exits.items[over].end <= at:
                if self.exits.items[over] != own:
                    self.touch(self.exits.items[over])
                over += 1
            while met < entering and self.enters.items[met].start < at + duration_s:
                self.touch(self.enters.items[met])
                met += 1
            for each in range(self.touched_count):
                self.count(self.touched[each], &needed, own, alone, at, duration_s, &total)
            if total >= needed.gang:
                return at, self.choose(&needed, own, alone, self.node_count, at, duration_s), frozenset()
        if not isinf(latest):
            return None
        self.event += 1
        self.touched_count = 0
        for each in range(met, entering):
            self.touch(self.enters.items[each])
        for ended in range(self.endless.used):
            if looked_at >= ENDS_MAX:
                break
            looked_at += 1
            span = self.endless.items[ended]
            self.give_back(span)
            self.touch(span)
            for each in range(self.touched_count):
                self.count(self.touched[each], &needed, own, alone, INFINITY, duration_s, &total)
            if total >= needed.gang:
                shares = self.choose(&needed, own, alone, self.node_count, INFINITY, duration_s)
                return INFINITY, shares, self.awaited_on(shares, ended + 1)
            self.event += 1
            self.touched_count = 0
        return None

    cdef object awaited_on(self, tuple shares, Py_ssize_t endless):
        """Who of those with a known end, and of the first *endless* without one, is on the nodes of *shares*."""
        cdef set found = set()
        cdef Node* node
        cdef Span* span
        cdef Py_ssize_t each
        cdef int item
        here = {self.numbers[name] for name, _ in shares}
        gone = {self.endless.items[each].slot for each in range(endless)}
        for number in here:
            node = self.nodes + <int>number
            for item in range(node.runs.used):
                span = node.runs.items[item].span
                if not isinf(span.end) or span.slot in gone:
                    found.add(self.ids[span.slot])
        return frozenset(found)

    cdef int bind(self, str id, object binding) except -1:
        """Let these reservations, or all but that of *id*, bind for one question."""
        self.question += 1
        if binding is None:
            for slot in self.kept.values():
                self.spans[<Py_ssize_t>slot].binding = self.question
            slot = self.kept.get(id)
            if slot is not None:
                self.spans[<Py_ssize_t>slot].binding = 0
        else:
            for each in binding:
                self.spans[<Py_ssize_t>self.kept[each]].binding = self.question
        return 0

    def closed(self, str id, binding, double end):
        """The nodes where *id*, were it to run until *end*, would meet a *binding* reservation; ``None``: all bind."""
        cdef Span* span
        cdef int each
        self.bind(id, binding)
        self.event += 1
        self.touched_count = 0
        for slot in self.kept.values():
            span = self.spans[<Py_ssize_t>slot]
            if span.binding == self.question and (span.start < end or isinf(span.start)):
                self.touch(span)
        return tuple([self.names[self.touched[each]] for each in range(self.touched_count)])

    def beside(self, str id, needs, names, binding, double now, double end):
        """What the *binding* reservations leave on these nodes to a single one from *now* to *end*, as ``within``."""
        cdef GangNeeds needed = self.read_needs(needs)
        cdef Node* node
        cdef Span* kept
        cdef Span* last
        cdef int number, each
        cdef bint fits
        cdef list found = []
        self.bind(id, binding)
        for name in names:
            known = self.numbers.get(name)
            if known is None:
                continue
            number = known
            node = self.nodes + number
            self.counted += 1
            if not self.members(number, &node.free, &needed, 1):
                continue
            copy(&self.left, &node.free, node.gpus)
            fits = True
            last = NULL
            for each in range(node.kept.used):
                kept = node.kept.items[each].span
                if kept == last or kept.binding != self.question or not (kept.start < end or isinf(kept.start)):
                    continue
                last = kept
                self.counted += 1
                self.spare(node, kept, now)
                lower_to(&self.left, &self.here, node.gpus)
                if not self.members(number, &self.left, &needed, 1):
                    fits = False
                    break
            if fits:
                devices = ()
                if needed.count:
                    devices = tuple([self.slots[each].index for each in range(self.slots_of(node, &self.left, &needed))])
                found.append((name, devices))
        return tuple(found)

    cdef void spare(self, Node* node, Span* kept, double now) noexcept:
        """Into ``here``: what will be left on *node* at the moment when *kept* starts."""
        cdef Span* span
        cdef Here* item
        cdef int each
        cdef bint over
        copy(&self.here, &node.free, node.gpus)
        for each in range(node.runs.used):
            item = node.runs.items + each
            span = item.span
            if isinf(kept.start):
                over = self.ids[span.slot] in self.awaited[kept.slot]
            elif span.stopping:
                over = fmax(span.end, now) <= kept.start
            else:
                over = end_seen_at(span, now) <= kept.start
            if over:
                change(&self.here, span, item.devices, item.count, 1)
        for each in range(node.kept.used):
            item = node.kept.items + each
            span = item.span
            if span == kept or (span.binding == self.question and holds_at(span, kept.start)):
                change(&self.here, span, item.devices, item.count, -1)

    # -- spans

    cdef Span* new_span(self, str id, object needs, object shares, double start, double expected_s) except NULL:
        cdef Span* span
        cdef Span** spans
        cdef Py_ssize_t size = 0, slot, capacity
        cdef int* at
        cdef list here = []
        for name, indexes in shares:
            number = self.numbers.get(name)
            if number is None:
                continue
            for index in indexes:
                if not 0 <= index < self.nodes[<int>number].gpus:
                    raise IndexError(f"node {name!r} has no device {index}")
            here.append((number, indexes))
            size += 2 + len(indexes)
        if self.spans_used == self.spans_capacity and not self.vacant:
            capacity = 2 * self.spans_capacity + 64
            spans = <Span**>PyMem_Realloc(self.spans, capacity * sizeof(Span*))
            if spans == NULL:
                raise MemoryError
            self.spans = spans
            self.spans_capacity = capacity
        span = <Span*>PyMem_Calloc(1, sizeof(Span) + size * sizeof(int))
        if span == NULL:
            raise MemoryError
        try:
            span.cpu = needs.cpu
            span.memory = needs.memory
            span.milli = needs.milli
            span.device_memory = needs.device_memory
        except BaseException:
            PyMem_Free(span)
            raise
        span.start = start
        span.expected_s = expected_s
        span.end = start + expected_s
        span.shares = <int*>(<char*>span + sizeof(Span))
        at = span.shares
        for number, indexes in here:
            at[0] = number
            at[1] = <int>len(indexes)
            at += 2
            for index in indexes:
                at[0] = index
                at += 1
        span.members = <int>len(here)
        if self.vacant:
            slot = self.vacant.pop()
            self.ids[slot] = id
        else:
            slot = self.spans_used
            self.ids.append(id)
            self.awaited.append(None)
            self.spans_used += 1
        self.spans[slot] = span
        span.slot = slot
        return span

    cdef void forget(self, Span* span) noexcept:
        cdef Py_ssize_t slot = span.slot
        self.ids[slot] = self.awaited[slot] = None
        self.spans[slot] = NULL
        self.vacant.append(slot)
        PyMem_Free(span)

    cdef int enlist(self, Span* span, bint kept) except -1:
        """Note its members at their nodes, those of one span side by side."""
        cdef int each
        cdef int* at = span.shares
        cdef Party* party
        cdef Here* items
        for each in range(span.members):
            party = &self.nodes[at[0]].kept if kept else &self.nodes[at[0]].runs
            if party.used == party.capacity:
                items = <Here*>PyMem_Realloc(party.items, (2 * party.capacity + 4) * sizeof(Here))
                if items == NULL:
                    raise MemoryError
                party.items = items
                party.capacity = 2 * party.capacity + 4
            party.items[party.used].span = span
            party.items[party.used].count = at[1]
            party.items[party.used].devices = at + 2
            party.used += 1
            at += 2 + at[1]
        return 0

    cdef void unlist(self, Span* span, bint kept) noexcept:
        cdef int each, item, left
        cdef int* at = span.shares
        cdef Party* party
        for each in range(span.members):
            party = &self.nodes[at[0]].kept if kept else &self.nodes[at[0]].runs
            left = 0
            for item in range(party.used):
                if party.items[item].span != span:
                    if left != item:
                        party.items[left] = party.items[item]
                    left += 1
            party.used = left
            at += 2 + at[1]

    cdef void change_all(self, Span* span, int sign) noexcept:
        cdef int each
        cdef int* at = span.shares
        for each in range(span.members):
            change(&self.nodes[at[0]].free, span, at + 2, at[1], sign)
            at += 2 + at[1]

    cdef int place(self, Span* span) except -1:
        if isinf(span.end):
            return insert(&self.endless, span, BY_START_AND_SEQUENCE)
        return insert(&self.ends, span, BY_END)

    cdef void take_out(self, Span* span) noexcept:
        if isinf(span.end):
            remove(&self.endless, span, BY_START_AND_SEQUENCE)
        else:
            remove(&self.ends, span, BY_END)

    cdef int renew(self, double now) except -1:
        """Move those that have run past their estimates on to when they are expected now."""
        cdef Py_ssize_t front = 0
        cdef Span* span
        while front < self.ends.used and self.ends.items[front].end <= now:
            span = self.ends.items[front]
            if span.stopping:
                front += 1
                continue
            remove(&self.ends, span, BY_END)
            span.end = end_seen_at(span, now)
            self.place(span)
        return 0

    # -- one question

    cdef GangNeeds read_needs(self, object needs) except *:
        cdef GangNeeds found
        cdef Node* node
        memset(&found, 0, sizeof(GangNeeds))
        found.cpu = needs.cpu
        found.memory = needs.memory
        found.milli = needs.milli
        found.device_memory = needs.device_memory
        found.count = needs.count
        found.gang = needs.gang
        found.near = needs.near
        found.apart = needs.apart
        assert found.milli > 0 or not found.count, "a share of nothing"
        models = needs.models
        if models:
            found.models = True
            for model, number in self.model_numbers.items():
                self.wanted[<Py_ssize_t>number] = model in models
        if self.limited:
            self.limited = False
            memset(self.allowed_on, 0, self.node_count)
            if self.node_count:
                node = self.nodes + self.node_count - 1
                memset(self.allowed, 0, node.first + node.gpus)
        within = needs.within
        if within:
            found.within = self.limited = True
            for name, indexes in within.items():
                number = self.numbers.get(name)
                if number is None:
                    continue
                node = self.nodes + <int>number
                self.allowed_on[<int>number] = 1
                for index in indexes:
                    if 0 <= index < node.gpus:
                        self.allowed[node.first + <Py_ssize_t>index] = 1
        return found

    cdef long long slots_of(self, Node* node, Free* free, GangNeeds* needs) noexcept:
        """Into ``slots``: the devices that could serve, and how many shares each holds; gives how many there are."""
        cdef long long found = 0, shares
        cdef int index
        for index in range(node.gpus):
            if free.milli[index] < needs.milli:
                continue
            if needs.models and not self.wanted[self.models[node.first + index]]:
                continue
            if needs.within and not self.allowed[node.first + index]:
                continue
            shares = free.milli[index] // needs.milli
            if needs.device_memory:
                shares = min(shares, free.device_memory[index] // needs.device_memory)
            if shares > 0:
                self.slots[found].key = shares
                self.slots[found].index = index
                found += 1
        return found

    cdef bint take_near(self, Node* node, GangNeeds* needs, long long slots) noexcept:
        """Take a share of each of the next devices that are as close as asked, into ``chosen``, if there are some."""
        cdef unsigned long long usable = 0
        cdef long long each
        cdef int at
        if node.near == NULL:
            return False
        for each in range(slots):
            if self.slots[each].key > 0 and self.slots[each].index < NEAR_MAX:
                usable |= <unsigned long long>1 << self.slots[each].index
        if not near_devices(node.near, min(node.gpus, <int>NEAR_MAX), needs.near, usable, needs.count, self.chosen):
            return False
        for at in range(needs.count):
            for each in range(slots):
                self.slots[each].key -= self.slots[each].index == self.chosen[at]
        return True

    cdef int members(self, int number, Free* free, GangNeeds* needs, long long most) noexcept:
        """How many members fit into *free* of that node, at most *most*."""
        cdef Node* node = self.nodes + number
        cdef long long found, each, sum
        cdef int index
        if node.draining or (needs.within and not self.allowed_on[number]):
            return 0
        if needs.apart:
            most = min(most, 1)
        if free.total < needs.count * needs.milli:
            for index in range(node.gpus):
                if free.milli[index] < 0:
                    break
            else:
                return 0
        if needs.cpu:
            most = min(most, free.cpu // needs.cpu)
        if needs.memory:
            most = min(most, free.memory // needs.memory)
        if most <= 0:
            return 0
        if not needs.count:
            return <int>most
        found = self.slots_of(node, free, needs)
        if needs.near:
            for each in range(most):
                if not self.take_near(node, needs, found):
                    return <int>each
            return <int>most
        if needs.count == 1:
            sum = 0
            for each in range(found):
                sum += self.slots[each].key
            return <int>min(most, sum)
        while most:
            sum = 0
            for each in range(found):
                sum += min(self.slots[each].key, most)
            if sum >= most * needs.count:
                break
            most -= 1
        return <int>most

    cdef Free* left_of(self, Node* node, Span* own, bint alone, double start, double duration) noexcept:
        """What others' reservations leave of *node* at every moment from *start* on, for *duration*."""
        cdef Free* now_free = &node.thought if node.stamp == self.question else &node.free
        cdef double end = start + duration, moment
        cdef int each, other
        cdef Here* item
        cdef Span* last
        cdef int met = 0
        if alone or not node.kept.used:
            return now_free
        last = NULL
        for each in range(node.kept.used):
            item = node.kept.items + each
            if item.span != last and item.span != own and overlaps(item.span, start, end):
                last = item.span
                met += 1
        if not met:
            return now_free
        copy(&self.left, now_free, node.gpus)
        for each in range(node.kept.used):
            item = node.kept.items + each
            # The only one counts, however short it is.
            if item.span == last if met == 1 else (
                item.span != own and overlaps(item.span, start, end) and holds_at(item.span, start)
            ):
                change(&self.left, item.span, item.devices, item.count, -1)
        if met == 1:
            return &self.left
        last = NULL
        for each in range(node.kept.used):
            item = node.kept.items + each
            moment = item.span.start
            if item.span == last or item.span == own or not (start < moment and moment < end):
                continue
            last = item.span
            copy(&self.here, now_free, node.gpus)
            for other in range(node.kept.used):
                item = node.kept.items + other
                # Those that are over before the start do not hold at any later moment.
                if item.span != own and holds_at(item.span, moment):
                    change(&self.here, item.span, item.devices, item.count, -1)
            lower_to(&self.left, &self.here, node.gpus)
        return &self.left

    cdef void count(self, int number, GangNeeds* needs, Span* own, bint alone, double at, double duration,
                    long long* total) noexcept:
        cdef Node* node = self.nodes + number
        cdef int found = self.members(number, self.left_of(node, own, alone, at, duration), needs, needs.gang)
        self.counted += 1
        total[0] += found - node.count
        node.count = found

    cdef void touch(self, Span* span) noexcept:
        cdef int each
        cdef int* at = span.shares
        for each in range(span.members):
            if self.nodes[at[0]].touched != self.event:
                self.nodes[at[0]].touched = self.event
                self.touched[self.touched_count] = at[0]
                self.touched_count += 1
            at += 2 + at[1]

    cdef void give_back(self, Span* span) noexcept:
        """*span* has ended by the moment looked at."""
        cdef int each
        cdef int* at = span.shares
        cdef Node* node
        for each in range(span.members):
            node = self.nodes + at[0]
            if node.stamp != self.question:
                node.stamp = self.question
                copy(&node.thought, &node.free, node.gpus)
            change(&node.thought, span, at + 2, at[1], 1)
            at += 2 + at[1]

    cdef tuple choose(self, GangNeeds* needs, Span* own, bint alone, int counted, double at, double duration):
        """Nodes and devices for the gang, among the first *counted*: nodes that hold most of it, then the fullest."""
        cdef int number, each, able = 0, wanted
        cdef long long left = needs.gang
        cdef Node* node
        cdef Able here
        cdef list found = []
        for number in range(counted):
            node = self.nodes + number
            if not node.count:
                continue
            here.count = node.count
            here.total = node.thought.total if node.stamp == self.question else node.free.total
            here.number = number
            if needs.gang > 1 or not able:
                self.able[able] = here
                able += 1
            elif rank_able(&here, self.able) < 0:
                self.able[0] = here
        if able > 1:
            qsort(self.able, able, sizeof(Able), rank_able)
        for each in range(able):
            wanted = <int>min(<long long>self.able[each].count, left)
            if wanted <= 0:
                break
            left -= wanted
            node = self.nodes + self.able[each].number
            name = self.names[self.able[each].number]
            for devices in self.devices_for(node, self.left_of(node, own, alone, at, duration), needs, wanted):
                found.append((name, devices))
        return tuple(found)

    cdef list devices_for(self, Node* node, Free* free, GangNeeds* needs, int members):
        """Devices for so many members, which are known to fit: for one member those with least left."""
        cdef long long found = self.slots_of(node, free, needs), each
        cdef int member
        cdef list chosen = []
        if needs.near:
            for member in range(members):
                if self.take_near(node, needs, found):
                    chosen.append(tuple([self.chosen[each] for each in range(needs.count)]))
            return chosen
        for each in range(found):
            # By what is left, least first; for several members by the shares it still holds, most first.
            self.slots[each].key = free.milli[self.slots[each].index] if members == 1 else -self.slots[each].key
        for member in range(members):
            qsort(self.slots, found, sizeof(Slot), rank_slots)
            chosen.append(tuple(sorted([self.slots[each].index for each in range(min(<long long>needs.count, found))])))
            if members > 1:
                for each in range(min(<long long>needs.count, found)):
                    self.slots[each].key += 1
        return chosen
