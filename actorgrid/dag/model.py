"""A graph: its steps, what each needs and takes, and who waits for whom.

A step has a name in its graph (``id``). It takes the values of the steps named in ``inputs``, and waits also for those
in ``after``, whose values it does not want. A graph is checked whole when it is made (``Graph``): an id that is there
twice, a producer that is not there, or a circle is a named error, with the way through the graph that leads there.

A step may run only if others said so (``when``): a *word*, a number, a truth or a short text, that a step gave. One
whose condition does not hold is passed over, and with it whatever takes its value; what only comes after it does not
mind. A *merge* takes the value of one of its inputs that was not passed over, so branches come together, and a loop of
at most so many rounds is so many steps, each of which has a condition, and a merge.

Steps of two kinds are no work of their own: the value of a *value* step was sent along, and an *inline* step is
computed anew wherever its value is wanted. Both are part of the steps that take them (``Graph.producers`` leads past
them to the steps that really run).

Bounds: 100,000 steps, 1,000,000 arrows between them, 32 named resources, ids of 1 to 100 printable characters.
"""

from __future__ import annotations

import difflib
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from actorgrid.demand import Demand
from actorgrid.errors import CyclicGraph, InvalidGraph, MissingProducer

STEPS_MAX = 100_000
ARROWS_MAX = 1_000_000
ID_CHARS_MAX = 100
NAMED_MAX = 32
RETRIES_MAX = 100
SECONDS_MAX = 1e9
AMOUNT_MAX = 2**53
PATH_SHOWN = 12
"""Steps of a path that a message names; of a longer one the first and the last."""
UNKNOWN_RUNTIME_S = 0.5
"""What a step counts with of which nobody said how long it takes."""
ONE_CPU = Demand(cpu_milli=1000)
NOTHING: Mapping[str, int] = MappingProxyType({})


class StepKind(StrEnum):
    """What a step is: two kinds that run by themselves, one that takes over the value of the first (or last) of its
    inputs that was not passed over, and two that are part of what takes them."""

    FUNCTION = "function"
    COMMAND = "command"
    MERGE = "merge"
    VALUE = "value"
    INLINE = "inline"

    @property
    def runs(self) -> bool:
        """Whether it has an outcome of its own: others wait for it."""
        return self in (StepKind.FUNCTION, StepKind.COMMAND, StepKind.MERGE)

    @property
    def is_work(self) -> bool:
        """Whether it takes a job."""
        return self in (StepKind.FUNCTION, StepKind.COMMAND)


class Trigger(StrEnum):
    """When a step may begin that comes after others of which some were passed over. None of them may have failed."""

    NONE_FAILED = "none_failed"
    """However many were passed over."""
    SOME_SUCCEEDED = "some_succeeded"
    """If one at least was not passed over."""
    ALL_SUCCEEDED = "all_succeeded"
    """If none was passed over."""


class OnFailure(StrEnum):
    """What a graph does when one of its steps has failed for good."""

    FAIL_FAST = "fail_fast"
    """End everything that runs, and begin nothing more."""
    CONTINUE = "continue"
    """Go on with all that does not need it; the graph has failed when nothing more can be done."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run of a step needs (*demand*, *named*), and what it is expected to take and to give.

    *runtime_s* on one processor and *output_bytes* are estimates, ``None`` where nobody knows. *named* are amounts of
    resources that only this graph counts, such as licences (``Graph.named``).
    """

    demand: Demand = ONE_CPU
    runtime_s: float | None = None
    output_bytes: int | None = None
    named: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.runtime_s is not None and not (math.isfinite(self.runtime_s) and 0 <= self.runtime_s <= SECONDS_MAX):
            raise InvalidGraph("a runtime is a number of seconds, not negative", asked=f"runtime_s={self.runtime_s!r}")
        if self.output_bytes is not None and not 0 <= self.output_bytes <= AMOUNT_MAX:
            raise InvalidGraph("a size is a number of bytes, not negative", asked=f"output_bytes={self.output_bytes!r}")
        if len(self.named) > NAMED_MAX or not all(0 <= amount <= AMOUNT_MAX for amount in self.named.values()):
            raise InvalidGraph(
                "named resources are amounts of at least 0",
                asked=str(dict(self.named))[:200],
                hint=f"at most {NAMED_MAX} of them",
            )

    @property
    def expected_s(self) -> float:
        """The runtime to plan with."""
        return UNKNOWN_RUNTIME_S if self.runtime_s is None else self.runtime_s


@dataclass(frozen=True, slots=True)
class Condition:
    """Another step, and the word that it has to have given; *negated*: another word than that."""

    step: str
    word: bool | int | float | str | None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class GraphStep:
    """One step. What it runs is nothing that is looked at here.

    *input_bytes* says how much of each input's output it takes, in their order (empty: all of it). *node* is the host
    that it must run on; *collocated* the step on whose host it must run, with room for both at once. *retries* are
    further attempts that a failure gets. It runs if all of *when* hold, and *trigger* does for those of *after*. A
    merge takes the first of its inputs that has a value, with *last* the last.
    """

    id: str
    kind: StepKind = StepKind.FUNCTION
    inputs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    cost: Cost = field(default_factory=Cost)
    input_bytes: tuple[int, ...] = ()
    node: str = ""
    collocated: str = ""
    retries: int = 0
    when: tuple[Condition, ...] = ()
    last: bool = False
    trigger: Trigger = Trigger.NONE_FAILED

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The steps whose values it does not take and that have to be over before it."""
        return (*self.after, *(each.step for each in self.when))


class Graph:
    """A checked graph. Steps are numbered in the order given.

    *named* says how much of each named resource its running steps may take together; *in_parallel*, how many of them
    may run at once (0: any number). Raises InvalidGraph, MissingProducer, CyclicGraph.
    """

    def __init__(
        self, steps: Iterable[GraphStep], *, named: Mapping[str, int] = NOTHING, in_parallel: int = 0, name: str = ""
    ) -> None:
        self.steps: tuple[GraphStep, ...] = tuple(steps)
        self.name = name
        self.named = dict(named)
        self.in_parallel = in_parallel
        if not self.steps:
            raise InvalidGraph("a graph has no steps", hint="add one at least")
        if len(self.steps) > STEPS_MAX:
            raise InvalidGraph("a graph has too many steps", asked=f"{len(self.steps)}", found=f"at most {STEPS_MAX}")
        self.number: dict[str, int] = {}
        """The number of each step, by its id."""
        for number, step in enumerate(self.steps):
            self._check_step(step)
            if step.id in self.number:
                raise InvalidGraph(f"two steps are called {step.id!r}", asked=step.id, hint="each has an id of its own")
            self.number[step.id] = number
        self._inputs = [self._numbers(step, step.inputs) for step in self.steps]
        self._after = [self._numbers(step, step.waits_for) for step in self.steps]
        if sum(map(len, self._inputs)) + sum(map(len, self._after)) > ARROWS_MAX:
            raise InvalidGraph("a graph has too many arrows between its steps", found=f"at most {ARROWS_MAX}")
        self.order: tuple[int, ...] = self._topological_order()
        """All steps, producers before those that take from them."""
        self.producers: tuple[tuple[int, ...], ...]
        """For each step that runs, those that must have ended well before it: steps that run, none twice."""
        self.taken: tuple[tuple[int, ...], ...]
        """For each step that runs, those of its ``producers`` whose values it takes."""
        self.producers, self.taken = self._running_producers()
        consumers: list[list[int]] = [[] for _ in self.steps]
        for number in self.order:
            for producer in self.producers[number]:
                consumers[producer].append(number)
        self.consumers: tuple[tuple[int, ...], ...] = tuple(map(tuple, consumers))
        """For each step, those that have it among their ``producers``."""
        self.asked_words: frozenset[int] = self._asked_words()
        """Those on whose words conditions hang."""
        self.together: tuple[tuple[int, ...], ...] = self._collocated()
        """For each step, the others that must run on the same host, whoever said so."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def running(self) -> list[int]:
        """The steps that are work of their own, producers first."""
        return [number for number in self.order if self.steps[number].kind.runs]

    def arrow_bytes(self, producer: int, consumer: int) -> int:
        """How many bytes *consumer* is expected to take from *producer*."""
        step = self.steps[consumer]
        if step.input_bytes and producer in self._inputs[consumer]:
            return step.input_bytes[self._inputs[consumer].index(producer)]
        if producer not in self.taken[consumer]:
            return 0
        return self.steps[producer].cost.output_bytes or 0

    def path_to(self, number: int) -> list[str]:
        """The ids of a way through the graph that leads to a step, from one that waits for nothing."""
        path = [number]
        while before := self._inputs[path[-1]] or self._after[path[-1]]:
            path.append(before[0])
        return [self.steps[each].id for each in reversed(path)]

    # -- checks

    def _check_step(self, step: GraphStep) -> None:
        if not 0 < len(step.id) <= ID_CHARS_MAX or not step.id.isprintable():
            raise InvalidGraph(
                "a step's id is 1 to 100 printable characters", asked=repr(step.id)[:200], hint="give it a short name"
            )
        if not 0 <= step.retries <= RETRIES_MAX:
            raise InvalidGraph(f"step {step.id}: retries are from 0 to {RETRIES_MAX}", asked=str(step.retries))
        if step.input_bytes and len(step.input_bytes) != len(step.inputs):
            raise InvalidGraph(
                f"step {step.id} has {len(step.inputs)} inputs and says the bytes of {len(step.input_bytes)}",
                hint="say them for each, or for none",
            )
        for name in step.cost.named:
            if name not in self.named:
                near = difflib.get_close_matches(name, self.named, n=1)
                raise InvalidGraph(
                    f"step {step.id} needs the resource {name!r}, which the graph does not have",
                    asked=f"{name}={step.cost.named[name]}",
                    found=", ".join(sorted(self.named)) or "none are named",
                    hint=f"did you mean {near[0]!r}?" if near else "say how much of it there is: resources={...}",
                )

    def _numbers(self, step: GraphStep, ids: Sequence[str]) -> list[int]:
        found = []
        for id in dict.fromkeys(ids):
            number = self.number.get(id)
            if number is None:
                near = difflib.get_close_matches(id, self.number, n=1)
                raise MissingProducer(
                    f"step {step.id} takes from {id!r}, which is no step of this graph",
                    asked=f"{id} -> {step.id}",
                    hint=f"did you mean {near[0]!r}?" if near else "add that step, or take it out of the inputs",
                )
            found.append(number)
        return found

    def _topological_order(self) -> tuple[int, ...]:
        before = [
            list(dict.fromkeys([*inputs, *after])) for inputs, after in zip(self._inputs, self._after, strict=True)
        ]
        behind: list[list[int]] = [[] for _ in self.steps]
        for number, producers in enumerate(before):
            for producer in producers:
                behind[producer].append(number)
        open_counts = list(map(len, before))
        ready = deque(number for number, count in enumerate(open_counts) if not count)
        order = []
        while ready:
            number = ready.popleft()
            order.append(number)
            for consumer in behind[number]:
                open_counts[consumer] -= 1
                if not open_counts[consumer]:
                    ready.append(consumer)
        if len(order) < len(self.steps):
            circle = self._circle(before, {number for number, count in enumerate(open_counts) if count})
            raise CyclicGraph(
                "steps wait for each other in a circle",
                found=shown_path([self.steps[number].id for number in circle]),
                hint="take one of these arrows away",
                circle=[self.steps[number].id for number in circle[:-1]],
            )
        return tuple(order)

    @staticmethod
    def _circle(before: list[list[int]], open_ones: set[int]) -> list[int]:
        """A circle among steps each of which waits for another of them, its first step again at its end."""
        path: list[int] = []
        at = min(open_ones)
        seen: dict[int, int] = {}
        while at not in seen:
            seen[at] = len(path)
            path.append(at)
            at = next(producer for producer in before[at] if producer in open_ones)
        return [at, *reversed(path[seen[at] :])]

    def _running_producers(self) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Past values and inline steps, to those that run."""
        producers: list[tuple[int, ...]] = [()] * len(self.steps)
        taken: list[tuple[int, ...]] = [()] * len(self.steps)
        for number in self.order:
            found: dict[int, None] = {}
            values: dict[int, None] = {}
            for producer in self._inputs[number]:
                if self.steps[producer].kind.runs:
                    found[producer] = values[producer] = None
                else:
                    found.update(dict.fromkeys(producers[producer]))
                    values.update(dict.fromkeys(taken[producer]))
            for producer in self._after[number]:
                own = (producer,) if self.steps[producer].kind.runs else producers[producer]
                found.update(dict.fromkeys(own))
            producers[number], taken[number] = tuple(found), tuple(values)
        return tuple(producers), tuple(taken)

    def _asked_words(self) -> frozenset[int]:
        asked: set[int] = set()
        for step in self.steps:
            for condition in step.when:
                number = self.number[condition.step]
                asked.add(number)
                if self.steps[number].kind is StepKind.COMMAND and not isinstance(condition.word, str):
                    raise InvalidGraph(
                        f"step {step.id} waits for a word that step {condition.step} cannot give",
                        asked=f"{condition.word!r}, a {type(condition.word).__name__}",
                        found="a command's word is a text, the last line that it prints",
                        hint="put it in quotes: unquoted, YAML takes yes, no and numbers for other things than texts",
                    )
        for number in reversed(self.order) if asked else ():
            if number in asked and self.steps[number].kind is StepKind.MERGE:
                asked.update(self._inputs[number])
        return frozenset(asked)

    def _collocated(self) -> tuple[tuple[int, ...], ...]:
        groups: dict[int, list[int]] = {}  # by each of its members
        for number, step in enumerate(self.steps):
            if not step.collocated:
                continue
            (other,) = self._numbers(step, (step.collocated,))
            if not step.kind.runs or not self.steps[other].kind.runs or other == number:
                raise InvalidGraph(
                    f"step {step.id} cannot be collocated with {step.collocated}",
                    asked=step.collocated,
                    hint="name another step that runs: a function or a command",
                )
            first, second = groups.get(number, [number]), groups.get(other, [other])
            if first is not second:
                group = [*first, *second]
                groups.update(dict.fromkeys(group, group))
        for group in groups.values():
            nodes = {self.steps[member].node: member for member in group if self.steps[member].node}
            if len(nodes) > 1:
                names = ", ".join(f"{self.steps[member].id} on {node}" for node, member in nodes.items())
                raise InvalidGraph(
                    "steps that are collocated are to run on different hosts",
                    found=names,
                    hint="name the host of one of them only",
                )
        return tuple(
            tuple(other for other in groups[number] if other != number) if number in groups else ()
            for number in range(len(self.steps))
        )


def shown_path(ids: Sequence[str]) -> str:
    """A way through a graph in one line; the middle of a long one is left out."""
    if len(ids) > PATH_SHOWN:
        half = PATH_SHOWN // 2
        ids = [*ids[:half], f"... {len(ids) - 2 * half} more ...", *ids[-half:]]
    return " -> ".join(ids)
