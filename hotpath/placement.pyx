# cython: cdivision=True
"""The placement engine, compiled. Contract and prose: ``reference/placement.py``."""

cimport cython
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from operator import index as as_index

from actorgrid.errors import AdoptRefused, BadRequest, DuplicateNode, UnknownNode, UnknownPlacement
from actorgrid.hotpath.closeness import closeness_number, near_masks
from actorgrid.hotpath.explain import explain_misfit
from actorgrid.hotpath.completion import share_worth, whole_worth
from actorgrid.hotpath.typical_mix import DEFAULT_MIX, MIX_WEIGHT, check_mix, extent, sum_up
from actorgrid.hotpath.records import (
    MAX_GANG as _MAX_GANG,
    MAX_GPUS_PER_NODE,
    POLICIES,
    SETS_OF_MODELS_MAX,
    GpuView,
    NodeView,
    Placement,
    Snapshot,
    check_devices,
    device_domains,
    device_list,
    policy_number,
)
from actorgrid.hotpath.reference.completion import UNIT
from actorgrid.hotpath.reference.model_price import PRICED_FOR as _PRICED_FOR
from actorgrid.hotpath.share_packing import share_prices

from .score_table cimport (
    AFFINITY,
    BEST_FIT,
    BLOCK,
    COMPLETION,
    DEVICE_SCORE,
    FGD,
    FIRST_FIT,
    PACKING,
    RANDOM,
    ROWS_MAX,
    SPREAD,
    TOPOLOGY,
    WHOLE,
    Gpu,
    GpuDetail,
    Node,
    ScoreTable,
    MemberNeeds,
    details,
    gpus_size,
    near_bits,
    grown,
    prefetch,
)

cdef enum:
    SETTLED_A_CALL = 2          # columns: one call makes one node stale, a gang many, which later calls work off

assert [POLICIES[code] for code in (COMPLETION, FGD, BEST_FIT, PACKING, SPREAD, FIRST_FIT, RANDOM, AFFINITY, TOPOLOGY,
                                    DEVICE_SCORE)] == list(POLICIES)
cdef Py_ssize_t MAX_GANG = _MAX_GANG
cdef int PRICED_FOR = _PRICED_FOR
cdef object new_tuple = tuple.__new__


cdef long long number(object value, str what) except? -1:
    """A whole number of *what*, 0 or more; anything else is a BadRequest."""
    cdef long long found
    cdef int overflow = 0
    if type(value) is not int:
        try:
            value = as_index(value)
        except TypeError:
            raise BadRequest(f"{what}={value!r} is not a whole number", asked=f"{what}={value!r}") from None
    found = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or found < 0 or found >> 53:
        raise BadRequest(
            f"{what}={value} is out of range", asked=f"{what}={value}", hint="amounts are 0 to 2**53"
        )
    return found


@cython.final
@cython.no_gc  # it holds names and numbers: nothing that could point back
@cython.freelist(256)
cdef class Holding:
    pass


cdef class PlacementEngine:
    def __cinit__(self, policy="completion", rng=None):
        self.call = 0
        self.dice = 0
        self.rack_capacity = self.chosen_capacity = self.taken_capacity = 0
        self.allocated_milli = self.capacity_milli = 0
        self.next_id = 1
        self.priced_for = 0
        self.largest_cpu = self.largest_gpus = 0

    def __init__(self, policy="completion", rng=None):
        self.policy_code = policy_number(policy)
        self.table = ScoreTable(self.policy_code)
        self.rng = rng
        self.by_name = {}
        self.names = []
        self.numas = []
        self.nvlinks = []
        self.nears = []
        self.single_shares = []
        self.model_numbers = {}
        self.model_names = []
        self.set_numbers = {}
        self.rack_numbers = {}
        self.rack_names = []
        self.held = {}
        self.typical = ()
        self.mix = DEFAULT_MIX
        self._need_gpus(16)
        self.sum_up_mix()

    def __dealloc__(self):
        free(self.rack_call)
        free(self.rack_room)
        free(self.chosen)
        free(self.taken)

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
        mix = check_mix(tasks)
        self.typical = mix
        self.mix = mix or DEFAULT_MIX
        self.sum_up_mix()

    cdef int sum_up_mix(self) except -1:
        mix = sum_up(self.mix)
        size = extent(self.largest_cpu, self.largest_gpus)
        self.extent = size
        self.is_mix_stale = False
        self.kinds = mix.kinds
        if self.policy_code == COMPLETION:
            prices = list(share_prices(mix.share_demand, WHOLE * UNIT).items())
            shares = [share_worth(tasks, prices) for tasks in mix.tasks]
            tables = [
                whole_worth(tasks, share, size.cpu_buckets, size.cpu_shift, size.wholes, MIX_WEIGHT)
                for tasks, share in zip(mix.tasks, shares)
            ]
            self.table.set_completion(tables, shares, size.cpu_buckets, size.cpu_shift, size.wholes)
            self.table.set_named(len(mix.kinds), mix.named)
        for name, number in self.model_numbers.items():
            self.table.set_kind(number, self.kinds.get(name, 0))
        self.priced_for = 0
        self.table.set_mix(list(mix.cpus), list(mix.thresholds), mix.counts, list(mix.share_mass),
                           list(mix.whole_mass))
        return 0

    def __len__(self):
        return len(self.by_name)

    def __contains__(self, id):
        return id in self.held

    def nodes(self):
        return list(self.snapshot().nodes)

    def snapshot(self):
        cdef Py_ssize_t slot, count = self.table.used
        cdef size_t size = 0
        cdef Node* nodes
        cdef char* devices
        cdef Node* node
        # Until the copy is made no Python code runs, so no other thread can change what is copied.
        names, numas, nvlinks, nears = self.names[:], self.numas[:], self.nvlinks[:], self.nears[:]
        for slot in range(count):
            size += gpus_size(self.table.nodes[slot].gpu_count) if self.table.nodes[slot].alive else 0
        nodes = <Node*>calloc(max(1, count), sizeof(Node))
        devices = <char*>calloc(max(<size_t>1, size), 1)
        try:
            if nodes == NULL or devices == NULL:
                raise MemoryError(f"no memory for a snapshot of {count} nodes")
            size = 0
            for slot in range(count):
                node = &nodes[slot]
                node[0] = self.table.nodes[slot]
                if node.alive:
                    memcpy(devices + size, node.gpus, gpus_size(node.gpu_count))
                    node.gpus = <Gpu*>(devices + size)
                    size += gpus_size(node.gpu_count)
            version, allocated, capacity = self.table.version, self.allocated_milli, self.capacity_milli
            return Snapshot(version, self._views(nodes, names, numas, nvlinks, nears), allocated, capacity)
        finally:
            free(nodes)
            free(devices)

    cdef tuple _views(self, Node* nodes, list names, list numas, list nvlinks, list nears):
        cdef Py_ssize_t slot
        cdef Node* node
        cdef list views = []
        for slot in range(len(names)):
            node = &nodes[slot]
            if not node.alive:
                continue
            views.append(
                NodeView(
                    names[slot],
                    None if node.rack < 0 else self.rack_names[node.rack],
                    numas[slot],
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
                            details(node)[index].memory,
                        )
                        for index in range(node.gpu_count)
                    ]),
                    nvlinks[slot],
                    nears[slot],
                )
            )
        return tuple(views)

    def placement(self, id):
        cdef Holding held = self.held.get(id)
        if held is None:
            raise UnknownPlacement(f"no placement has the id {id!r}", asked=str(id))
        return Placement(id, held.shares)

    def placements(self):
        return {id: (<Holding>held).shares for id, held in self.held.items()}

    def add_node(
        self,
        name,
        *,
        cpu_milli,
        memory_mib,
        gpu_count=0,
        gpu_model="",
        gpu_memory_mib=0,
        rack=None,
        numa=None,
        nvlink=None,
        near=None,
        devices=(),
    ):
        cdef Py_ssize_t slot
        cdef Node* node
        cdef Gpu* gpus
        cdef unsigned long long* bits
        cdef GpuDetail* detail
        cdef int index, rack_number
        cdef long long cpu = number(cpu_milli, "cpu_milli"), memory = number(memory_mib, "memory_mib")
        if name in self.by_name:
            raise DuplicateNode(f"node {name!r} is registered already", asked=name, hint="remove it first")
        number(gpu_count, "gpu_count")
        number(gpu_memory_mib, "gpu_memory_mib")
        # All that may refuse or run out of memory comes before the slot is taken: a node is there whole, or not at all.
        check_devices(name, gpu_count, devices)
        listed = device_list(gpu_count, gpu_model, gpu_memory_mib, devices)
        domains = device_domains(name, len(listed), numa, nvlink)
        masks = near_masks(name, near, len(listed))
        models = [self._model(model) for model, _ in listed]
        rack_number = -1 if rack is None else self._rack(rack)
        self._need_gpus(len(listed))
        slot = self.vacant
        while slot < self.table.used and self.table.nodes[slot].alive:
            slot += 1
        self.vacant = slot
        self.table.grow_nodes(slot + 1)
        gpus = <Gpu*>calloc(1, gpus_size(<int>len(listed)))
        if gpus == NULL:
            raise MemoryError(f"no memory for the GPUs of node {name!r}")
        try:
            bits = near_bits(masks, len(listed))
        except MemoryError:
            free(gpus)
            raise
        detail = <GpuDetail*>(gpus + len(listed))
        for index in range(len(listed)):
            gpus[index].milli_free = WHOLE
            gpus[index].model = models[index]
            gpus[index].memory_free = detail[index].memory = listed[index][1]
            detail[index].domain = domains[index]
        shares = [(name, (index,)) for index in range(len(listed))]
        shares.append((name, ()))
        for index, share in enumerate(shares):
            detail[index].share = <void*>share
        if slot == self.table.used:
            self.table.used += 1
            self.names.append(name)
            self.numas.append(numa)
            self.nvlinks.append(nvlink)
            self.nears.append(near)
            self.single_shares.append(shares)
            self.table.nodes[slot].dirty = False
        else:
            self.names[slot], self.numas[slot], self.nvlinks[slot], self.nears[slot] = name, numa, nvlink, near
            self.single_shares[slot] = shares
        node = &self.table.nodes[slot]
        # A slot that was used before may still be in the table's list of stale nodes: unmarked, it would be listed twice.
        index = node.dirty
        memset(node, 0, sizeof(Node))
        node.dirty = index
        node.alive = True
        node.rack = rack_number
        node.gpu_count = len(listed)
        node.model = models[0] if len(set(models)) == 1 else -1
        node.several_domains = len(set(domains)) > 1
        node.milli_free = <long long>WHOLE * node.gpu_count
        node.cpu = node.cpu_free = cpu
        node.memory = node.memory_free = memory
        node.gpus = gpus
        node.near = bits
        summarise(node)
        self.by_name[name] = slot
        self.capacity_milli += node.milli_free
        self.cover(cpu, node.gpu_count)
        for index in range(node.gpu_count):
            self.table.model_free[gpus[index].model] += WHOLE
        self.table.place_in_block(slot)
        self.priced_for = 0
        self.table.touch(slot, True)
        return name

    def resize_node(self, name, *, cpu_milli, memory_mib):
        cdef Node* node = self.node(name)
        cdef long long cpu = number(cpu_milli, "cpu_milli"), memory = number(memory_mib, "memory_mib")
        if cpu < node.cpu - node.cpu_free or memory < node.memory - node.memory_free:
            raise BadRequest(
                f"node {name!r} has more given out than it would have",
                asked=f"{cpu} cpu_milli, {memory} memory_mib",
                found=f"{node.cpu - node.cpu_free} cpu_milli, {node.memory - node.memory_free} memory_mib given out",
                hint="drain it, and release what is on it first",
            )
        node.cpu_free += cpu - node.cpu
        node.memory_free += memory - node.memory
        node.cpu, node.memory = cpu, memory
        self.cover(cpu, 0)
        self.table.touch(self.by_name[name], True)

    def remove_node(self, name):
        cdef Node* node = self.node(name)
        cdef long long capacity = <long long>WHOLE * node.gpu_count
        cdef Holding held
        cdef int index
        touched = []
        for id, item in list(self.held.items()):
            held = item
            left = tuple([share for share in held.shares if share[0] != name])
            if len(left) != len(held.shares):
                touched.append(id)
                if left:
                    held.shares = left
                else:
                    del self.held[id]
        # Before its devices are freed: what they hold is counted by what each of them has left.
        self.allocated_milli -= capacity - node.milli_free
        self.capacity_milli -= capacity
        for index in range(node.gpu_count):
            self.table.model_free[node.gpus[index].model] -= node.gpus[index].milli_free
        self.priced_for = 0
        free(node.gpus)
        node.gpus = NULL
        free(node.near)
        node.near = NULL
        node.alive = False
        slot = self.by_name.pop(name)
        self.table.touch(slot, True)
        self.vacant = min(self.vacant, <Py_ssize_t>slot)
        self.names[slot] = self.numas[slot] = self.nvlinks[slot] = self.nears[slot] = self.single_shares[slot] = None
        return tuple(touched)

    def drain(self, name, draining=True):
        self.node(name).draining = bool(draining)
        self.table.touch(self.by_name[name], True)

    def set_device_score(self, name, gpu_index, score):
        cdef Node* node = self.node(name)
        cdef long long index = number(gpu_index, "gpu_index"), value = number(score, "score")
        if index >= node.gpu_count or value > 1000:
            raise BadRequest(
                f"GPU {index} of node {name!r} cannot score {value}",
                found=f"{node.gpu_count} GPUs",
                hint="a score is 0 to 1000",
            )
        details(node)[index].score = <int>value
        self.table.touch(self.by_name[name], True)

    # -- giving out and taking back

    def place(
        self,
        *,
        cpu_milli=0,
        memory_mib=0,
        gpu_count=0,
        gpu_milli=WHOLE,
        gpu_memory_mib=0,
        gpu_models=(),
        gpu_topology="",
        gang=1,
        exclude=(),
        prefer_racks=(),
        within=(),
        id=None,
    ):
        cdef MemberNeeds needs
        cdef Py_ssize_t slot = -1
        cdef int gpu = -1
        cdef Py_ssize_t members = 1 if gang is 1 else gang_size(gang)
        cdef tuple shares
        self.read_needs(&needs, cpu_milli, memory_mib, gpu_count, gpu_milli, gpu_memory_mib, gpu_models)
        if gpu_topology != "":
            needs.near = near_number(gpu_topology, needs.gpu_count)
        if id is not None and id in self.held:
            raise BadRequest(f"a placement {id!r} is held already")
        shares = self.place_all(&needs, members, exclude, prefer_racks, within, self.policy_code, &slot, &gpu, False)
        if shares is None:
            return None
        self.priced_for = (self.priced_for or PRICED_FOR) - 1
        return self.hold(id, shares, &needs, slot, gpu)

    def reserve(
        self,
        name,
        *,
        cpu_milli=0,
        memory_mib=0,
        gpu_indexes=(),
        gpu_milli=WHOLE,
        gpu_memory_mib=0,
        id=None,
    ):
        cdef MemberNeeds needs
        self.node(name)
        self.read_needs(&needs, cpu_milli, memory_mib, len(gpu_indexes), gpu_milli, gpu_memory_mib, ())
        if id is not None and id in self.held:
            raise BadRequest(f"a placement {id!r} is held already")
        share = (name, tuple(gpu_indexes))
        if self.misfit(share, &needs):
            return None
        self.charge_share(share, needs.cpu, needs.memory, needs.gpu_milli, needs.gpu_memory, 1)
        self.table.settle(SETTLED_A_CALL)
        return self.hold(id, (share,), &needs, -1, -1)

    def adopt(self, id, shares, *, cpu_milli=0, memory_mib=0, gpu_milli=WHOLE, gpu_memory_mib=0):
        cdef MemberNeeds needs
        cdef Py_ssize_t done = 0
        wanted = tuple([(name, tuple(indexes)) for name, indexes in shares])
        if id in self.held:
            raise AdoptRefused(f"a placement {id!r} is held already", asked=str(id))
        for name, _ in wanted:
            self.node(name)
        for share in wanted:
            self.read_needs(&needs, cpu_milli, memory_mib, len(share[1]), gpu_milli, gpu_memory_mib, ())
            # Each share is charged before the next is looked at, as two of them may be on one device.
            problem = self.misfit(share, &needs)
            if problem:
                for taken in wanted[:done]:
                    self.read_needs(&needs, cpu_milli, memory_mib, len(taken[1]), gpu_milli, gpu_memory_mib, ())
                    self.charge_share(taken, needs.cpu, needs.memory, needs.gpu_milli, needs.gpu_memory, -1)
                raise AdoptRefused(f"placement {id!r} does not fit on {share[0]}: {problem}", asked=str(wanted))
            self.charge_share(share, needs.cpu, needs.memory, needs.gpu_milli, needs.gpu_memory, 1)
            done += 1
        self.read_needs(&needs, cpu_milli, memory_mib, 1, gpu_milli, gpu_memory_mib, ())
        self.table.settle(SETTLED_A_CALL)
        return self.hold(id, wanted, &needs, -1, -1)

    def release(self, id):
        cdef Holding held = self.held.pop(id, None)
        if held is None:
            raise UnknownPlacement(f"no placement has the id {id!r}", asked=str(id))
        if held.slot >= 0 and len(held.shares) == 1:
            self.charge(held.slot, &held.gpu, held.gpu >= 0, held.cpu, held.memory, held.gpu_milli, held.gpu_memory, -1)
        else:
            for share in held.shares:
                self.charge_share(share, held.cpu, held.memory, held.gpu_milli, held.gpu_memory, -1)
        self.table.settle(SETTLED_A_CALL)

    def explain(
        self,
        *,
        cpu_milli=0,
        memory_mib=0,
        gpu_count=0,
        gpu_milli=WHOLE,
        gpu_memory_mib=0,
        gpu_models=(),
        gpu_topology="",
        gang=1,
        exclude=(),
        prefer_racks=(),
        within=(),
    ):
        cdef MemberNeeds needs
        cdef Py_ssize_t slot = -1, members = gang_size(gang)
        cdef int gpu = -1
        cdef int policy = self.policy_code if self.policy_code != RANDOM else FIRST_FIT
        cdef tuple shares
        within = tuple(within)
        self.read_needs(&needs, cpu_milli, memory_mib, gpu_count, gpu_milli, gpu_memory_mib, gpu_models)
        needs.near = near_number(gpu_topology, needs.gpu_count)
        report = explain_misfit(
            self.nodes(),
            cpu_milli=cpu_milli,
            memory_mib=memory_mib,
            gpu_count=gpu_count,
            gpu_milli=gpu_milli,
            gpu_memory_mib=gpu_memory_mib,
            gpu_models=gpu_models,
            gpu_topology=gpu_topology,
            exclude=exclude,
            within=within,
        )
        # Placed for a moment and taken back: how many members fit depends on where the first ones go.
        shares = self.place_all(&needs, members, exclude, (), within, policy, &slot, &gpu, True)
        for share in shares:
            self.charge_share(share, needs.cpu, needs.memory, needs.gpu_milli, needs.gpu_memory, -1)
        self.table.settle(SETTLED_A_CALL)
        return {"fits": len(shares) == members, "gang": members, "members_that_fit": len(shares), **report}

    # -- numbers for names

    def _model(self, name):
        """Number of a model's name."""
        found = self.model_numbers.get(name)
        if found is None:
            found = len(self.model_names)
            self.model_names.append(name)
            self.model_numbers[name] = found
            for models, set_number in self.set_numbers.items():
                self._allow(set_number, models)
            self.table.set_kind(found, self.kinds.get(name, 0))
        return found

    def _allow(self, set_number, models):
        """Tell the table which models a set has."""
        self.table.allow_models(
            set_number, [self.model_numbers[model] for model in models if model in self.model_numbers],
            len(self.model_names),
        )

    cdef int models_number(self, object models) except -1:
        key = frozenset(models)
        if not key:
            return 0
        found = self.set_numbers.get(key)
        if found is None:
            if len(self.set_numbers) == SETS_OF_MODELS_MAX:
                self.set_numbers.clear()
                self.table.forget_rows()
            found = len(self.set_numbers) + 1
            self.set_numbers[key] = found
            self._allow(found, key)
        return found

    def _rack(self, name):
        """Number of a rack's name; grows the tables of marks when it is new."""
        found = self.rack_numbers.get(name)
        if found is None:
            found = len(self.rack_names)
            if found == self.rack_capacity:
                self.rack_call = <unsigned long long*>grown(
                    self.rack_call, max(16, 2 * self.rack_capacity), sizeof(unsigned long long)
                )
                self.rack_room = <long long*>grown(self.rack_room, max(16, 2 * self.rack_capacity), sizeof(long long))
                self.rack_capacity = max(16, 2 * self.rack_capacity)
            self.rack_call[<Py_ssize_t>found] = 0
            self.rack_names.append(name)
            self.rack_numbers[name] = found
        return found

    def _need_gpus(self, Py_ssize_t count):
        """Room to choose among as many devices."""
        self.table.need_scratch(count)
        if count > self.chosen_capacity:
            self.chosen = <int*>grown(self.chosen, count, sizeof(int))
            self.chosen_capacity = count

    cdef int need_members(self, Py_ssize_t count) except -1:
        """Room for the shares of a gang of *count*, which is at most MAX_GANG."""
        if count > self.taken_capacity:
            self.taken = <void**>grown(self.taken, count, sizeof(void*))
            self.taken_capacity = count
        return 0

    cdef int cover(self, long long cpu, long long gpus) except -1:
        """The tables are made anew before the next decision if a node has grown over them."""
        self.largest_cpu = max(self.largest_cpu, cpu)
        self.largest_gpus = max(self.largest_gpus, gpus)
        if self.policy_code == COMPLETION and extent(self.largest_cpu, self.largest_gpus) != self.extent:
            self.is_mix_stale = True
        return 0

    # -- inside

    cdef Node* node(self, object name) except NULL:
        slot = self.by_name.get(name)
        if slot is None:
            raise UnknownNode(f"no node is called {name!r}", asked=str(name), found=f"{len(self.by_name)} nodes")
        return &self.table.nodes[<Py_ssize_t>slot]

    cdef int read_needs(self, MemberNeeds* needs, object cpu, object memory, object gpu_count, object gpu_milli,
                   object gpu_memory, object models) except -1:
        cdef long long milli = number(gpu_milli, "gpu_milli")
        cdef long long count = number(gpu_count, "gpu_count")
        needs.cpu = number(cpu, "cpu_milli")
        needs.memory = number(memory, "memory_mib")
        needs.gpu_memory = number(gpu_memory, "gpu_memory_mib")
        if not 1 <= milli <= WHOLE:
            raise BadRequest(
                f"gpu_milli={milli} is not a share of a GPU",
                asked=f"gpu_milli={milli}",
                hint="give 1 to 1000 and say how many with gpu_count",
            )
        needs.gpu_count = <int>min(count, 2**30)
        needs.gpu_milli = <int>milli
        needs.near = 0
        needs.models = 0
        if models != ():
            needs.models = self.models_number(models)
        if count == 0:
            # So that all that ask for no device have the same needs.
            needs.gpu_milli = WHOLE
            needs.gpu_memory = 0
            needs.models = 0
        return 0

    cdef int mark_within(self, object within) except -1:
        cdef Node* node
        for name, indexes in within:
            slot = self.by_name.get(name)
            if slot is None:
                continue
            node = &self.table.nodes[<Py_ssize_t>slot]
            node.allowed = self.call
            for index in indexes:
                if 0 <= index < node.gpu_count:
                    details(node)[<Py_ssize_t>index].allowed = self.call
        return 0

    cdef int mark_excluded(self, object exclude) except -1:
        for name in exclude:
            slot = self.by_name.get(name)
            if slot is not None:
                self.table.nodes[<Py_ssize_t>slot].excluded = self.call
        return 0

    cdef bint mark_racks(self, object racks) except -1:
        cdef bint found = False
        for rack in racks:
            rack_number = self.rack_numbers.get(rack)
            if rack_number is not None:
                found = True
                self.rack_call[<Py_ssize_t>rack_number] = self.call
        return found

    cdef bint mark_tightest_rack(self, MemberNeeds* needs, int row, Py_ssize_t gang) except -1:
        """Prefer the rack with least room that has enough for the whole gang, else the one with most room."""
        cdef Py_ssize_t slot, rack, best = -1
        cdef Py_ssize_t count = len(self.rack_names)
        cdef Node* node
        if count < 2:
            return False
        for rack in range(count):
            self.rack_room[rack] = 0
        for slot in range(self.table.used):
            node = &self.table.nodes[slot]
            if node.rack < 0 or self.table.cells[((slot // BLOCK) * ROWS_MAX + row) * BLOCK + slot % BLOCK] == 0:
                continue
            self.rack_room[node.rack] += members_that_fit(node, needs)
        for rack in range(count):
            if best < 0 or (
                self.rack_room[rack] > self.rack_room[best]
                if self.rack_room[best] < gang
                else gang <= self.rack_room[rack] < self.rack_room[best]
            ):
                best = rack
        if self.rack_room[best] == 0:
            return False
        self.rack_call[best] = self.call
        return True

    cdef Py_ssize_t find(self, MemberNeeds* needs, int row, bint excluding, bint racks, int policy) except -2:
        """The slot of the node to take, or -1. *row* is -1 when only marked nodes may serve."""
        cdef Py_ssize_t slot, wanted
        cdef Py_ssize_t counts[2]
        cdef Node* node
        cdef ScoreTable table = self.table
        cdef int lap, value, best = 0
        cdef bint near, is_near = False
        if row >= 0 and not excluding and not racks and policy != RANDOM:
            return table.best(row, needs)
        counts[0] = counts[1] = 0
        wanted = 0
        # First what there is; then the one to take of it.
        for lap in range(2):
            for slot in range(table.used):
                node = &table.nodes[slot]
                if row >= 0:
                    value = table.cells[((slot // BLOCK) * ROWS_MAX + row) * BLOCK + slot % BLOCK]
                else:
                    value = table.score(node, needs, self.call)
                if value == 0 or (excluding and node.excluded == self.call) or node.memory_free < needs.memory:
                    continue
                if table.is_priced and needs.gpu_count:
                    value = table.charged(value, node, needs.gpu_milli)
                near = racks and node.rack >= 0 and self.rack_call[node.rack] == self.call
                if lap == 0:
                    counts[near] += 1
                    if near > is_near or (near == is_near and value > best):
                        is_near, best = near, value
                elif near == is_near and (policy == RANDOM or value >= best):
                    if wanted == 0:
                        return slot
                    wanted -= 1
            if best == 0:
                return -1
            best = table.as_good_as(best)
            if policy == RANDOM:
                wanted = self._roll(counts[is_near])
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

    cdef tuple place_all(self, MemberNeeds* needs, Py_ssize_t gang, object exclude, object racks, object within,
                         int policy, Py_ssize_t* single_slot, int* single_gpu, bint partly):
        """Shares for all members; without all of them ``None``, or those there are if *partly*."""
        cdef ScoreTable table = self.table
        cdef Py_ssize_t slot
        cdef Node* node
        cdef Py_ssize_t done = 0
        cdef int row = -1, count, at
        cdef bint excluding = False, near = False
        # Shares are counted as held once all are found: they lie far apart, and are fetched meanwhile. The dice may be
        # Python code, in which another thread may take a node away, shares and all.
        cdef bint is_lent = needs.gpu_count < 2 and policy != RANDOM
        cdef unsigned long long only = 0
        cdef list shares = None
        cdef tuple found = None
        cdef void* single = NULL
        # Marks bear the number of the call that made them, so nothing has to be cleared behind it.
        self.call += 1
        # Before any row is read: both change what the cells of all rows are worth.
        if self.is_mix_stale:
            self.sum_up_mix()
        if self.priced_for == 0 and policy == COMPLETION:
            table.price_models(self.capacity_milli - self.allocated_milli)
        if within != ():
            within = tuple(within)
        if within:
            self.mark_within(within)
            only = self.call
        else:
            row = table.row_of(needs)
            table.settle_row(row)
        if exclude != ():
            self.mark_excluded(exclude)
            excluding = True
        if racks != ():
            near = self.mark_racks(racks)
        if gang > 1:
            if policy == TOPOLOGY and row >= 0 and not near:
                near = self.mark_tightest_rack(needs, row, gang)
            if is_lent:
                self.need_members(gang)
                found = PyTuple_New(gang)  # now: once shares are borrowed, nothing is to run that could free them
            else:
                shares = []
        while done < gang:
            slot = self.find(needs, row, excluding, near, policy)
            if slot < 0:
                break
            done += 1
            node = &table.nodes[slot]
            count = table.pick(node, needs, only, self.chosen)
            if count < 2:
                single = details(node)[self.chosen[0] if count else node.gpu_count].share
                prefetch(single)
            self.charge(slot, self.chosen, count, needs.cpu, needs.memory, needs.gpu_milli, needs.gpu_memory, 1)
            if gang == 1:
                if count < 2:
                    single_slot[0] = slot
                    single_gpu[0] = self.chosen[0] if count else -1
                    found = (<object>single,)
                else:
                    found = (self.share_of(slot, count),)
                table.settle(SETTLED_A_CALL)
                return found
            if is_lent:
                self.taken[done - 1] = single
            else:
                shares.append(<object>single if count < 2 else self.share_of(slot, count))
            # The next member is found by this row: it has to see what this one took. Other rows are settled later.
            if row >= 0 and done < gang:
                table.set_cell(row, slot, table.cell(row, slot))
        if done == 0 and not partly:
            table.settle(SETTLED_A_CALL)
            return None
        if is_lent and gang > 1:
            for slot in range(done):
                Py_INCREF(<object>self.taken[slot])
                PyTuple_SET_ITEM(found, slot, <object>self.taken[slot])
            if done < gang:
                found = found[:done]
        else:
            found = tuple(shares or ())
        if done == gang:
            table.settle(SETTLED_A_CALL)
            return found
        if partly:
            return found
        for share in found:
            self.charge_share(share, needs.cpu, needs.memory, needs.gpu_milli, needs.gpu_memory, -1)
        table.settle(SETTLED_A_CALL)
        return None

    cdef tuple share_of(self, Py_ssize_t slot, int count):
        """What a member with the *count* devices that are chosen gets."""
        cdef int at
        return (self.names[slot], tuple([self.chosen[at] for at in range(count)]))

    cdef void charge(self, Py_ssize_t slot, const int* gpus, int count, long long cpu, long long memory, int milli,
                     long long mib, int sign) noexcept nogil:
        cdef Node* node = &self.table.nodes[slot]
        cdef long long* model_free = self.table.model_free
        cdef Gpu* gpu
        cdef int at
        node.cpu_free -= sign * cpu
        node.memory_free -= sign * memory
        if count:
            for at in range(count):
                gpu = &node.gpus[gpus[at]]
                gpu.milli_free -= sign * milli
                gpu.memory_free -= sign * mib
                model_free[gpu.model] -= sign * milli
            node.milli_free -= <long long>sign * milli * count
            self.allocated_milli += <long long>sign * milli * count
            summarise(node)
        self.table.touch(slot, sign < 0)

    cdef int charge_share(self, object share, long long cpu, long long memory, int milli, long long mib,
                          int sign) except -1:
        cdef Py_ssize_t slot = self.by_name[share[0]]
        cdef tuple indexes = share[1]
        cdef int at
        for at in range(len(indexes)):
            self.chosen[at] = indexes[at]
        self.charge(slot, self.chosen, <int>len(indexes), cpu, memory, milli, mib, sign)
        return 0

    cdef str misfit(self, object share, MemberNeeds* needs):
        """Why this share cannot be held right there, or an empty string."""
        cdef Node* node = self.node(share[0])
        cdef Gpu* gpu
        if node.cpu_free < needs.cpu:
            return f"{needs.cpu} cpu_milli asked, {node.cpu_free} free"
        if node.memory_free < needs.memory:
            return f"{needs.memory} memory_mib asked, {node.memory_free} free"
        if len(set(share[1])) != len(share[1]):
            return "a GPU is named twice"
        for index in share[1]:
            if not 0 <= index < node.gpu_count:
                return f"there is no GPU {index}"
            gpu = &node.gpus[<Py_ssize_t>index]
            if gpu.milli_free < needs.gpu_milli:
                return f"GPU {index} has {gpu.milli_free} milli free, {needs.gpu_milli} asked"
            if gpu.memory_free < needs.gpu_memory:
                return f"GPU {index} has {gpu.memory_free} MiB free, {needs.gpu_memory} asked"
        return ""

    cdef object hold(self, object id, tuple shares, MemberNeeds* needs, Py_ssize_t slot, int gpu):
        cdef Holding held = Holding.__new__(Holding)
        if id is None:
            # Adopted placements bring ids of their own, which may be numbers too.
            while self.next_id in self.held:
                self.next_id += 1
            id = self.next_id
            self.next_id += 1
        held.shares = shares
        held.cpu = needs.cpu
        held.memory = needs.memory
        held.gpu_memory = needs.gpu_memory
        held.gpu_milli = needs.gpu_milli
        held.slot = slot
        held.gpu = gpu
        self.held[id] = held
        return new_tuple(Placement, (id, shares))


cdef void summarise(Node* node) noexcept nogil:
    cdef int index, milli
    node.whole_free = node.most_free = 0
    for index in range(node.gpu_count):
        milli = node.gpus[index].milli_free
        node.whole_free += milli == WHOLE
        if milli > node.most_free:
            node.most_free = milli


cdef long long members_that_fit(Node* node, MemberNeeds* needs) noexcept nogil:
    """How many members a node would hold by CPU, memory and free shares, if any of its devices may serve."""
    cdef long long found = 2**30
    cdef long long count = 0
    cdef int index
    if needs.cpu:
        found = min(found, node.cpu_free // needs.cpu)
    if needs.memory:
        found = min(found, node.memory_free // needs.memory)
    if needs.gpu_count:
        if needs.gpu_milli == WHOLE:
            count = node.whole_free
        else:
            for index in range(node.gpu_count):
                count += node.gpus[index].milli_free // needs.gpu_milli
        found = min(found, count // needs.gpu_count)
    return found


cdef int near_number(object word, int count) except -1:
    cdef int found = closeness_number(word)
    return found if count > 1 else 0


cdef Py_ssize_t gang_size(object gang) except -1:
    cdef long long size = number(gang, "gang")
    if not 1 <= size <= MAX_GANG:
        raise BadRequest(f"gang={size} is out of range", asked=f"gang={size}",
                         hint=f"a gang has 1 to {MAX_GANG} members")
    return size
