"""Which steps of one graph need not run, as an earlier graph gave the same.

Nothing runs for most of them: the ledger has them take the result over. The outputs of a command that runs in a
directory which others see, too, are put there once more, by a job that does nothing else.

No I/O, clock or dice.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.dag.model import StepKind

from .graph_spec import GraphSpec
from .step_cache import CachedStep, StepCache


class PutBack(NamedTuple):
    """A step of another graph whose outputs are put where those of one of this graph are to be."""

    graph_id: str
    step: int
    word: Any
    """What it said; ``None``: nothing."""


class TakeOvers:
    """Of one graph, from *cache*."""

    def __init__(self, spec: GraphSpec, cache: StepCache) -> None:
        self._spec = spec
        self._cache = cache
        self._gone: set[int] = set()  # what they took over is gone
        self.put_back: dict[int, PutBack] = {}
        """Commands that need not run, but whose outputs are to be there."""

    def hosts(self) -> set[str]:
        """The hosts that have what may be taken over."""
        return set(self._cache.attempts())

    def find(self, number: int, records: Mapping[int, StepRecord], lost: Container[str]) -> CachedStep | None:
        """What a step that could begin takes over, from no host that is *lost*; ``None``: a job is needed, which may
        only put its outputs back."""
        self.put_back.pop(number, None)
        there = None if number in self._gone else self._cache.find(self._spec, number, records)
        if there is not None and there.record["host"] in lost:
            there = None
        if there is None or self._spec.step(number).kind is not StepKind.COMMAND or self._spec.request.working_dir:
            return there
        self.put_back[number] = PutBack(there.graph_id, there.step, there.record.get("word"))
        return None

    def may_be(self, number: int) -> bool:
        """Whether what a step gives may be there, which shows when what it takes from has ended."""
        cache = self._spec.step(number).cache
        return bool(self._cache) and cache is not None and not cache.refresh and number not in self._gone

    def are_gone(self, numbers: Iterable[int]) -> None:
        """What these took over is nowhere any more: they are to run."""
        self._gone.update(numbers)
