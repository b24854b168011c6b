"""Who gets which GPUs of which node: the placement engine, in plain Python.

The engine holds every node's free CPU, memory and devices, and the placements made of them. It never gives
out more than there is; a gang is placed whole or not at all; the same calls in the same order give the same
answers. It knows no clock, file or socket. Lowest key wins, ties go to the node added first (a node added
after one was removed takes the lowest free place in that order):

* ``best_fit``   least GPU left over: on the chosen device, then on the node, then least CPU
* ``first_fit``  the first node
* ``packing``    devices already shared, then nodes in use, then idle ones
* ``spread``     the least loaded node, and on it the device with most left
* ``random``     any that fits, by the *rng* given (a function that gives a number below its argument)

On the chosen node ``best_fit`` and ``packing`` take the devices with least left, ``first_fit`` and
``random`` those with the lowest index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from actorgrid.errors import AdoptRefused, BadRequest, DuplicateNode, UnknownNode, UnknownPlacement

from ..misfit import explain_misfit
from ..records import (
    MAX_GANG,
    MAX_GPUS_PER_NODE,
    POLICIES,
    WHOLE_GPU_MILLI,
    GpuView,
    NodeView,
    Placement,
    Share,
    Shares,
    TypicalTask,
    device_list,
    policy_number,
)

BEST_FIT, FIRST_FIT, PACKING, SPREAD, RANDOM = range(len(POLICIES))


class _Gpu:
    __slots__ = ("memory", "memory_free", "milli_free", "model")

    def __init__(self, model: str, memory: int) -> None:
        self.model = model
        self.memory = self.memory_free = memory
        self.milli_free = WHOLE_GPU_MILLI


class _Node:
    __slots__ = ("cpu", "cpu_free", "draining", "gpus", "memory", "memory_free", "milli_free", "name", "numa", "rack")

    def __init__(self, name: str, cpu: int, memory: int, gpus: list[_Gpu], rack: str | None, numa: Any) -> None:
        self.name = name
        self.cpu = self.cpu_free = cpu
        self.memory = self.memory_free = memory
        self.gpus = gpus
        self.milli_free = WHOLE_GPU_MILLI * len(gpus)
        self.rack = rack
        self.numa = numa
        self.draining = False

    @property
    def in_use(self) -> bool:
        return self.cpu_free < self.cpu or self.milli_free < WHOLE_GPU_MILLI * len(self.gpus)


class _Ask:
    """One member's needs; the same for every member of a gang."""

    __slots__ = ("cpu", "exclude", "gpu_count", "gpu_memory", "gpu_milli", "memory", "models", "racks", "within")

    def __init__(
        self,
        cpu: int,
        memory: int,
        gpu_count: int,
        gpu_milli: int,
        gpu_memory: int,
        models: Collection[str],
        exclude: Collection[str],
        racks: Collection[str],
        within: Iterable[Share],
    ) -> None:
        if min(cpu, memory, gpu_count, gpu_memory) < 0:
            raise BadRequest("a placement asks for less than nothing", hint="amounts are zero or more")
        if not 1 <= gpu_milli <= WHOLE_GPU_MILLI:
            raise BadRequest(
                f"gpu_milli={gpu_milli} is not a share of a GPU", hint="give 1 to 1000 and say how many with gpu_count"
            )
        self.cpu, self.memory = cpu, memory
        self.gpu_count, self.gpu_milli, self.gpu_memory = gpu_count, gpu_milli, gpu_memory
        self.models, self.exclude, self.racks = frozenset(models), frozenset(exclude), frozenset(racks)
        self.within = {name: frozenset(indexes) for name, indexes in within}


def _check_gang(gang: int) -> None:
    if not 1 <= gang <= MAX_GANG:
        raise BadRequest(f"gang={gang} is out of range", hint=f"a gang has 1 to {MAX_GANG} members")


class _SplitMix:
    """Dice for ``random`` when none were given: always the same sequence."""

    def __init__(self) -> None:
        self.state = 0

    def __call__(self, below: int) -> int:
        mask = 0xFFFFFFFFFFFFFFFF
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return (z ^ (z >> 31)) % below


class PlacementEngine:
    """Nodes, what is free on them, and who holds the rest.

    Raises UnknownPolicy for a policy that is not there. *rng* matters to ``random`` only.
    """

    def __init__(self, policy: str = "best_fit", rng: Callable[[int], int] | None = None) -> None:
        self._policy = policy_number(policy)
        self._rng = rng or _SplitMix()
        self._slots: list[_Node | None] = []
        self._by_name: dict[str, int] = {}
        self._held: dict[int | str, tuple[Shares, int, int, int, int]] = {}
        self._next_id = 1
        self._typical: tuple[TypicalTask, ...] = ()
        self._allocated_milli = 0
        self._capacity_milli = 0

    # -- what there is

    @property
    def policy(self) -> str:
        """The name of the policy."""
        return POLICIES[self._policy]

    @property
    def allocated_gpu_milli(self) -> int:
        """Thousandths of GPUs given out, over all nodes."""
        return self._allocated_milli

    @property
    def capacity_gpu_milli(self) -> int:
        """Thousandths of GPUs there are, draining nodes included."""
        return self._capacity_milli

    @property
    def typical_tasks(self) -> tuple[TypicalTask, ...]:
        """The mix last set."""
        return self._typical

    def set_typical_tasks(self, tasks: Iterable[TypicalTask]) -> None:
        """Say what usually arrives. Kept for policies that weigh fragments; none of the present ones does."""
        self._typical = tuple(tasks)

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, id: object) -> bool:
        return id in self._held

    def nodes(self) -> list[NodeView]:
        """All nodes as they are now, in their order."""
        return [
            NodeView(
                node.name,
                node.rack,
                node.numa,
                node.draining,
                node.cpu,
                node.cpu_free,
                node.memory,
                node.memory_free,
                tuple(GpuView(gpu.model, gpu.milli_free, gpu.memory_free, gpu.memory) for gpu in node.gpus),
            )
            for node in self._slots
            if node is not None
        ]

    def placement(self, id: int | str) -> Placement:
        """What is held under *id*. Raises UnknownPlacement."""
        held = self._held.get(id)
        if held is None:
            raise UnknownPlacement(f"no placement has the id {id!r}", asked=str(id))
        return Placement(id, held[0])

    def placements(self) -> dict[int | str, Shares]:
        """Everything held, by id."""
        return {id: held[0] for id, held in self._held.items()}

    def add_node(
        self,
        name: str,
        *,
        cpu_milli: int,
        memory_mib: int,
        gpu_count: int = 0,
        gpu_model: str = "",
        gpu_memory_mib: int = 0,
        rack: str | None = None,
        numa: Any = None,
        devices: Iterable[tuple[str, int]] = (),
    ) -> str:
        """Register a node; gives its name, which is how every other call names it.

        *devices*, (model, memory_mib) each, is for nodes whose GPUs differ; it stands in for the three
        ``gpu_`` arguments. A device of 0 MiB serves only requests that ask for no device memory.
        Raises DuplicateNode, BadRequest.
        """
        if name in self._by_name:
            raise DuplicateNode(f"node {name!r} is registered already", asked=name, hint="remove it first")
        listed = device_list(gpu_count, gpu_model, gpu_memory_mib, devices)
        if min(cpu_milli, memory_mib, gpu_count, *(memory for _, memory in listed), 0) < 0:
            raise BadRequest(f"node {name!r} has less than nothing of something")
        if len(listed) > MAX_GPUS_PER_NODE:
            raise BadRequest(f"node {name!r} has {len(listed)} GPUs", hint=f"at most {MAX_GPUS_PER_NODE} per node")
        node = _Node(name, cpu_milli, memory_mib, [_Gpu(*device) for device in listed], rack, numa)
        slot = next((slot for slot, taken in enumerate(self._slots) if taken is None), len(self._slots))
        if slot == len(self._slots):
            self._slots.append(node)
        else:
            self._slots[slot] = node
        self._by_name[name] = slot
        self._capacity_milli += WHOLE_GPU_MILLI * len(listed)
        return name

    def remove_node(self, name: str) -> tuple[int | str, ...]:
        """Forget a node; gives the ids of placements that had shares there.

        Those shares are gone with it. The rest of such a gang stays held until it is released; a
        placement with nothing left is gone. Raises UnknownNode.
        """
        node = self._node(name)
        touched = []
        for id, (shares, cpu, memory, milli, mib) in list(self._held.items()):
            left = tuple(share for share in shares if share[0] != name)
            if len(left) != len(shares):
                touched.append(id)
                if left:
                    self._held[id] = (left, cpu, memory, milli, mib)
                else:
                    del self._held[id]
        capacity = WHOLE_GPU_MILLI * len(node.gpus)
        self._allocated_milli -= capacity - node.milli_free
        self._capacity_milli -= capacity
        self._slots[self._by_name.pop(name)] = None
        return tuple(touched)

    def drain(self, name: str, draining: bool = True) -> None:
        """Place nothing new on a node (or, with ``False``, again); what is there stays. Raises UnknownNode."""
        self._node(name).draining = draining

    # -- giving out and taking back

    def place(
        self,
        *,
        cpu_milli: int = 0,
        memory_mib: int = 0,
        gpu_count: int = 0,
        gpu_milli: int = WHOLE_GPU_MILLI,
        gpu_memory_mib: int = 0,
        gpu_models: Collection[str] = (),
        gang: int = 1,
        exclude: Collection[str] = (),
        prefer_racks: Collection[str] = (),
        within: Iterable[Share] = (),
        id: int | str | None = None,
    ) -> Placement | None:
        """Hold room for *gang* members of one shape, or ``None`` when not all of them fit now.

        Each member gets *gpu_count* different devices of one node, *gpu_milli* and *gpu_memory_mib* of each.
        *within* limits the choice to the nodes and devices listed, in the form of ``shares``. Nodes in
        *prefer_racks* come first whatever the policy says. *id* names the placement (default: a new
        number). Members are placed one after another, so a gang that asks for shares of several devices
        each may be refused although some other arrangement would hold it. Raises BadRequest.
        """
        _check_gang(gang)
        ask = _Ask(
            cpu_milli,
            memory_mib,
            gpu_count,
            gpu_milli,
            gpu_memory_mib,
            gpu_models,
            exclude,
            prefer_racks,
            within,
        )
        if id is not None and id in self._held:
            raise BadRequest(f"a placement {id!r} is held already")
        shares = self._place_all(ask, gang, self._policy)
        if shares is None:
            return None
        return self._hold(id, shares, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib)

    def reserve(
        self,
        name: str,
        *,
        cpu_milli: int = 0,
        memory_mib: int = 0,
        gpu_indexes: Collection[int] = (),
        gpu_milli: int = WHOLE_GPU_MILLI,
        gpu_memory_mib: int = 0,
        id: int | str | None = None,
    ) -> Placement | None:
        """Hold exactly this on exactly that node, draining or not; ``None`` when it is not free.

        For room that is kept for something: maintenance, a gang that waits for its turn. Released like a
        placement. Raises UnknownNode, BadRequest.
        """
        self._node(name)
        ask = _Ask(cpu_milli, memory_mib, len(gpu_indexes), gpu_milli, gpu_memory_mib, (), (), (), ())
        if id is not None and id in self._held:
            raise BadRequest(f"a placement {id!r} is held already")
        share = (name, tuple(gpu_indexes))
        if self._misfit(share, ask):
            return None
        self._charge(share, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib, 1)
        return self._hold(id, (share,), cpu_milli, memory_mib, gpu_milli, gpu_memory_mib)

    def adopt(
        self,
        id: int | str,
        shares: Iterable[Share],
        *,
        cpu_milli: int = 0,
        memory_mib: int = 0,
        gpu_milli: int = WHOLE_GPU_MILLI,
        gpu_memory_mib: int = 0,
    ) -> Placement:
        """Take over a placement made elsewhere (the ledger's), whole, amounts per share as for ``place``.

        Raises AdoptRefused, with nothing changed, when it does not fit or its id is held; UnknownNode.
        """
        wanted = tuple((name, tuple(indexes)) for name, indexes in shares)
        if id in self._held:
            raise AdoptRefused(f"a placement {id!r} is held already", asked=str(id))
        for name, _ in wanted:
            self._node(name)
        for done, share in enumerate(wanted):
            ask = _Ask(cpu_milli, memory_mib, len(share[1]), gpu_milli, gpu_memory_mib, (), (), (), ())
            problem = self._misfit(share, ask)
            if problem:
                for taken in wanted[:done]:
                    self._charge(taken, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib, -1)
                raise AdoptRefused(f"placement {id!r} does not fit on {share[0]}: {problem}", asked=str(wanted))
            self._charge(share, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib, 1)
        return self._hold(id, wanted, cpu_milli, memory_mib, gpu_milli, gpu_memory_mib)

    def release(self, id: int | str) -> None:
        """Give back everything held under *id*. Raises UnknownPlacement."""
        held = self._held.pop(id, None)
        if held is None:
            raise UnknownPlacement(f"no placement has the id {id!r}", asked=str(id))
        shares, cpu, memory, milli, mib = held
        for share in shares:
            self._charge(share, cpu, memory, milli, mib, -1)

    def explain(
        self,
        *,
        cpu_milli: int = 0,
        memory_mib: int = 0,
        gpu_count: int = 0,
        gpu_milli: int = WHOLE_GPU_MILLI,
        gpu_memory_mib: int = 0,
        gpu_models: Collection[str] = (),
        gang: int = 1,
        exclude: Collection[str] = (),
        prefer_racks: Collection[str] = (),
        within: Iterable[Share] = (),
    ) -> dict[str, Any]:
        """Whether ``place`` with these arguments would succeed, and if not, why; changes nothing.

        ``fits``; ``gang`` and ``members_that_fit`` of it; and as :func:`~actorgrid.hotpath.misfit.explain_misfit`
        for one member: ``total_nodes``, ``nodes_that_fit``, ``failed`` {constraint: nodes}, ``nearest``.
        """
        _check_gang(gang)
        within = tuple(within)
        ask = _Ask(cpu_milli, memory_mib, gpu_count, gpu_milli, gpu_memory_mib, gpu_models, exclude, (), within)
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
        members = self._count_members(ask, gang)
        return {"fits": members == gang, "gang": gang, "members_that_fit": members, **report}

    # -- inside

    def _node(self, name: str) -> _Node:
        slot = self._by_name.get(name)
        node = None if slot is None else self._slots[slot]
        if node is None:
            raise UnknownNode(f"no node is called {name!r}", asked=str(name), found=f"{len(self._by_name)} nodes")
        return node

    def _hold(self, id: int | str | None, shares: Shares, cpu: int, memory: int, milli: int, mib: int) -> Placement:
        if id is None:
            while self._next_id in self._held:
                self._next_id += 1
            id = self._next_id
            self._next_id += 1
        self._held[id] = (shares, cpu, memory, milli, mib)
        return Placement(id, shares)

    def _place_all(self, ask: _Ask, gang: int, policy: int) -> Shares | None:
        shares: list[Share] = []
        for _ in range(gang):
            share = self._place_one(ask, policy)
            if share is None:
                for taken in shares:
                    self._charge(taken, ask.cpu, ask.memory, ask.gpu_milli, ask.gpu_memory, -1)
                return None
            self._charge(share, ask.cpu, ask.memory, ask.gpu_milli, ask.gpu_memory, 1)
            shares.append(share)
        return tuple(shares)

    def _count_members(self, ask: _Ask, gang: int) -> int:
        shares: list[Share] = []
        while len(shares) < gang:
            share = self._place_one(ask, self._policy if self._policy != RANDOM else FIRST_FIT)
            if share is None:
                break
            self._charge(share, ask.cpu, ask.memory, ask.gpu_milli, ask.gpu_memory, 1)
            shares.append(share)
        for taken in shares:
            self._charge(taken, ask.cpu, ask.memory, ask.gpu_milli, ask.gpu_memory, -1)
        return len(shares)

    def _fitting(self, node: _Node, ask: _Ask) -> list[int] | None:
        """Indexes of the devices that could serve, or ``None`` when the node cannot."""
        if node.draining or node.cpu_free < ask.cpu or node.memory_free < ask.memory or node.name in ask.exclude:
            return None
        allowed = ask.within.get(node.name)
        if ask.within and allowed is None:
            return None
        if not ask.gpu_count:
            return []
        found = [
            index
            for index, gpu in enumerate(node.gpus)
            if gpu.milli_free >= ask.gpu_milli
            and gpu.memory_free >= ask.gpu_memory
            and (not ask.models or gpu.model in ask.models)
            and (allowed is None or index in allowed)
        ]
        return found if len(found) >= ask.gpu_count else None

    def _place_one(self, ask: _Ask, policy: int) -> Share | None:
        best: tuple[tuple[int, ...], _Node, list[int]] | None = None
        fitting: list[tuple[int, _Node, list[int]]] = []
        for slot, node in enumerate(self._slots):
            if node is None:
                continue
            found = self._fitting(node, ask)
            if found is None:
                continue
            far = 0 if node.rack is not None and node.rack in ask.racks else 1
            if policy == RANDOM:
                fitting.append((far, node, found))
                continue
            key = (far, *self._score(node, found, ask, policy), slot)
            if best is None or key < best[0]:
                best = (key, node, found)
        if fitting:
            nearest = min(far for far, _, _ in fitting)
            near = [candidate for candidate in fitting if candidate[0] == nearest]
            _, node, found = near[self._rng(len(near))]
            best = ((), node, found)
        if best is None:
            return None
        _, node, found = best
        return (node.name, self._choose(node, found, ask.gpu_count, policy))

    def _score(self, node: _Node, found: list[int], ask: _Ask, policy: int) -> tuple[int, int, int]:
        cpu_left = node.cpu_free - ask.cpu
        if policy == BEST_FIT:
            tightest = min((node.gpus[index].milli_free for index in found), default=0)
            return tightest, node.milli_free, cpu_left
        if policy == PACKING:
            if ask.gpu_milli < WHOLE_GPU_MILLI and any(node.gpus[i].milli_free < WHOLE_GPU_MILLI for i in found):
                return 0, 0, 0
            return (1 if node.in_use else 2), 0, 0
        if policy == SPREAD:
            capacity = WHOLE_GPU_MILLI * len(node.gpus)
            gpu_load = (capacity - node.milli_free) * 1000 // capacity if capacity else 0
            cpu_load = (node.cpu - node.cpu_free) * 1000 // node.cpu if node.cpu else 0
            return (gpu_load, cpu_load, 0) if ask.gpu_count else (cpu_load, gpu_load, 0)
        return 0, 0, 0

    def _choose(self, node: _Node, found: list[int], count: int, policy: int) -> tuple[int, ...]:
        if policy in (BEST_FIT, PACKING):
            found.sort(key=lambda index: (node.gpus[index].milli_free, node.gpus[index].memory_free, index))
        elif policy == SPREAD:
            found.sort(key=lambda index: (-node.gpus[index].milli_free, -node.gpus[index].memory_free, index))
        return tuple(sorted(found[:count]))

    def _misfit(self, share: Share, ask: _Ask) -> str:
        """Why this share cannot be held right there, or an empty string."""
        name, indexes = share
        node = self._node(name)
        if node.cpu_free < ask.cpu:
            return f"{ask.cpu} cpu_milli asked, {node.cpu_free} free"
        if node.memory_free < ask.memory:
            return f"{ask.memory} memory_mib asked, {node.memory_free} free"
        if len(set(indexes)) != len(indexes):
            return "a GPU is named twice"
        for index in indexes:
            if not 0 <= index < len(node.gpus):
                return f"there is no GPU {index}"
            gpu = node.gpus[index]
            if gpu.milli_free < ask.gpu_milli:
                return f"GPU {index} has {gpu.milli_free} milli free, {ask.gpu_milli} asked"
            if gpu.memory_free < ask.gpu_memory:
                return f"GPU {index} has {gpu.memory_free} MiB free, {ask.gpu_memory} asked"
        return ""

    def _charge(self, share: Share, cpu: int, memory: int, milli: int, mib: int, sign: int) -> None:
        name, indexes = share
        node = self._node(name)
        node.cpu_free -= sign * cpu
        node.memory_free -= sign * memory
        for index in indexes:
            node.gpus[index].milli_free -= sign * milli
            node.gpus[index].memory_free -= sign * mib
        node.milli_free -= sign * milli * len(indexes)
        self._allocated_milli += sign * milli * len(indexes)
