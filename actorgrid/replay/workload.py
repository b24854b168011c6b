"""What a trace says: nodes, tasks, and the shapes that usually arrive. No file, clock or dice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from actorgrid.demand import Demand
from actorgrid.errors import BadRequest, TooManyGpus
from actorgrid.hotpath import PlacementEngine, TypicalTask
from actorgrid.hotpath.records import MAX_GANG, WHOLE_GPU_MILLI, GpuView, NodeView
from actorgrid.hotpath.typical_mix import most_popular

SCALE_MAX = 1000.0
FASTEST = 1e-9
HALVINGS = 60


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One host of the trace's cluster. All of its GPUs are alike."""

    name: str
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_count: int = 0
    gpu_model: str = ""
    gpu_memory_mib: int = 0
    rack: str | None = None

    @property
    def gpu_milli(self) -> int:
        """The node's GPUs, in thousandths."""
        return self.gpu_count * WHOLE_GPU_MILLI

    @property
    def view(self) -> NodeView:
        """The view of the node with nothing on it."""
        gpu = GpuView(self.gpu_model, WHOLE_GPU_MILLI, self.gpu_memory_mib, self.gpu_memory_mib)
        amounts = self.cpu_milli, self.cpu_milli, self.memory_mib, self.memory_mib
        return NodeView(self.name, self.rack, None, False, *amounts, (gpu,) * self.gpu_count)


@dataclass(frozen=True, slots=True)
class TraceTask:
    """One task or job of the trace; amounts are per gang member. Times are seconds from the trace's own origin.

    ``submit_s`` and ``duration_s`` are ``None`` where the trace does not tell them. ``deadline_s`` is a moment;
    ``deadline_kind`` is ``strict``, ``soft`` or empty.
    """

    id: str
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_count: int = 0
    gpu_milli: int = WHOLE_GPU_MILLI
    gpu_memory_mib: int = 0
    gpu_models: tuple[str, ...] = ()
    gang: int = 1
    submit_s: float | None = None
    duration_s: float | None = None
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None
    deadline_kind: str = ""

    @property
    def total_gpu_milli(self) -> int:
        """What all members together ask for, in thousandths of GPUs."""
        return self.gang * self.gpu_count * self.gpu_milli

    @property
    def demand(self) -> Demand:
        """The demand that room for the task depends on."""
        gpus = (self.gpu_count, self.gpu_milli, self.gpu_memory_mib, tuple(sorted(self.gpu_models)))
        return Demand(self.cpu_milli, self.memory_mib, *gpus, gang=self.gang)

    @property
    def shape(self) -> tuple[int, int, int, tuple[str, ...]]:
        """The shape by which FGD tells tasks apart: CPU, number of GPUs, share of each, models."""
        return (self.cpu_milli, self.gpu_count, self.gpu_milli if self.gpu_count else 0, self.gpu_models)


def typical_tasks(tasks: Iterable[TraceTask]) -> list[TypicalTask]:
    """The typical mix of FGD (Weng et al., USENIX ATC 2023, section 3.2): the most popular shapes that make up
    POPULAR_SHARE of the tasks, those without a GPU among them.

    Weights are shares of the arrivals kept and add up to 1. Ties go to the smaller shape.
    """
    return _mix(tasks, always=lambda _shape: False)


def typical_tasks_for(tasks: Iterable[TraceTask], policy: str) -> list[TypicalTask]:
    """The mix that an engine of *policy* is told: every shape of several GPUs is in it, but for ``fgd``'s own."""
    if policy == "fgd":
        return typical_tasks(tasks)
    return _mix(tasks, always=lambda shape: shape[1] > 1)


def _mix(
    tasks: Iterable[TraceTask], always: Callable[[tuple[int, int, int, tuple[str, ...]]], bool]
) -> list[TypicalTask]:
    counts = Counter(task.shape for task in tasks)
    kept = most_popular(sorted(counts.items(), key=lambda item: (-item[1], item[0])), always)
    total = sum(kept.values())
    return [
        TypicalTask(cpu, gpus, milli or WHOLE_GPU_MILLI, count / total, models)
        for (cpu, gpus, milli, models), count in kept.items()
    ]


def scaled(nodes: Sequence[TraceNode], scale: float) -> list[TraceNode]:
    """The cluster *scale* times over: whole copies first, then nodes taken evenly from the list.

    Raises BadRequest when nothing is left, or *scale* is over SCALE_MAX.
    """
    count = round(len(nodes) * scale) if 0 < scale <= SCALE_MAX else 0
    if not count:
        raise BadRequest(
            f"a scale of {scale} leaves no cluster",
            asked=f"scale={scale}",
            found=f"{len(nodes)} nodes",
            hint=f"give more than 0 and at most {SCALE_MAX:g}",
        )
    copies, rest = divmod(count, len(nodes))
    picked = [
        node if copy == 0 else replace(node, name=f"{node.name}+{copy}") for copy in range(copies) for node in nodes
    ]
    suffix = f"+{copies}" if copies else ""
    evenly = [nodes[at * len(nodes) // rest] for at in range(rest)]
    return picked + [replace(node, name=node.name + suffix) for node in evenly]


def capacity_gpu_milli(nodes: Iterable[TraceNode]) -> int:
    """All GPUs of all nodes, in thousandths."""
    return sum(node.gpu_milli for node in nodes)


def as_gangs(tasks: Iterable[TraceTask], nodes: Iterable[TraceNode]) -> list[TraceTask]:
    """Tasks of more GPUs than any node has become gangs of equal members, as few as possible.

    Raises TooManyGpus for one that needs more than MAX_GANG members.
    """
    largest = max((node.gpu_count for node in nodes), default=0)
    return [_as_gang(task, largest) if task.gpu_count > largest else task for task in tasks]


def _as_gang(task: TraceTask, largest: int) -> TraceTask:
    members = next((n for n in range(2, MAX_GANG + 1) if task.gpu_count % n == 0 and task.gpu_count // n <= largest), 0)
    if not members:
        raise TooManyGpus(
            f"task {task.id} cannot run on this cluster at all",
            asked=f"{task.gpu_count} GPUs",
            found=f"at most {largest} GPUs on a node",
            hint="choose other nodes, with --nodes FILE or --cluster NODESxGPUS",
        )
    return replace(
        task,
        gang=task.gang * members,
        gpu_count=task.gpu_count // members,
        cpu_milli=task.cpu_milli // members,
        memory_mib=task.memory_mib // members,
    )


def with_load(tasks: Sequence[TraceTask], capacity: int, load: float) -> list[TraceTask]:
    """The same tasks, arriving closer together or further apart, so that their :func:`offered_load` is *load*.

    Durations stay; deadlines keep their distance. Raises BadRequest when the tasks have no times, arrive all at once or
    ask for no GPU, and for a load they would not reach if they came at once.
    """
    if not load > 0:
        raise BadRequest("the load must be more than nothing", asked=f"load={load}", hint="0.9 is 90 % of the GPUs")
    if not offered_load(tasks, capacity):
        raise BadRequest(
            "these tasks cannot be brought to a load: they ask for no GPU-time, or arrive all at once",
            asked=f"load={load}",
            hint="leave --load out",
        )
    slow, fast = 1.0, 1.0
    while offered_load(tasks, capacity, slow) > load:
        slow *= 2
    while offered_load(tasks, capacity, fast) < load:
        fast /= 2
        if fast < FASTEST:
            raise BadRequest(
                "so high a load these tasks cannot reach: they run long, and few are there at the beginning",
                asked=f"load={load}",
                found=f"at most {offered_load(tasks, capacity, fast):.2f}",
                hint="take fewer nodes (--scale 0.01, --cluster), or mode inflate",
            )
    for _ in range(HALVINGS):
        middle = (slow + fast) / 2
        if offered_load(tasks, capacity, middle) > load:
            fast = middle
        else:
            slow = middle
    first = min(task.submit_s for task in tasks if task.submit_s is not None)
    changed = []
    for task in tasks:
        submit = first + ((task.submit_s or 0.0) - first) * slow
        shift = submit - (task.submit_s or 0.0)
        deadline = None if task.deadline_s is None else task.deadline_s + shift
        changed.append(replace(task, submit_s=submit, deadline_s=deadline))
    return changed


def offered_load(tasks: Sequence[TraceTask], capacity: int, pace: float = 1.0) -> float:
    """The mean share of *capacity* (thousandths of GPUs) in use from the first arrival to the last if nobody waited.

    *pace* stretches the times between arrivals. 0 where there is no capacity or no time.
    """
    submits = [task.submit_s for task in tasks if task.submit_s is not None]
    if not submits or not capacity:
        return 0.0
    last = max(submits)
    span = (last - min(submits)) * pace
    work = sum(
        task.total_gpu_milli * min(task.duration_s or 0.0, (last - task.submit_s) * pace)
        for task in tasks
        if task.submit_s is not None
    )
    return work / (capacity * span) if span else 0.0


def check_times(tasks: Iterable[TraceTask]) -> None:
    """Raises BadRequest when a task does not say when it arrives or how long it runs."""
    for task in tasks:
        if task.submit_s is None or task.duration_s is None:
            missing = "when it arrives" if task.submit_s is None else "how long it runs"
            raise BadRequest(
                f"task {task.id} does not say {missing}",
                asked="a replay in time",
                hint="use --mode inflate, or map a column: --map COLUMN=submit_s, --map COLUMN=duration_s",
            )


def build_engine(nodes: Iterable[TraceNode], engine: PlacementEngine, typical: Iterable[TypicalTask]) -> None:
    """Register the nodes with *engine* and tell it the typical mix."""
    engine.set_typical_tasks(typical)
    for node in nodes:
        engine.add_node(
            node.name,
            cpu_milli=node.cpu_milli,
            memory_mib=node.memory_mib,
            gpu_count=node.gpu_count,
            gpu_model=node.gpu_model,
            gpu_memory_mib=node.gpu_memory_mib,
            rack=node.rack,
        )
