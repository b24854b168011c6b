"""One step of a graph as pictures and figures see it, wherever it comes from: a file, a plan, or a graph that runs."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from .model import Graph, StepKind
from .plan import GraphPlan

PLANNED = "planned"
STATES = (
    PLANNED,
    "waiting",
    "released",
    "queued",
    "placed",
    "running",
    "succeeded",
    "cached",
    "stopped",
    "failed",
    "skipped",
)
"""In the order in which legends name them."""
_NUMBER = re.compile(r"\d+")
_LAST_NUMBER = re.compile(r"[-_.:\[\]# ]*(?:ID)?[-_.:\[\]# ]*#[-_.:\[\]# ]*$")


@dataclass(frozen=True, slots=True)
class StepView:
    """One step that runs. *producers* are places in the list of views; times are seconds from the graph's begin,
    ``None`` where there is none yet. *expected_s* is the estimate that the step was given, *size* what it gave in
    bytes."""

    id: str
    state: str = PLANNED
    producers: tuple[int, ...] = ()
    host: str = ""
    gpu_indexes: tuple[int, ...] = ()
    start_s: float | None = None
    end_s: float | None = None
    expected_s: float | None = None
    size: int = 0
    note: str = ""
    merges: bool = False
    """Whether it only takes over a value of others, and takes no time itself."""

    @property
    def kin(self) -> str:
        """What steps that do the same are called together: the id without its numbers."""
        return _LAST_NUMBER.sub("", _NUMBER.sub("#", self.id)) or self.id

    @property
    def places(self) -> list[tuple[str, int]]:
        """Where it ran: its host with each of its devices, -1 for a CPU."""
        return [(self.host, device) for device in self.gpu_indexes or (-1,)]

    @property
    def took_s(self) -> float | None:
        """How long it ran, or has run so far."""
        return None if self.start_s is None or self.end_s is None else max(0.0, self.end_s - self.start_s)


@dataclass(frozen=True, slots=True)
class GraphView:
    """A graph to be drawn. *hosts* are the names of the hosts by what ``StepView.host`` says; *planned_s* is how long
    its plan says it takes, *at_least_s* how long it takes at least, as far as is known."""

    title: str
    steps: tuple[StepView, ...]
    detail: str = ""
    hosts: dict[str, str] = field(default_factory=dict)
    planned_s: float | None = None
    at_least_s: float | None = None

    @property
    def states(self) -> dict[str, int]:
        """How many steps are in which state, in the order of a legend."""
        found = Counter(step.state for step in self.steps)
        order = {state: place for place, state in enumerate(STATES)}
        return {state: found[state] for state in sorted(found, key=lambda each: (order.get(each, len(order)), each))}

    @property
    def end_s(self) -> float:
        """The last end of a step."""
        return max((step.end_s for step in self.steps if step.end_s is not None), default=0.0)

    def critical_path(self) -> tuple[int, ...]:
        """The steps on which the last end hung, oldest first: each began when one before it, which it waited for, or
        which was in its place (the device, or the host), had ended. Empty while nothing has run."""
        ran = [number for number, step in enumerate(self.steps) if step.end_s is not None]
        if not ran:
            return ()
        # What was in the same place counts only where it explains a wait that no producer does.
        tolerance_s = max(0.02, 0.01 * self.end_s)
        by_place: dict[tuple[str, int], list[tuple[float, int]]] = {}
        for number in ran:
            for place in self.steps[number].places:
                by_place.setdefault(place, []).append((self._end(number), number))
        for ends in by_place.values():
            ends.sort()
        at = max(ran, key=lambda number: (self._end(number), -number))
        path = [at]
        seen = {at}
        while True:
            start = self.steps[at].start_s or 0.0
            before = [each for each in self.steps[at].producers if self.steps[each].end_s is not None]
            best = max(before, key=self._end, default=None)
            waited = start - (0.0 if best is None else self._end(best))
            if waited > tolerance_s:
                end, other = max(_last_end(by_place[place], start, seen) for place in self.steps[at].places)
                if other >= 0 and (best is None or end > self._end(best) + tolerance_s):
                    best = other
            if best is None or best in seen:
                return tuple(reversed(path))
            at = best
            seen.add(at)
            path.append(at)

    def _end(self, number: int) -> float:
        return self.steps[number].end_s or 0.0


def _last_end(ends: Sequence[tuple[float, int]], at_s: float, without: Container[int]) -> tuple[float, int]:
    """The last of these (time, step) up to a time; (-1, -1) if there is none."""
    place = bisect_right(ends, at_s + 1e-9, key=lambda entry: entry[0])
    while place and ends[place - 1][1] in without:
        place -= 1
    return ends[place - 1] if place else (-1.0, -1)


def view_of_graph(graph: Graph, title: str, plan: GraphPlan | None = None) -> GraphView:
    """A graph that is not submitted; with a *plan*, as that has it."""
    running = [number for number, step in enumerate(graph.steps) if step.kind.runs]
    place = {number: index for index, number in enumerate(running)}
    planned = {} if plan is None else plan.by_step
    steps = []
    for number in running:
        step, run = graph.steps[number], planned.get(number)
        steps.append(
            StepView(
                step.id,
                producers=tuple(place[each] for each in graph.producers[number]),
                host="" if run is None else run.host,
                start_s=None if run is None else run.start_s,
                end_s=None if run is None else run.end_s,
                expected_s=step.cost.runtime_s,
                merges=step.kind is StepKind.MERGE,
            )
        )
    if plan is None:
        return GraphView(title, tuple(steps))
    return GraphView(title, tuple(steps), planned_s=plan.makespan_s, at_least_s=plan.lower_bound_s)


def shortened(text: str, most: int) -> str:
    """*text* in at most so many characters; of a longer one the middle is left out."""
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def longest_ways(before: Sequence[Sequence[int]]) -> list[int]:
    """For each of some things that come after others (*before*, without circles) how many come one after the other
    before it, at most."""
    behind: list[list[int]] = [[] for _ in before]
    open_counts = [len(each) for each in before]
    for number, producers in enumerate(before):
        for producer in producers:
            behind[producer].append(number)
    depth = [0] * len(before)
    ready = [number for number, count in enumerate(open_counts) if not count]
    while ready:
        number = ready.pop()
        for other in behind[number]:
            depth[other] = max(depth[other], depth[number] + 1)
            open_counts[other] -= 1
            if not open_counts[other]:
                ready.append(other)
    return depth
