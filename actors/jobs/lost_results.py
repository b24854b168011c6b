"""Which results of a graph's steps are nowhere any more, and which of them are to be made again.

A result is gone when its host is lost, whenever that is heard of: before the ledger tells of the result (what takes one
over may be committed after the host that has it was lost) or after it. It is gone, too, when whoever wanted to take it
found nothing. What took it over is gone with it.

What is gone stays so until the step's record changes or the host is back, and is made again once somebody takes it.

No I/O, clock or dice.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.dag.model import StepKind
from actorgrid.dag.requests import StepRequest

from .graph_end import SETTLED, SUCCEEDED, source_of
from .graph_spec import GraphSpec


class LostResults:
    """Of one graph, whose steps have these states and records, which others change. *open*: steps that are to be looked
    at for further ones."""

    def __init__(
        self, spec: GraphSpec, states: Sequence[str], records: Mapping[int, StepRecord], open: Container[int]
    ) -> None:
        self._spec = spec
        self._states = states
        self._records = records
        self._open = open
        self._gone: dict[int, None] = {}
        self.hosts: set[str] = set()
        """Hosts that are lost, with what they had."""

    def host_lost(self, host: str) -> None:
        """A host is lost, with what it had."""
        self.hosts.add(host)
        for number, record in self._records.items():
            if record["host"] == host and self._states[number] == SUCCEEDED and self.has_value(number):
                self._gone[number] = None

    def host_is_there(self, host: str) -> None:
        """A host has come, or come back with what it had."""
        if host in self.hosts:
            self.hosts.remove(host)
            self._gone = {number: None for number in self._gone if self._records[number]["host"] != host}

    def told(self, number: int, record: StepRecord) -> None:
        """The ledger has told anew of a step, whose *record* is in its place."""
        if record["state"] == SUCCEEDED and record["host"] in self.hosts and self.has_value(number):
            self._gone[number] = None
        else:
            self._gone.pop(number, None)

    def not_found(self, steps: Iterable[int]) -> None:
        """What these steps gave is not where it is said to be, so that others do not have it who took it over."""
        lost = {
            _place(self._records[number])
            for number in steps
            if 0 <= number < len(self._states) and self._states[number] == SUCCEEDED
        }
        for number, record in self._records.items() if lost else ():
            if self._states[number] == SUCCEEDED and _place(record) in lost:
                self._gone[number] = None

    def again(self) -> dict[int, None]:
        """What is gone and still wanted, and with it what it takes, where that is gone too."""
        again: dict[int, None] = {}
        while True:
            more = [
                number
                for number in self._gone
                if number not in again and self._states[number] == SUCCEEDED and self._is_wanted(number, again)
            ]
            if not more:
                return again
            again.update(dict.fromkeys(more))

    def has_value(self, number: int) -> bool:
        """Whether what a step gave is kept: of a command its outputs are."""
        source = self.source(number)
        return source.kind is StepKind.FUNCTION or bool(source.outputs)

    def source(self, number: int) -> StepRequest:
        """The step that made the value of *number*."""
        return self._spec.step(source_of(number, self._records))

    def _is_wanted(self, number: int, again: Container[int]) -> bool:
        """Whether somebody takes what *number* gave: a step that is not settled, or is run *again*, or whoever waits
        for the graph."""
        graph = self._spec.graph
        if number in self._open:
            return True
        consumers = [each for each in graph.consumers[number] if number in graph.taken[each]]
        return not consumers or any(each in again or self._states[each] not in SETTLED for each in consumers)


def _place(record: StepRecord) -> tuple[str, str, int]:
    return record["host"], record["attempt_id"], record["offset"]
