"""Which steps of a graph are short, by what was told or seen: these share a job, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.dag.model import StepKind

from .graph_spec import GraphSpec

TOGETHER_S = 0.2
"""Steps run together as long as they are expected to take so long in all: some times what a job of its own costs."""
TOGETHER_BYTES = 384 * 1024
"""What they are expected to give: results of one job lie in one file, which is small or holds one of them."""
SHORT_S = 0.025
"""What takes longer runs by itself."""
FUNCTIONS_MAX = 4_096
NEWEST_PART, FASTER_PART = 0.25, 0.6
"""The part that the last run of a function has in what it is expected to take; one that was faster counts more."""


@dataclass(slots=True)
class SharedRest:
    """How much may still be added to what runs together."""

    seconds: float = TOGETHER_S
    bytes: int = TOGETHER_BYTES


class ShortCalls:
    """Of one graph. *takes_s*: how long functions of this name have taken, which is kept there."""

    def __init__(self, spec: GraphSpec, takes_s: dict[str, float]) -> None:
        self._spec = spec
        self._gives: dict[str, int] = {}  # bytes that functions of this name gave last
        self._takes_s = takes_s

    def kind_of(self, number: int, record: StepRecord | None) -> tuple[Any, ...] | None:
        """What steps of one job have in common; ``None`` for one that runs by itself."""
        step = self._spec.step(number)
        graph_step = self._spec.graph.steps[number]
        alone = (
            step.kind is not StepKind.FUNCTION
            or step.extends
            or step.stream
            or step.streams
            or (record is not None and record.get("alone"))
            or step.gpus
            or step.gang > 1
            or step.max_execution_time_s is not None
            or graph_step.cost.named
            or step.memory_bytes
            or self._spec.graph.together[number]
            or step.node
        )
        if alone:
            return None
        env = tuple(sorted(step.env.items()))
        return step.cpus, step.pool, step.cwd, env, self._spec.bundles[number]

    def fits(self, number: int, left: SharedRest) -> bool:
        """Take what a step is expected to need from what is *left*; whether there is so much, and it is known."""
        step = self._spec.step(number)
        takes_s = self.expected_s(number)
        gives = self._gives.get(self._name(number), step.output_bytes or 0)
        if takes_s is None or takes_s > left.seconds or gives > left.bytes:
            return False
        left.seconds -= takes_s
        left.bytes -= gives
        return True

    def expected_s(self, number: int) -> float | None:
        """How long a short step is expected to take; ``None`` for a long one, and one of which nothing is known."""
        takes_s = self._takes_s.get(self._name(number), self._spec.step(number).runtime_s)
        return takes_s if takes_s is not None and is_short(takes_s) else None

    def learn(self, number: int, record: StepRecord) -> None:
        """Take note how long a step took that has succeeded, and how much it gave."""
        step = self._spec.step(number)
        if step.kind is not StepKind.FUNCTION or "same_as" in record or "cached_from" in record:
            return
        if record["started_at"] is None or record["ended_at"] is None:
            return
        name = self._name(number)
        self._gives[name] = record["size"]
        if len(self._gives) > FUNCTIONS_MAX:
            self._gives.clear()
        took_s = max(0.0, record["ended_at"] - record["started_at"])
        if name not in self._takes_s and step.runtime_s is not None and is_short(took_s) == is_short(step.runtime_s):
            return  # it was told, and well enough
        if len(self._takes_s) >= FUNCTIONS_MAX and name not in self._takes_s:
            self._takes_s.clear()
        before_s = self._takes_s.get(name, took_s)
        # The first runs of a function load what it needs, which later ones find.
        part = NEWEST_PART if took_s > before_s else FASTER_PART
        self._takes_s[name] = before_s + part * (took_s - before_s)

    def is_known(self, number: int, record: StepRecord | None) -> bool:
        """Whether a step is known to be short, or known not to be."""
        told = self._spec.step(number).runtime_s is not None
        return self.kind_of(number, record) is None or told or self._name(number) in self._takes_s

    def _name(self, number: int) -> str:
        """What steps have in common that take about as long: the function, and what was told of how long it takes.

        Of a workflow that was traced, one function plays steps of a hundredth of a second and of many seconds.
        """
        step = self._spec.step(number)
        name = step.function or step.id
        return name if step.runtime_s is None else f"{name} {step.runtime_s:g}"


def is_short(seconds: float) -> bool:
    """Whether a step that takes so long may share a job."""
    return seconds <= SHORT_S
