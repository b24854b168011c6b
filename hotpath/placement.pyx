# cython: cdivision=True
"""The placement engine, compiled. Contract and prose: ``reference/placement.py``."""

from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from actorgrid.errors import AdoptRefused, BadRequest, DuplicateNode, UnknownNode, UnknownPlacement
from actorgrid.hotpath.misfit import explain_misfit
from actorgrid.hotpath.records import (
    MAX_GANG as _MAX_GANG,
    MAX_GPUS_PER_NODE,
    POLICIES,
    GpuView,
    NodeView,
    Placement,
    device_list,
    policy_number,
)

cdef enum:
    WHOLE = 1000
    BEST_FIT = 0
    FIRST_FIT = 1
    PACKING = 2
    SPREAD = 3
    RANDOM = 4

assert POLICIES == ("best_fit", "first_fit", "packing", "spread", "random")
cdef Py_ssize_t MAX_GANG = _MAX_GANG


cdef inline bint usable(Gpu* gpu, Ask* ask, unsigned long long* model_call) noexcept nogil:
    return (
        gpu.milli_free >= ask.gpu_milli
        and gpu.memory_free >= ask.gpu_memory
        and (ask.any_model or model_call[gpu.model] == ask.call)
        and (ask.anywhere or gpu.allowed == ask.call)
    )


cdef bint fits(Node* node, Ask* ask, unsigned long long* model_call, int* tightest) noexcept nogil:
    """Whether one member fits; *tightest* is then the least free share of a device that could serve."""
    cdef int index, found
    cdef Gpu* gpu
    tightest[0] = 0
    if not node.alive or node.draining or node.cpu_free < ask.cpu or node.memory_free < ask.memory:
        return False
    if ask.gpu_count and (node.gpu_count < ask.gpu_count or node.most_free < ask.gpu_milli):
        return False
    if node.excluded == ask.call or not (ask.anywhere or node.allowed == ask.call):
        return False
    if ask.gpu_count == 0:
        return True
    if ask.gpu_milli == WHOLE and node.whole_free < ask.gpu_count:
        return False
    if ask.gpu_milli == WHOLE and ask.gpu_memory == 0 and ask.any_model and ask.anywhere:
        tightest[0] = WHOLE
        return True
    found = 0
    tightest[0] = WHOLE
    for index in range(node.gpu_count):
        gpu = &node.gpus[index]
        if usable(gpu, ask, model_call):
            found += 1
            if gpu.milli_free < tightest[0]:
                tightest[0] = gpu.milli_free
    return found >= ask.gpu_count


cdef inline void score(Node* node, Ask* ask, int tightest, int policy, Key* key) noexcept nogil:
    cdef long long capacity, gpu_load, cpu_load
    key.first = key.second = key.third = 0
    if policy == BEST_FIT:
        key.first = tightest
        key.second = node.milli_free
        key.third = node.cpu_free - ask.cpu
    elif policy == PACKING:
        if ask.gpu_count and ask.gpu_milli < WHOLE and tightest < WHOLE:
            key.first = 0
        elif node.cpu_free < node.cpu or node.milli_free < <long long>WHOLE * node.gpu_count:
            key.first = 1
        else:
            key.first = 2
    elif policy == SPREAD:
        capacity = <long long>WHOLE * node.gpu_count
        gpu_load = (capacity - node.milli_free) * 1000 // capacity if capacity else 0
        cpu_load = (node.cpu - node.cpu_free) * 1000 // node.cpu if node.cpu else 0
        key.first = gpu_load if ask.gpu_count else cpu_load
        key.second = cpu_load if ask.gpu_count else gpu_load


cdef inline bint less(Key* a, Key* b) noexcept nogil:
    if a.far != b.far:
        return a.far < b.far
    if a.first != b.first:
        return a.first < b.first
    if a.second != b.second:
        return a.second < b.second
    return a.third < b.third


cdef inline bint better(Gpu* a, Gpu* b, int policy) noexcept nogil:
    """Whether *a* is taken before *b*, where *b* has the lower index."""
    if policy == BEST_FIT or policy == PACKING:
        if a.milli_free != b.milli_free:
            return a.milli_free < b.milli_free
        return a.memory_free < b.memory_free
    if policy == SPREAD:
        if a.milli_free != b.milli_free:
            return a.milli_free > b.milli_free
        return a.memory_free > b.memory_free
    return False


cdef void summarise(Node* node) noexcept nogil:
    cdef int index, milli
    node.whole_free = node.most_free = 0
    for index in range(node.gpu_count):
        milli = node.gpus[index].milli_free
        if milli == WHOLE:
            node.whole_free += 1
        if milli > node.most_free:
            node.most_free = milli


cdef void* grown(void* block, Py_ssize_t count, Py_ssize_t size) except NULL:
    cdef void* larger = realloc(block, count * size)
    if larger == NULL:
        raise MemoryError(f"no memory for {count} placement records")
    return larger


cdef class PlacementEngine:
    def __cinit__(self, policy="best_fit", rng=None):
        self.slots = NULL
        self.model_call = NULL
        self.rack_call = NULL
        self.used = self.capacity = self.model_capacity = self.rack_capacity = 0
        self.call = 0
        self.dice = 0
        self.allocated_milli = self.capacity_milli = 0

    def __init__(self, policy="best_fit", rng=None):
        self.policy_code = policy_number(policy)
        self.rng = rng
        self.next_id = 1
        self.by_name = {}
        self.names = []
        self.numas = []
        self.model_numbers = {}
        self.model_names = []
        self.rack_numbers = {}
        self.rack_names = []
        self.held = {}
        self.typical = ()

    def __dealloc__(self):
        cdef Py_ssize_t slot
        for slot in range(self.used):
            free(self.slots[slot].gpus)
        free(self.slots)
        free(self.model_call)
        free(self.rack_call)

    # -- what there is

    @property
    def policy(self):
        return POLICIES[self.policy_code]

    @property
    def allocated_gpu_milli(self):
        return self.allocated_milli

    @property
    def capacity_gpu_milli(self):
        return self.capacity_milli

    @property
    def typical_tasks(self):
        return self.typical

    def set_typical_tasks(self, tasks):
        self.typical = tuple(tasks)

    def __len__(self):
        return len(self.by_name)

    def __contains__(self, id):
        return id in self.held

    def nodes(self):
        cdef Py_ssize_t slot
        cdef Node* node
        views = []
        for slot in range(self.used):
            node = &self.slots[slot]
            if not node.alive:
                continue
            views.append(
                NodeView(
                    self.names[slot],
                    None if node.rack < 0 else self.rack_names[node.rack],
                    self.numas[slot],
                    bool(node.draining),
                    node.cpu,
                    node.cpu_free,
                    node.memory,
                    node.memory_free,
                    tuple([
                        GpuView(
                            self.model_names[node.gpus[index].model],
                            node.gpus[index].milli_free,
                            node.gpus[index].memory_free,
                            node.gpus[index].memory,
                        )
                        for index in range(node.gpu_count)
                    ]),
                )
            )
        return views

    def placement(self, id):
        held = self.held.get(id)
        if held is None:
            raise UnknownPlacement(f"no placement has the id {id!r}", asked=str(id))
        return Placement(id, held[0])

    def placements(self):
        return {id: held[0] for id, held in self.held.items()}

    def add_node(
        self,
        name,
        *,
        long long cpu_milli,
        long long memory_mib,
        long long gpu_count=0,
        gpu_model="",
        long long gpu_memory_mib=0,
        rack=None,
        numa=None,
        devices=(),
    ):
        cdef Py_ssize_t slot
        cdef Node* node
        cdef Gpu* gpus
        cdef int index
        if name in self.by_name:
            raise DuplicateNode(f"node {name!r} is registered already", asked=name, hint="remove it first")
        listed = device_list(gpu_count, gpu_model, gpu_memory_mib, devices)
        if min(cpu_milli, memory_mib, gpu_count, *[memory for _, memory in listed], 0) < 0:
            raise BadRequest(f"node {name!r} has less than nothing of something")
        if len(listed) > MAX_GPUS_PER_NODE:
            raise BadRequest(f"node {name!r} has {len(listed)} GPUs", hint=f"at most {MAX_GPUS_PER_NODE} per node")
        models = [self._model(model) for model, _ in listed]
        rack_number = -1 if rack is None else self._rack(rack)
        slot = 0
        while slot < self.used and self.slots[slot].alive:
            slot += 1
        if slot == self.capacity:
            self.slots = <Node*>grown(self.slots, max(16, 2 * self.capacity), sizeof(Node))
            self.capacity = max(16, 2 * self.capacity)
        gpus = <Gpu*>calloc(max(1, len(listed)), sizeof(Gpu))
        if gpus == NULL:
            raise MemoryError(f"no memory for the GPUs of node {name!r}")
        for index in range(len(listed)):
            gpus[index].milli_free = WHOLE
            gpus[index].model = models[index]
            gpus[index].memory = gpus[index].memory_free = listed[index][1]
        if slot == self.used:
            self.used += 1
            self.names.append(name)
            self.numas.append(numa)
        else:
            self.names[slot] = name
            self.numas[slot] = numa
        node = &self.slots[slot]
        memset(node, 0, sizeof(Node))
        node.alive = True
        node.rack = rack_number
        node.gpu_count = len(listed)
        node.milli_free = <long long>WHOLE * node.gpu_count
        node.cpu = node.cpu_free = cpu_milli
        node.memory = node.memory_free = memory_mib
        node.gpus = gpus
        summarise(node)
        self.by_name[name] = slot
        self.capacity_milli += node.milli_free
        return name

    def remove_node(self, name):
        cdef Node* node = self.node(name)
        cdef long long capacity = <long long>WHOLE * node.gpu_count
        touched = []
        for id, held in list(self.held.items()):
            left = tuple([share for share in held[0] if share[0] != name])
            if len(left) != len(held[0]):
                touched.append(id)
                if left:
                    self.held[id] = (left, *held[1:])
                else:
                    del self.held[id]
        self.allocated_milli -= capacity - node.milli_free
        self.capacity_milli -= capacity
        free(node.gpus)
        node.gpus = NULL
        node.alive = False
        slot = self.by_name.pop(name)
        self.names[slot] = None
        self.numas[slot] = None
        return tuple(touched)

    def drain(self, name, draining=True):
        self.node(name).draining = bool(draining)

    # -- giving out and taking back

    def place(
        self,
        *,
        long long cpu_milli=0,
        long long memory_mib=0,
        long long gpu_count=0,
        long long gpu_milli=WHOLE,
        long long gpu_memory_mib=0,
        gpu_models=(),
        Py_ssize_t gang=1,
        exclude=(),
        prefer_racks=(),
        within=(),
        id=None,
    ):
        cdef Ask ask
        check_gang(gang)
        self.ask(&ask, cpu_milli, memory_mib, gpu_count, gpu_milli, gpu_memory_mib, gpu_models, exclude, prefer_racks,
                 within)
        if id is not None and id in self.held:
            raise BadRequest(f"a placement {id!r} is held already")
        shares = self.place_all(&ask, gang, self.policy_code)
        if shares is None:
            return None
        return self.hold(id, shares, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib)

    def reserve(
        self,
        name,
        *,
        long long cpu_milli=0,
        long long memory_mib=0,
        gpu_indexes=(),
        long long gpu_milli=WHOLE,
        long long gpu_memory_mib=0,
        id=None,
    ):
        cdef Ask ask
        self.node(name)
        self.ask(&ask, cpu_milli, memory_mib, len(gpu_indexes), gpu_milli, gpu_memory_mib, (), (), (), ())
        if id is not None and id in self.held:
            raise BadRequest(f"a placement {id!r} is held already")
        share = (name, tuple(gpu_indexes))
        if self.misfit(share, &ask):
            return None
        self.charge(share, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib, 1)
        return self.hold(id, (share,), cpu_milli, memory_mib, gpu_milli, gpu_memory_mib)

    def adopt(
        self,
        id,
        shares,
        *,
        long long cpu_milli=0,
        long long memory_mib=0,
        long long gpu_milli=WHOLE,
        long long gpu_memory_mib=0,
    ):
        cdef Ask ask
        cdef Py_ssize_t done = 0
        wanted = tuple([(name, tuple(indexes)) for name, indexes in shares])
        if id in self.held:
            raise AdoptRefused(f"a placement {id!r} is held already", asked=str(id))
        for name, _ in wanted:
            self.node(name)
        for share in wanted:
            self.ask(&ask, cpu_milli, memory_mib, len(share[1]), gpu_milli, gpu_memory_mib, (), (), (), ())
            problem = self.misfit(share, &ask)
            if problem:
                for taken in wanted[:done]:
                    self.charge(taken, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib, -1)
                raise AdoptRefused(f"placement {id!r} does not fit on {share[0]}: {problem}", asked=str(wanted))
            self.charge(share, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib, 1)
            done += 1
        return self.hold(id, wanted, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib)

    def release(self, id):
        held = self.held.pop(id, None)
        if held is None:
            raise UnknownPlacement(f"no placement has the id {id!r}", asked=str(id))
        for share in held[0]:
            self.charge(share, held[1], held[2], held[3], held[4], -1)

    def explain(
        self,
        *,
        long long cpu_milli=0,
        long long memory_mib=0,
        long long gpu_count=0,
        long long gpu_milli=WHOLE,
        long long gpu_memory_mib=0,
        gpu_models=(),
        Py_ssize_t gang=1,
        exclude=(),
        prefer_racks=(),
        within=(),
    ):
        cdef Ask ask
        cdef Py_ssize_t slot
        cdef int policy = self.policy_code if self.policy_code != RANDOM else FIRST_FIT
        check_gang(gang)
        within = tuple(within)
        self.ask(&ask, cpu_milli, memory_mib, gpu_count, gpu_milli, gpu_memory_mib, gpu_models, exclude, (), within)
        report = explain_misfit(
            self.nodes(),
            cpu_milli=cpu_milli,
            memory_mib=memory_mib,
            gpu_count=gpu_count,
            gpu_milli=gpu_milli,
            gpu_memory_mib=gpu_memory_mib,
            gpu_models=gpu_models,
            exclude=exclude,
            within=within,
        )
        shares = []
        while len(shares) < gang:
            slot = self.find(&ask, policy)
            if slot < 0:
                break
            share = self.take(slot, &ask, policy)
            self.charge(share, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib, 1)
            shares.append(share)
        for share in shares:
            self.charge(share, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib, -1)
        return {"fits": len(shares) == gang, "gang": gang, "members_that_fit": len(shares), **report}

    # -- inside

    def _model(self, name):
        """Number of a model's name; grows the table of marks when it is new."""
        number = self.model_numbers.get(name)
        if number is None:
            number = len(self.model_names)
            if number == self.model_capacity:
                self.model_call = <unsigned long long*>grown(
                    self.model_call, max(16, 2 * self.model_capacity), sizeof(unsigned long long)
                )
                self.model_capacity = max(16, 2 * self.model_capacity)
            self.model_call[<Py_ssize_t>number] = 0
            self.model_names.append(name)
            self.model_numbers[name] = number
        return number

    def _rack(self, name):
        """Number of a rack's name; grows the table of marks when it is new."""
        number = self.rack_numbers.get(name)
        if number is None:
            number = len(self.rack_names)
            if number == self.rack_capacity:
                self.rack_call = <unsigned long long*>grown(
                    self.rack_call, max(16, 2 * self.rack_capacity), sizeof(unsigned long long)
                )
                self.rack_capacity = max(16, 2 * self.rack_capacity)
            self.rack_call[<Py_ssize_t>number] = 0
            self.rack_names.append(name)
            self.rack_numbers[name] = number
        return number

    cdef Node* node(self, object name) except NULL:
        slot = self.by_name.get(name)
        if slot is None:
            raise UnknownNode(f"no node is called {name!r}", asked=str(name), found=f"{len(self.by_name)} nodes")
        return &self.slots[<Py_ssize_t>slot]

    cdef int ask(self, Ask* ask, long long cpu, long long memory, long long gpu_count, long long gpu_milli,
                 long long gpu_memory, object models, object exclude, object racks, object within) except -1:
        """Check and fill *ask*; marks what the call lists, so that the search compares numbers only."""
        cdef Node* node
        if cpu < 0 or memory < 0 or gpu_count < 0 or gpu_memory < 0:
            raise BadRequest("a placement asks for less than nothing", hint="amounts are zero or more")
        if not 1 <= gpu_milli <= WHOLE:
            raise BadRequest(
                f"gpu_milli={gpu_milli} is not a share of a GPU", hint="give 1 to 1000 and say how many with gpu_count"
            )
        self.call += 1
        ask.call = self.call
        ask.cpu = cpu
        ask.memory = memory
        ask.gpu_memory = gpu_memory
        ask.gpu_count = <int>min(gpu_count, 2**30)
        ask.gpu_milli = <int>gpu_milli
        ask.any_model = True
        for model in models:
            ask.any_model = False
            number = self.model_numbers.get(model)
            if number is not None:
                self.model_call[<Py_ssize_t>number] = self.call
        for name in exclude:
            slot = self.by_name.get(name)
            if slot is not None:
                self.slots[<Py_ssize_t>slot].excluded = self.call
        ask.racks = False
        for rack in racks:
            number = self.rack_numbers.get(rack)
            if number is not None:
                ask.racks = True
                self.rack_call[<Py_ssize_t>number] = self.call
        ask.anywhere = True
        for name, indexes in within:
            ask.anywhere = False
            slot = self.by_name.get(name)
            if slot is None:
                continue
            node = &self.slots[<Py_ssize_t>slot]
            node.allowed = self.call
            for index in indexes:
                if 0 <= index < node.gpu_count:
                    node.gpus[<Py_ssize_t>index].allowed = self.call
        return 0

    cdef Py_ssize_t find(self, Ask* ask, int policy) except -2:
        """Slot of the chosen node, or -1."""
        cdef Py_ssize_t slot, best = -1, wanted
        cdef Py_ssize_t counts[2]
        cdef Node* node
        cdef Key key, best_key
        cdef int tightest
        if policy != RANDOM:
            with nogil:
                for slot in range(self.used):
                    node = &self.slots[slot]
                    if not fits(node, ask, self.model_call, &tightest):
                        continue
                    key.far = 0 if ask.racks and node.rack >= 0 and self.rack_call[node.rack] == ask.call else 1
                    score(node, ask, tightest, policy, &key)
                    if best < 0 or less(&key, &best_key):
                        best = slot
                        best_key = key
                        if policy == FIRST_FIT and (key.far == 0 or not ask.racks):
                            break
            return best
        counts[0] = counts[1] = 0
        for slot in range(self.used):
            node = &self.slots[slot]
            if fits(node, ask, self.model_call, &tightest):
                key.far = 0 if ask.racks and node.rack >= 0 and self.rack_call[node.rack] == ask.call else 1
                counts[key.far] += 1
        if counts[0] + counts[1] == 0:
            return -1
        best_key.far = 0 if counts[0] else 1
        wanted = self._roll(counts[best_key.far])
        for slot in range(self.used):
            node = &self.slots[slot]
            if fits(node, ask, self.model_call, &tightest):
                key.far = 0 if ask.racks and node.rack >= 0 and self.rack_call[node.rack] == ask.call else 1
                if key.far == best_key.far:
                    if wanted == 0:
                        return slot
                    wanted -= 1
        raise AssertionError("the dice gave a number that is not below what was asked")

    def _roll(self, below):
        """A number below *below* from the dice."""
        cdef unsigned long long z
        if self.rng is not None:
            return self.rng(below)
        self.dice += <unsigned long long>0x9E3779B97F4A7C15
        z = self.dice
        z = (z ^ (z >> 30)) * <unsigned long long>0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * <unsigned long long>0x94D049BB133111EB
        return (z ^ (z >> 31)) % <unsigned long long>below

    cdef tuple take(self, Py_ssize_t slot, Ask* ask, int policy):
        """The share of the node at *slot* that one member gets."""
        cdef Node* node = &self.slots[slot]
        cdef int index, best
        if ask.gpu_count == 0:
            return (self.names[slot], ())
        if ask.gpu_count == 1:
            best = -1
            for index in range(node.gpu_count):
                if usable(&node.gpus[index], ask, self.model_call) and (
                    best < 0 or better(&node.gpus[index], &node.gpus[best], policy)
                ):
                    best = index
            return (self.names[slot], (best,))
        candidates = []
        for index in range(node.gpu_count):
            if usable(&node.gpus[index], ask, self.model_call):
                if policy == BEST_FIT or policy == PACKING:
                    candidates.append((node.gpus[index].milli_free, node.gpus[index].memory_free, index))
                elif policy == SPREAD:
                    candidates.append((-node.gpus[index].milli_free, -node.gpus[index].memory_free, index))
                else:
                    candidates.append((0, 0, index))
        candidates.sort()
        return (self.names[slot], tuple(sorted([entry[2] for entry in candidates[:ask.gpu_count]])))

    cdef tuple place_all(self, Ask* ask, Py_ssize_t gang, int policy):
        cdef Py_ssize_t slot
        cdef list shares = []
        while len(shares) < gang:
            slot = self.find(ask, policy)
            if slot < 0:
                for taken in shares:
                    self.charge(taken, ask.cpu, ask.memory, ask.gpu_milli, ask.gpu_memory, -1)
                return None
            share = self.take(slot, ask, policy)
            self.charge(share, ask.cpu, ask.memory, ask.gpu_milli, ask.gpu_memory, 1)
            shares.append(share)
        return tuple(shares)

    cdef int charge(self, object share, long long cpu, long long memory, long long milli, long long mib,
                    int sign) except -1:
        cdef Node* node = self.node(share[0])
        cdef Gpu* gpu
        cdef tuple indexes = share[1]
        node.cpu_free -= sign * cpu
        node.memory_free -= sign * memory
        if not indexes:
            return 0
        for index in indexes:
            gpu = &node.gpus[<Py_ssize_t>index]
            gpu.milli_free -= <int>(sign * milli)
            gpu.memory_free -= sign * mib
        node.milli_free -= sign * milli * len(indexes)
        self.allocated_milli += sign * milli * len(indexes)
        summarise(node)
        return 0

    cdef str misfit(self, object share, Ask* ask):
        """Why this share cannot be held right there, or an empty string."""
        cdef Node* node = self.node(share[0])
        cdef Gpu* gpu
        if node.cpu_free < ask.cpu:
            return f"{ask.cpu} cpu_milli asked, {node.cpu_free} free"
        if node.memory_free < ask.memory:
            return f"{ask.memory} memory_mib asked, {node.memory_free} free"
        if len(set(share[1])) != len(share[1]):
            return "a GPU is named twice"
        for index in share[1]:
            if not 0 <= index < node.gpu_count:
                return f"there is no GPU {index}"
            gpu = &node.gpus[<Py_ssize_t>index]
            if gpu.milli_free < ask.gpu_milli:
                return f"GPU {index} has {gpu.milli_free} milli free, {ask.gpu_milli} asked"
            if gpu.memory_free < ask.gpu_memory:
                return f"GPU {index} has {gpu.memory_free} MiB free, {ask.gpu_memory} asked"
        return ""

    cdef object hold(self, object id, tuple shares, long long cpu, long long memory, long long milli, long long mib):
        if id is None:
            while self.next_id in self.held:
                self.next_id += 1
            id = self.next_id
            self.next_id += 1
        self.held[id] = (shares, cpu, memory, milli, mib)
        return Placement(id, shares)


cdef int check_gang(Py_ssize_t gang) except -1:
    if not 1 <= gang <= MAX_GANG:
        raise BadRequest(f"gang={gang} is out of range", hint=f"a gang has 1 to {MAX_GANG} members")
    return 0
