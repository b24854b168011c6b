"""What a graph's steps may have: hosts, what is free of them, and where results lie.

``ResourceTracker`` is what an allocator sees, and may be implemented otherwise. ``ClusterTracker`` keeps it by a
placement engine of its own, for simulated hosts as for a cluster's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

from actorgrid.demand import Demand
from actorgrid.errors import AdoptRefused, UnknownNode, UnsatisfiableCost
from actorgrid.hotpath import PlacementEngine
from actorgrid.hotpath.records import WHOLE_GPU_MILLI

from .model import Graph, GraphStep, shown_path
from .ranks import BANDWIDTH

AMOUNTS_SHOWN = 3
_TRIAL = "?"
FREE_CPU_PRICE, GPU_PRICE = 0.05, 2.0
"""What an hour of a core and of a GPU counts with where hosts have no prices: GPUs are dear."""


@dataclass(frozen=True, slots=True)
class HostCapacity:
    """What one host has for steps. *gpus* are (model, MiB) each; *speed* how many times faster it is than told
    runtimes; *price_per_hour* what it costs while it runs something, in any unit (``None``: by its cores and GPUs)."""

    name: str
    cpu_milli: int = 1000
    memory_mib: int = 2**30
    gpus: tuple[tuple[str, int], ...] = ()
    speed: float = 1.0
    price_per_hour: float | None = None

    @property
    def price(self) -> float:
        """What an hour costs."""
        if self.price_per_hour is not None:
            return self.price_per_hour
        return FREE_CPU_PRICE * self.cpu_milli / 1000 + GPU_PRICE * len(self.gpus)


class HeldOnHost(TypedDict):
    """What somebody holds on a host."""

    gpu_indexes: list[int]
    """Its devices, by index on that host."""
    gpu_milli: int
    """Thousandths of each device."""
    gpu_memory_mib: int
    """MiB of each device's memory."""
    cpu_milli: int
    """CPU, in thousandths of a core."""
    memory_mib: int
    """Memory of the host, in MiB."""


class ResourceTracker(Protocol):
    """What an allocator may ask and do. Steps are meant by their numbers in the graph."""

    @property
    def hosts(self) -> Sequence[HostCapacity]:
        """All hosts, in their order."""

    def claim(self, step: int, host: str) -> bool:
        """Give *step* room on *host* from now until it ends; ``False``: there is none, or it may not run there."""

    def claim_anywhere(self, step: int) -> str | None:
        """Give *step* room where the placement policy wants it; gives the host, ``None``: there is no room."""

    def room_for(self, step: int) -> Sequence[HostCapacity]:
        """The hosts that have room for *step* now."""

    def load(self, host: str) -> float:
        """The part of *host* that is in use, 0 to 1: of what is used most of CPU, memory and GPUs."""

    def host_of(self, step: int) -> str | None:
        """Where *step* runs, or has run: where its result is. ``None``: it has not begun."""

    def bytes_to_bring(self, step: int, host: str) -> int:
        """How much of what *step* takes is not on *host* yet, in bytes."""

    def transfer_s(self, amount_bytes: int) -> float:
        """How long it takes to bring so much from one host to another."""


class ClusterTracker:
    """Keeps what is free of *hosts*, and where the steps of *graph* are. *policy* is that of the placement engine."""

    def __init__(
        self,
        graph: Graph,
        hosts: Iterable[HostCapacity],
        *,
        bandwidth: float = BANDWIDTH,
        policy: str = "best_fit",
    ) -> None:
        self.graph = graph
        self.hosts: tuple[HostCapacity, ...] = tuple(hosts)
        self._by_name = {host.name: host for host in self.hosts}
        self._bandwidth = bandwidth
        self._engine = PlacementEngine(policy)
        for host in self.hosts:
            self._engine.add_node(
                host.name, cpu_milli=host.cpu_milli, memory_mib=host.memory_mib, devices=list(host.gpus)
            )
        self._within = {host.name: ((host.name, tuple(range(len(host.gpus)))),) for host in self.hosts}
        self._used = {host.name: [0, 0, 0] for host in self.hosts}  # CPU, memory, thousandths of GPUs
        self._at: dict[int, str] = {}
        self._running: dict[int, str] = {}
        self._named: dict[str, int] = dict.fromkeys(graph.named, 0)
        self._full: set[tuple[Demand, str]] = set()  # what did not fit, and where ("": anywhere), until room comes free
        self.claimed: list[tuple[int, str]] = []
        """Claims in their order, for whoever carries them out; theirs to clear."""

    @property
    def running(self) -> Mapping[int, str]:
        """The steps that hold room, and where."""
        return self._running

    def claim(self, step: int, host: str) -> bool:
        """As in ResourceTracker."""
        return host in self._by_name and self._claim(step, host) is not None

    def claim_anywhere(self, step: int) -> str | None:
        """As in ResourceTracker."""
        return self._claim(step, self._bound_to(step) or "")

    def room_for(self, step: int) -> Sequence[HostCapacity]:
        """As in ResourceTracker."""
        wanted = self.graph.steps[step]
        if not self._may_begin(wanted):
            return ()
        bound, demand = self._bound_to(step), wanted.cost.demand
        if (demand, "") in self._full:
            return ()
        if bound is not None:
            return [self._by_name[bound]] if bound in self._by_name and self._fits(demand, bound) else ()
        found = [host for host in self.hosts if self._fits(demand, host.name)]
        if not found:
            self._full.add((demand, ""))
        return found

    def load(self, host: str) -> float:
        """As in ResourceTracker."""
        if host not in self._by_name:
            raise UnknownNode(f"there is no host {host!r}", asked=host)
        has, used = self._by_name[host], self._used[host]
        parts = zip(used, (has.cpu_milli, has.memory_mib, WHOLE_GPU_MILLI * len(has.gpus)), strict=True)
        return max(part / whole if whole else 0.0 for part, whole in parts)

    def host_of(self, step: int) -> str | None:
        """As in ResourceTracker."""
        return self._at.get(step)

    def bytes_to_bring(self, step: int, host: str) -> int:
        """As in ResourceTracker."""
        graph = self.graph
        return sum(
            graph.arrow_bytes(producer, step) for producer in graph.taken[step] if self._at.get(producer) != host
        )

    def transfer_s(self, amount_bytes: int) -> float:
        """As in ResourceTracker."""
        return amount_bytes / self._bandwidth

    def gpu_milli(self) -> tuple[int, int]:
        """Thousandths of GPUs that are free on devices of which a part is taken, and thousandths of all."""
        free = whole = 0
        for node in self._engine.nodes():
            for gpu in node.gpus:
                whole += WHOLE_GPU_MILLI
                free += gpu.milli_free if gpu.milli_free < WHOLE_GPU_MILLI else 0
        return free, whole

    # -- what happens

    def occupy(self, id: str, host: str, held: HeldOnHost) -> None:
        """Take note of what others hold on *host*; nothing, where it is not among the hosts or has not got it."""
        if host not in self._by_name:
            return
        try:
            self._engine.adopt(
                id,
                ((host, tuple(held["gpu_indexes"])),),
                cpu_milli=held["cpu_milli"],
                memory_mib=held["memory_mib"],
                gpu_milli=held["gpu_milli"] or WHOLE_GPU_MILLI,
                gpu_memory_mib=held["gpu_memory_mib"],
            )
        except AdoptRefused:
            return
        used = self._used[host]
        used[0] += held["cpu_milli"]
        used[1] += held["memory_mib"]
        used[2] += held["gpu_milli"] * len(held["gpu_indexes"])

    def lies(self, step: int, host: str) -> None:
        """Take note that *step* runs, or has run, on *host*, holding what ``occupy`` was told of."""
        self._at[step] = host

    def ended(self, step: int) -> None:
        """Take note that *step* holds its room no more."""
        host = self._running.pop(step, None)
        if host is not None:
            self._engine.release(step)
            self._count(step, host, -1)
            for name, amount in self.graph.steps[step].cost.named.items():
                self._named[name] -= amount
            self._full.clear()

    def lost(self, step: int) -> None:
        """Take note that what *step* gave is nowhere any more."""
        self._at.pop(step, None)

    # -- inside

    def _claim(self, step: int, host: str) -> str | None:
        wanted = self.graph.steps[step]
        bound = self._bound_to(step)
        demand = wanted.cost.demand
        if step in self._running or (bound and host and host != bound) or not self._may_begin(wanted):
            return None
        if (demand, "") in self._full or (demand, host) in self._full:
            return None
        within = self._within[host] if host else ()
        placed = self._engine.place(id=step, within=within, **demand.arguments())
        if placed is None:
            self._full.add((demand, host))
            return None
        for name, amount in wanted.cost.named.items():
            self._named[name] += amount
        found = str(placed.shares[0][0])
        self._count(step, found, 1)
        self._running[step] = self._at[step] = found
        self.claimed.append((step, found))
        return found

    def _fits(self, demand: Demand, host: str) -> bool:
        if (demand, host) in self._full:
            return False
        if self._engine.place(id=_TRIAL, within=self._within[host], **demand.arguments()) is None:
            self._full.add((demand, host))
            return False
        self._engine.release(_TRIAL)
        return True

    def _count(self, step: int, host: str, by: int) -> None:
        demand, used = self.graph.steps[step].cost.demand, self._used[host]
        used[0] += by * demand.gang * demand.cpu_milli
        used[1] += by * demand.gang * demand.memory_mib
        used[2] += by * demand.total_gpu_milli

    def _may_begin(self, wanted: GraphStep) -> bool:
        if self.graph.in_parallel and len(self._running) >= self.graph.in_parallel:
            return False
        named = self.graph.named
        return all(self._named[name] + amount <= named[name] for name, amount in wanted.cost.named.items())

    def _bound_to(self, step: int) -> str | None:
        """The host that *step* must have; ``None``: any."""
        wanted = self.graph.steps[step]
        if wanted.node:
            return wanted.node
        for other in self.graph.together[step]:
            if (at := self._at.get(other) or self.graph.steps[other].node) is not None and at:
                return at
        return None


def check_satisfiable(graph: Graph, hosts: Sequence[HostCapacity]) -> None:
    """Check that some host of *hosts*, empty, could serve each step. Raises UnsatisfiableCost with the way to it."""
    known: dict[tuple[Demand, str], str] = {}
    tracker = ClusterTracker(graph, hosts)
    names = {host.name for host in hosts}
    for number in graph.running:
        step = graph.steps[number]
        for name, amount in step.cost.named.items():
            if amount > graph.named[name]:
                raise _unsatisfiable(graph, number, f"{amount} of {name!r}", f"the graph has {graph.named[name]} of it")
        if step.node and step.node not in names:
            raise _unsatisfiable(graph, number, f"the host {step.node}", "no host is called that")
        demand = step.cost.demand
        key = demand, step.node
        if key not in known:
            within = tracker._within[step.node] if step.node else ()
            report = tracker._engine.explain(within=within, **demand.arguments())
            known[key] = "" if report["fits"] else _shortest(report)
        if known[key]:
            raise _unsatisfiable(graph, number, shown_demand(demand), known[key])


def shown_demand(demand: Demand) -> str:
    """A demand in a few words."""
    parts = [f"{demand.cpu_milli / 1000:g} CPUs"]
    if demand.memory_mib:
        parts.append(f"{demand.memory_mib} MiB")
    if demand.gpu_count:
        parts.append(f"{demand.gpus:g} GPUs")
        if demand.gpu_memory_mib:
            parts.append(f"{demand.gpu_memory_mib} MiB on each")
        if demand.gpu_models:
            parts.append(f"of {', '.join(demand.gpu_models)}")
    return ", ".join(parts) + (f", {demand.gang} times" if demand.gang > 1 else "")


def _shortest(report: dict[str, object]) -> str:
    failed = report.get("failed")
    if not isinstance(failed, dict) or not failed:
        return "no host has room for that"
    worst = sorted(failed.items(), key=lambda item: -int(item[1]))[:AMOUNTS_SHOWN]
    return "too little on every host: " + ", ".join(f"{name} ({count} hosts)" for name, count in worst)


def _unsatisfiable(graph: Graph, number: int, asked: str, found: str) -> UnsatisfiableCost:
    step = graph.steps[number]
    return UnsatisfiableCost(
        f"step {step.id} needs what nobody has",
        asked=f"{asked}, at {shown_path(graph.path_to(number))}",
        found=found,
        hint="ask for less, or for a host that is there: actorgrid hosts, actorgrid gpus",
        step=step.id,
        path=graph.path_to(number),
    )
