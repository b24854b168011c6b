"""How a graph is led on when the ledger refuses, files are not there, or something is wrong with it: ever more slowly,
and told. The real manager over the real ledger of one host, on a clock that stands still until told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.cluster.manager import ClusterManager
from actorgrid.actors.jobs.decisions import Advance
from actorgrid.actors.jobs.graph_spec import write_spec
from actorgrid.actors.jobs.runner import AGAIN_S, GATHER_S, IDLE_ROUNDS_MAX, REFUSALS_QUIET, GraphRunner
from actorgrid.actors.ledger.commands import AdvanceGraph
from actorgrid.dag.requests import GraphRequest
from actorgrid.errors import ActorGridError, CallTimeout, Overloaded, QuotaExceeded, WrongState

from .rig import Rig


class Runner:
    """The runner of a rig's manager, whose proposals of ``advance_graph`` may be refused."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.blobs = folder / "blobs"
        self.manager = rig.add(ClusterManager)
        self.at: list[float] = []
        self.refusal: ActorGridError | None = None
        ledger = self.manager._graphs._ledger
        self._propose = ledger.propose
        ledger.propose = self.propose

    async def propose(self, command: Any, *more: Any, **named: Any) -> Any:
        if isinstance(command, AdvanceGraph):
            self.at.append(self.rig.node.now_s)
            if self.refusal is not None:
                raise self.refusal
        return await self._propose(command, *more, **named)

    def submit(self, graph_id: str = "g", *, with_file: bool = True) -> bytes:
        steps = [{"id": "a", "command": ["true"]}, {"id": "b", "command": ["true"], "after": ["a"]}]
        content = write_spec(GraphRequest.model_validate({"graph_id": graph_id, "steps": steps}))
        if with_file:
            self.keep(content)
        digest = hashlib.sha256(content).hexdigest()
        facts = {"files": [digest], "steps": 2, "strategy": "first_available", "on_failure": "fail_fast"}
        self.rig.propose("submit_graph", v=8, graph={"job_id": graph_id, "user_id": "ann", "graph": facts})
        self.rig.node.settle()
        return content

    def keep(self, content: bytes) -> None:
        self.blobs.mkdir(exist_ok=True)
        (self.blobs / hashlib.sha256(content).hexdigest()).write_bytes(content)

    @property
    def runner(self) -> GraphRunner:
        found: GraphRunner = self.manager._graphs._loaded()
        return found

    def told(self, graph_id: str = "g") -> str:
        return str((self.runner.explain(graph_id) or {}).get("held_by"))

    def until(self, condition: Callable[[], bool], step_s: float = 0.05) -> None:
        for _ in range(400):
            if condition():
                return
            self.rig.node.advance(step_s)
        raise AssertionError("it does not come to that")

    def released(self) -> bool:
        return any(job_id.startswith("g.") for job_id in self.manager._graphs._ledger.jobs)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    rig = Rig(tmp_path)
    yield Runner(rig, tmp_path)
    rig.close()


def test_each_refusal_doubles_the_wait_up_to_a_second_and_is_told(runner: Runner) -> None:
    runner.refusal = WrongState("something else was faster")
    runner.submit()
    runner.until(lambda: len(runner.at) >= REFUSALS_QUIET)
    assert "faster" not in runner.told(), "a few in a row are nothing that people should know of"
    runner.until(lambda: len(runner.at) >= 14)
    waits = [after - before for before, after in zip(runner.at, runner.at[1:], strict=False)]
    expected = [min(AGAIN_S, GATHER_S * 2.0**number) for number in range(1, len(waits) + 1)]
    for wait, least in zip(waits, expected, strict=True):
        assert least <= wait < least + 0.2, waits
    assert runner.told() == "held up: something else was faster"
    runner.refusal = None
    runner.until(runner.released)
    assert "faster" not in runner.told()


@pytest.mark.parametrize("refusal", [QuotaExceeded("no more jobs"), Overloaded("later"), CallTimeout("nobody knows")])
def test_want_of_room_is_told_at_once_and_tried_again_each_second(runner: Runner, refusal: ActorGridError) -> None:
    runner.refusal = refusal
    runner.submit()
    runner.until(lambda: len(runner.at) >= 5)
    waits = [after - before for before, after in zip(runner.at, runner.at[1:], strict=False)]
    assert all(AGAIN_S <= wait < AGAIN_S + 0.2 for wait in waits), waits
    assert runner.told() == f"held up: {refusal.message}"
    runner.refusal = None
    runner.until(runner.released)


def test_a_success_in_between_begins_the_waits_anew(runner: Runner) -> None:
    runner.refusal = WrongState("no")
    runner.submit()
    runner.until(lambda: len(runner.at) >= 10)
    runner.refusal = None
    runner.until(runner.released)
    assert runner.runner._graphs["g"].refusals == 0


def test_files_that_are_not_there_are_looked_for_each_second_until_they_are(runner: Runner) -> None:
    content = runner.submit(with_file=False)
    runner.rig.node.advance(3.5)
    assert runner.told().startswith("its files cannot be read"), runner.told()
    assert not runner.at
    runner.keep(content)
    runner.until(runner.released)


def test_a_graph_without_its_files_ends_when_it_is_cancelled(runner: Runner) -> None:
    runner.submit(with_file=False)
    runner.rig.node.advance(0.5)
    runner.rig.propose("cancel_job", job_id="g", by="ann")
    runner.until(lambda: runner.rig.job("g")["state"] == "cancelled")


def test_what_is_wrong_with_one_graph_ends_that_graph_alone(runner: Runner) -> None:
    runner.submit("g")
    runner.submit("other")
    runner.until(runner.released)

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a fault of the program")

    execution = runner.runner._graphs["other"].execution
    assert execution is not None
    execution.decide = broken  # type: ignore[method-assign]
    runner.runner._kick("other")
    runner.rig.node.advance(0.1)
    assert runner.rig.job("other.0-1")["cancel_requested"], "what runs of it is to end first"
    runner.rig.end("other.0-1", "cancelled")
    runner.until(lambda: runner.rig.job("other")["state"] == "failed")
    error = runner.rig.job("other")["error"]
    assert error["code"] == "InvalidGraph" and "ZeroDivisionError" in error["found"]
    assert runner.rig.job("g")["state"] == "running"


def test_a_damaged_description_ends_the_graph(runner: Runner) -> None:
    digest = hashlib.sha256(b"damaged").hexdigest()
    runner.keep(b"damaged")
    facts = {"files": [digest], "steps": 1, "strategy": "first_available", "on_failure": "fail_fast"}
    runner.rig.propose("submit_graph", v=8, graph={"job_id": "g", "user_id": "ann", "graph": facts})
    runner.until(lambda: runner.rig.job("g")["state"] == "failed")
    assert runner.rig.job("g")["error"]["code"] == "InvalidGraph"


def test_proposals_that_change_nothing_are_given_time(runner: Runner) -> None:
    runner.submit()
    runner.until(runner.released)
    execution = runner.runner._graphs["g"].execution
    assert execution is not None
    execution.decide = lambda *_: Advance(withdrawn=[])  # type: ignore[method-assign]
    runner.at.clear()
    runner.runner._kick("g")
    runner.rig.node.advance(0.9)
    assert IDLE_ROUNDS_MAX <= len(runner.at) <= IDLE_ROUNDS_MAX + 2, "then it is held for a second"
