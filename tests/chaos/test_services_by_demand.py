"""What the scenario of services that follow demand comes to: they go from none to some and back, and requests wait."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.raft.messages import Entry
from actorgrid.chaos.checkers.checker import Checker, Host, ServedRequest
from actorgrid.chaos.simulator import run
from actorgrid.chaos.simulator.model_gateway import SimulatedModelGateway


class Moves(Checker):
    """Counts how the number of replicas that there are to be changes, and the requests that replicas get."""

    def __init__(self) -> None:
        self.of: Counter[tuple[int, int]] = Counter()
        self.requests = 0
        self._targets: dict[str, int] = {}
        self._seen = 0

    def replica_asked(self, request: ServedRequest) -> None:
        self.requests += 1

    def applied(self, host: Host, entry: Entry, outcome: Outcome, state: Any) -> None:
        if entry.index <= self._seen:
            return
        self._seen = entry.index
        for kind, id, record in outcome.changes:
            if kind == "service" and record is not None:
                before, self._targets[id] = self._targets.get(id, 0), record["target"]
                self.of[before, record["target"]] += before != record["target"]


def test_services_go_to_none_and_come_back_for_requests_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, usual, held = Moves(), run.checkers, Counter[str]()
    hold = SimulatedModelGateway._hold

    def noted(self: SimulatedModelGateway, route: Any) -> None:
        held[route.name] += 1
        hold(self, route)

    monkeypatch.setattr(SimulatedModelGateway, "_hold", noted)
    monkeypatch.setattr(run, "checkers", lambda: [*usual(), moves])
    result = run.play("services_by_demand", 1)
    assert result.held, result.what
    assert moves.of[0, 1] > 2 and moves.of[1, 2] and moves.of[2, 1] and moves.of[1, 0] > 1
    assert held.total() > 2 and moves.requests > 100
