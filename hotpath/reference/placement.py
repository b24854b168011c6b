"""Who gets which GPUs of which node: the placement engine, in plain Python.

The engine holds every node's free CPU, memory and devices, and the placements made of them. It never gives
out more than there is; a gang is placed whole or not at all; the same calls in the same order give the same
answers. It knows no clock, file or socket. Each policy is a score (``score_table.py``); the highest wins, ties go to
the node added first (a node added after one was removed takes the lowest free place in that order).

Bounds: 16,384 GPUs on a node, 4,096 members in a gang, 250 typical tasks, amounts up to 2**53.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from actorgrid.configs.placement_policy import POLICIES
from actorgrid.errors import AdoptRefused, BadRequest, DuplicateNode, UnknownNode, UnknownPlacement

from ..closeness import near_masks
from ..explain import explain_misfit
from ..records import (
    WHOLE_GPU_MILLI,
    GpuView,
    NodeView,
    Placement,
    Share,
    Shares,
    Snapshot,
    TypicalTask,
    check_devices,
    device_domains,
    device_list,
    policy_number,
)
from ..typical_mix import DEFAULT_MIX, check_mix
from .arguments import Limits, Within, gang_size, member_needs, number
from .model_price import PRICED_FOR
from .score_table import Gpu, MemberNeeds, MixPrices, ScoredNode, as_good_as, choose, score, usable

SHAPES_REMEMBERED = 256

P = ParamSpec("P")
R = TypeVar("R")


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


def _as_one(method: Callable[P, R]) -> Callable[P, R]:
    """No snapshot shows what a call has done so far."""

    @wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        engine: Any = arguments[0]
        if engine.policy == "random":  # its dice may ask for a snapshot, which would wait for itself
            return method(*arguments, **named)
        engine._turns += 1  # odd: something is being changed
        try:
            return method(*arguments, **named)
        finally:
            engine._turns += 1

    return call


class PlacementEngine:
    """Nodes, what is free on them, and who holds the rest.

    Raises UnknownPolicy for a policy that is not there. *rng* matters to ``random`` only.
    """

    def __init__(self, policy: str = "completion", rng: Callable[[int], int] | None = None) -> None:
        self._policy = policy_number(policy)
        self._rng = rng or _SplitMix()
        self._slots: list[ScoredNode | None] = []
        self._by_name: dict[str, int] = {}
        self._held: dict[int | str, tuple[Shares, MemberNeeds]] = {}
        self._racks: dict[str, None] = {}  # all ever told, in order
        self._next_id = 1
        self._typical: tuple[TypicalTask, ...] = ()
        self._mix = MixPrices(DEFAULT_MIX)
        self._largest = (0, 0)  # CPU and GPUs of a node, ever
        self._scores: dict[
            MemberNeeds, dict[int, tuple[int, int]]
        ] = {}  # of each slot: the node's version, and its score
        self._versions = 0
        self._priced_for = 0  # placements until models are priced anew
        self._turns = 0  # begun and ended changes: a snapshot is of one even number, at its beginning and at its end
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
        """Say what usually arrives: what ``completion`` and ``fgd`` weigh by. Weights are relative.

        The heaviest 250 count; of none, a default mix is assumed. Costs a look at every node: call it when the mix
        has changed, not for each task. Raises BadRequest.
        """
        self._typical = check_mix(tasks)
        self._mix = MixPrices(self._typical or DEFAULT_MIX)
        self._mix.cover(*self._largest)
        self._scores.clear()
        self._priced_for = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, id: object) -> bool:
        return id in self._held

    def nodes(self) -> list[NodeView]:
        """All nodes as they are now, in their order."""
        return [self._view(node) for node in list(self._slots) if node is not None]

    def snapshot(self) -> Snapshot:
        """Everything at one moment, for any thread; the one that places need not wait, and is not waited for.

        One thread may change the engine. A gang is in it whole or not at all (with ``random`` and an *rng* that is
        Python code, the members so far may be).
        """
        while True:
            turns = self._turns
            if turns % 2:
                continue
            found = Snapshot(self._versions, tuple(self.nodes()), self._allocated_milli, self._capacity_milli)
            if turns == self._turns:
                return found

    @staticmethod
    def _view(node: ScoredNode) -> NodeView:
        return NodeView(
            node.name,
            node.rack,
            node.numa,
            node.draining,
            node.cpu,
            node.cpu_free,
            node.memory,
            node.memory_free,
            tuple(GpuView(gpu.model, gpu.milli_free, gpu.memory_free, gpu.memory) for gpu in node.gpus),
            node.nvlink,
            node.near,
        )

    def placement(self, id: int | str) -> Placement:
        """What is held under *id*. Raises UnknownPlacement."""
        held = self._held.get(id)
        if held is None:
            raise UnknownPlacement(f"no placement has the id {id!r}", asked=str(id))
        return Placement(id, held[0])

    def placements(self) -> dict[int | str, Shares]:
        """Everything held, by id."""
        return {id: held[0] for id, held in self._held.items()}

    @_as_one
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
        numa: tuple[int, ...] | None = None,
        nvlink: tuple[int, ...] | None = None,
        near: tuple[str, ...] | None = None,
        devices: Iterable[tuple[str, int]] = (),
    ) -> str:
        """Register a node; gives its name, which is how every other call names it.

        *devices*, (model, memory_mib) each, is for nodes whose GPUs differ; it stands in for the three
        ``gpu_`` arguments. A device of 0 MiB serves only requests that ask for no device memory. *nvlink* and
        *numa* give each device the number of its NVLink group and of its NUMA node: several whole devices of one
        request come from one group where they can. *near* says how close they are (see ``closeness.py``); what
        is to lie close is placed by it alone. Raises DuplicateNode, BadRequest.
        """
        cpu, memory = number(cpu_milli, "cpu_milli"), number(memory_mib, "memory_mib")
        if name in self._by_name:
            raise DuplicateNode(f"node {name!r} is registered already", asked=name, hint="remove it first")
        number(gpu_count, "gpu_count")
        number(gpu_memory_mib, "gpu_memory_mib")
        check_devices(name, gpu_count, devices)
        listed = device_list(gpu_count, gpu_model, gpu_memory_mib, devices)
        domains = device_domains(name, len(listed), numa, nvlink)
        masks = near_masks(name, near, len(listed))
        gpus = [Gpu(model, mib, domain) for (model, mib), domain in zip(listed, domains, strict=True)]
        node = ScoredNode(name, cpu, memory, gpus, rack, numa, nvlink, near, masks)
        self._changed(node)
        slot = next((slot for slot, taken in enumerate(self._slots) if taken is None), len(self._slots))
        if slot == len(self._slots):
            self._slots.append(node)
        else:
            self._slots[slot] = node
        self._by_name[name] = slot
        self._largest = (max(self._largest[0], cpu), max(self._largest[1], len(gpus)))
        self._cover()
        self._priced_for = 0
        if rack is not None:
            self._racks[rack] = None
        self._capacity_milli += WHOLE_GPU_MILLI * len(listed)
        return name

    @_as_one
    def resize_node(self, name: str, *, cpu_milli: int, memory_mib: int) -> None:
        """Give a node other amounts of CPU and memory. Raises UnknownNode; BadRequest when more is given out."""
        node = self._node(name)
        cpu, memory = number(cpu_milli, "cpu_milli"), number(memory_mib, "memory_mib")
        cpu_used, memory_used = node.cpu - node.cpu_free, node.memory - node.memory_free
        if cpu < cpu_used or memory < memory_used:
            raise BadRequest(
                f"node {name!r} has more given out than it would have",
                asked=f"{cpu} cpu_milli, {memory} memory_mib",
                found=f"{cpu_used} cpu_milli, {memory_used} memory_mib given out",
                hint="drain it, and release what is on it first",
            )
        self._largest = (max(self._largest[0], cpu), self._largest[1])
        self._cover()
        node.cpu, node.cpu_free = cpu, cpu - cpu_used
        node.memory, node.memory_free = memory, memory - memory_used
        self._changed(node)

    @_as_one
    def remove_node(self, name: str) -> tuple[int | str, ...]:
        """Forget a node; gives the ids of placements that had shares there.

        Those shares are gone with it. The rest of such a gang stays held until it is released; a
        placement with nothing left is gone. Raises UnknownNode.
        """
        node = self._node(name)
        touched = []
        for id, (shares, needs) in list(self._held.items()):
            left = tuple(share for share in shares if share[0] != name)
            if len(left) != len(shares):
                touched.append(id)
                if left:
                    self._held[id] = (left, needs)
                else:
                    del self._held[id]
        capacity = WHOLE_GPU_MILLI * len(node.gpus)
        self._allocated_milli -= capacity - node.milli_free
        self._capacity_milli -= capacity
        self._slots[self._by_name.pop(name)] = None
        self._versions += 1
        self._priced_for = 0
        return tuple(touched)

    def drain(self, name: str, draining: bool = True) -> None:
        """Place nothing new on a node (or, with ``False``, again); what is there stays. Raises UnknownNode."""
        node = self._node(name)
        node.draining = bool(draining)
        self._changed(node)

    def set_device_score(self, name: str, gpu_index: int, score: int) -> None:
        """Say how well a device does, 0 to 1000 (see ``device_score``). Raises UnknownNode, BadRequest."""
        node = self._node(name)
        index, value = number(gpu_index, "gpu_index"), number(score, "score")
        if index >= len(node.gpus) or value > 1000:
            raise BadRequest(
                f"GPU {index} of node {name!r} cannot score {value}",
                found=f"{len(node.gpus)} GPUs",
                hint="a score is 0 to 1000",
            )
        node.gpus[index].score = value
        self._changed(node)

    # -- giving out and taking back

    @_as_one
    def place(
        self,
        *,
        cpu_milli: int = 0,
        memory_mib: int = 0,
        gpu_count: int = 0,
        gpu_milli: int = WHOLE_GPU_MILLI,
        gpu_memory_mib: int = 0,
        gpu_models: Collection[str] = (),
        gpu_topology: str = "",
        gang: int = 1,
        exclude: Collection[str] = (),
        prefer_racks: Collection[str] = (),
        within: Iterable[Share] = (),
        id: int | str | None = None,
    ) -> Placement | None:
        """Hold room for *gang* members with the same needs, or ``None`` when not all of them fit now.

        Each member gets *gpu_count* different devices of one node, *gpu_milli* and *gpu_memory_mib* of each; by
        *gpu_topology*, one of CLOSENESS, every two of them at least that close.
        *within* limits the choice to the nodes and devices listed, in the form of ``shares``. Nodes in
        *prefer_racks* come first whatever the policy says. *id* names the placement (default: a new
        number). Members are placed one after another, so a gang that asks for shares of several devices
        each may be refused although some other arrangement would hold it. Raises BadRequest.
        """
        members = gang_size(gang)
        needs = member_needs(cpu_milli, memory_mib, gpu_count, gpu_milli, gpu_memory_mib, gpu_models, gpu_topology)
        if id is not None and id in self._held:
            raise BadRequest(f"a placement {id!r} is held already")
        limits = Limits(exclude, prefer_racks, within)
        shares = self._place_all(needs, members, limits, self.policy)
        if len(shares) < members:
            for taken in shares:
                self._charge(taken, needs, -1)
            return None
        self._priced_for = (self._priced_for or PRICED_FOR) - 1
        return self._hold(id, tuple(shares), needs)

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
        needs = member_needs(cpu_milli, memory_mib, len(gpu_indexes), gpu_milli, gpu_memory_mib, ())
        if id is not None and id in self._held:
            raise BadRequest(f"a placement {id!r} is held already")
        share = (name, tuple(gpu_indexes))
        if self._misfit(share, needs):
            return None
        self._charge(share, needs, 1)
        return self._hold(id, (share,), needs)

    @_as_one
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
        needs = member_needs(cpu_milli, memory_mib, 1, gpu_milli, gpu_memory_mib, ())
        for done, share in enumerate(wanted):
            problem = self._misfit(share, needs)
            if problem:
                for taken in wanted[:done]:
                    self._charge(taken, needs, -1)
                raise AdoptRefused(f"placement {id!r} does not fit on {share[0]}: {problem}", asked=str(wanted))
            self._charge(share, needs, 1)
        return self._hold(id, wanted, needs)

    @_as_one
    def release(self, id: int | str) -> None:
        """Give back everything held under *id*. Raises UnknownPlacement."""
        held = self._held.pop(id, None)
        if held is None:
            raise UnknownPlacement(f"no placement has the id {id!r}", asked=str(id))
        shares, needs = held
        for share in shares:
            self._charge(share, needs, -1)

    @_as_one
    def explain(
        self,
        *,
        cpu_milli: int = 0,
        memory_mib: int = 0,
        gpu_count: int = 0,
        gpu_milli: int = WHOLE_GPU_MILLI,
        gpu_memory_mib: int = 0,
        gpu_models: Collection[str] = (),
        gpu_topology: str = "",
        gang: int = 1,
        exclude: Collection[str] = (),
        prefer_racks: Collection[str] = (),
        within: Iterable[Share] = (),
    ) -> dict[str, Any]:
        """Whether ``place`` with these arguments would succeed, and if not, why; changes nothing.

        ``fits``; ``gang`` and ``members_that_fit`` of it; and as :func:`~actorgrid.hotpath.explain.explain_misfit`
        for one member: ``total_nodes``, ``nodes_that_fit``, ``failed`` {constraint: nodes}, ``nearest``.
        """
        members = gang_size(gang)
        within = tuple(within)
        needs = member_needs(cpu_milli, memory_mib, gpu_count, gpu_milli, gpu_memory_mib, gpu_models, gpu_topology)
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
        policy = self.policy if self.policy != "random" else "first_fit"
        shares = self._place_all(needs, members, Limits(exclude, (), within), policy)
        for taken in shares:
            self._charge(taken, needs, -1)
        return {"fits": len(shares) == members, "gang": members, "members_that_fit": len(shares), **report}

    # -- inside

    def _node(self, name: str) -> ScoredNode:
        slot = self._by_name.get(name)
        node = None if slot is None else self._slots[slot]
        if node is None:
            raise UnknownNode(f"no node is called {name!r}", asked=str(name), found=f"{len(self._by_name)} nodes")
        return node

    def _changed(self, node: ScoredNode) -> None:
        self._versions += 1
        node.version = self._versions

    def _cover(self) -> None:
        if self._mix.cover(*self._largest):
            self._scores.clear()

    def _hold(self, id: int | str | None, shares: Shares, needs: MemberNeeds) -> Placement:
        if id is None:
            while self._next_id in self._held:
                self._next_id += 1
            id = self._next_id
            self._next_id += 1
        self._held[id] = (shares, needs)
        return Placement(id, shares)

    def _place_all(self, needs: MemberNeeds, gang: int, limits: Limits, policy: str) -> list[Share]:
        """Shares of as many members as fit, charged already."""
        if gang > 1 and policy == "topology" and not limits.within and not self._known(limits.racks):
            limits.racks = self._tightest_rack(needs, gang)
        if not self._priced_for and policy == "completion":
            self._mix.price_models([node for node in self._slots if node is not None])
        shares: list[Share] = []
        while len(shares) < gang:
            node = self._find(needs, limits, policy)
            if node is None:
                break
            found = usable(node, needs, limits.within.get(node.name))
            share = (node.name, choose(policy, node, needs, found or (), self._mix))
            self._charge(share, needs, 1)
            shares.append(share)
        return shares

    def _known(self, racks: frozenset[str]) -> bool:
        return bool(racks & self._racks.keys())

    def _tightest_rack(self, needs: MemberNeeds, gang: int) -> frozenset[str]:
        """The rack with least room that has enough for the whole gang, else the one with most room."""
        if len(self._racks) < 2:
            return frozenset()
        room = dict.fromkeys(self._racks, 0)
        for node in self._slots:
            if node is not None and node.rack is not None and usable(node, needs, None) is not None:
                room[node.rack] += _members_that_fit(node, needs)
        enough = [rack for rack in room if room[rack] >= gang]
        best = min(enough, key=lambda rack: room[rack]) if enough else max(room, key=lambda rack: room[rack])
        return frozenset((best,)) if room[best] else frozenset()

    def _find(self, needs: MemberNeeds, limits: Limits, policy: str) -> ScoredNode | None:
        fitting: list[tuple[bool, int, ScoredNode]] = []
        for slot, node in enumerate(self._slots):
            if node is None or node.name in limits.exclude:
                continue
            if limits.within:
                value = self._score(node, needs, limits.within) if node.name in limits.within else 0
            else:
                value = self._remembered(slot, node, needs)
            if value and policy == "completion":
                value = max(1, value - self._mix.surcharge(node, needs))
            if value:
                fitting.append((node.rack is not None and node.rack in limits.racks, value, node))
        if not fitting:
            return None
        is_near, best = max((near, value) for near, value, _ in fitting)
        if policy == "random":
            candidates = [node for near, _, node in fitting if near == is_near]
            return candidates[self._rng(len(candidates))]
        enough = as_good_as(self.policy, best)
        return next(node for near, value, node in fitting if near == is_near and value >= enough)

    def _remembered(self, slot: int, node: ScoredNode, needs: MemberNeeds) -> int:
        scores = self._scores.get(needs)
        if scores is None:
            if len(self._scores) >= SHAPES_REMEMBERED:
                self._scores.clear()
            scores = self._scores[needs] = {}
        version, value = scores.get(slot, (-1, 0))
        if version != node.version:
            value = self._score(node, needs, {})
            scores[slot] = (node.version, value)
        return value

    def _score(self, node: ScoredNode, needs: MemberNeeds, within: Within) -> int:
        found = usable(node, needs, within.get(node.name))
        return 0 if found is None else score(self.policy, node, needs, found, self._mix)

    def _misfit(self, share: Share, needs: MemberNeeds) -> str:
        """Why this share cannot be held right there, or an empty string."""
        name, indexes = share
        node = self._node(name)
        if node.cpu_free < needs.cpu:
            return f"{needs.cpu} cpu_milli asked, {node.cpu_free} free"
        if node.memory_free < needs.memory:
            return f"{needs.memory} memory_mib asked, {node.memory_free} free"
        if len(set(indexes)) != len(indexes):
            return "a GPU is named twice"
        for index in indexes:
            if not 0 <= index < len(node.gpus):
                return f"there is no GPU {index}"
            gpu = node.gpus[index]
            if gpu.milli_free < needs.gpu_milli:
                return f"GPU {index} has {gpu.milli_free} milli free, {needs.gpu_milli} asked"
            if gpu.memory_free < needs.gpu_memory:
                return f"GPU {index} has {gpu.memory_free} MiB free, {needs.gpu_memory} asked"
        return ""

    def _charge(self, share: Share, needs: MemberNeeds, sign: int) -> None:
        name, indexes = share
        node = self._node(name)
        node.cpu_free -= sign * needs.cpu
        node.memory_free -= sign * needs.memory
        for index in indexes:
            node.gpus[index].milli_free -= sign * needs.gpu_milli
            node.gpus[index].memory_free -= sign * needs.gpu_memory
        self._allocated_milli += sign * needs.gpu_milli * len(indexes)
        self._changed(node)


def _members_that_fit(node: ScoredNode, needs: MemberNeeds) -> int:
    """How many members a node would hold by CPU, memory and free shares, if any of its devices may serve."""
    found = 2**30
    if needs.cpu:
        found = min(found, node.cpu_free // needs.cpu)
    if needs.memory:
        found = min(found, node.memory_free // needs.memory)
    if needs.gpu_count:
        pieces = sum(gpu.milli_free // needs.gpu_milli for gpu in node.gpus)
        found = min(found, pieces // needs.gpu_count)
    return found
