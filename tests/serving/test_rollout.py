"""What is done about a service's replicas, carried out by the real guard of the ledger over random schedules."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from actorgrid.actors.ledger.commands import PutService, RemoveService, RollBackService, StartAttempt
from actorgrid.actors.ledger.tables.services import revision_of
from actorgrid.actors.serving.gateway_reports import RevisionFigures
from actorgrid.actors.serving.rollout import Situation, Steps, backoff_s, plan, replicas_on
from actorgrid.actors.serving.verdict import fault_of
from actorgrid.actors.serving.why_service import explain_service, state_of
from tests.ledger.test_services import Keeper, service


class Town(Keeper):
    """A ledger with a service, whoever leads it, and hosts with room for so many replicas at once."""

    def __init__(self, room: int = 8, target: int = 1, **scale: Any) -> None:
        super().__init__(min=target, max=target, **scale)
        self.room, self.fault, self.sees_room = room, "", True
        self.busy: dict[str, int] = {}
        self.dead: set[str] = set()
        """Revisions whose replicas never answer."""
        self.least_ready = target
        """How few were ready at any time since it was last set."""
        self.steps: list[Steps] = []

    @property
    def old(self) -> str:
        return self.record["revision"]

    @property
    def ready(self) -> list[str]:
        return [each["job_id"] for each in self.record["replicas"] if each["state"] == "ready"]

    def states(self, revision: str = "") -> list[str]:
        return [each["state"] for each in self.record["replicas"] if revision in ("", each["revision"])]

    def decide(self) -> Steps:
        situation = Situation(self.record, self.record["target"], self.now, self.busy, self.sees_room, self.fault)
        steps = plan(situation)
        self.steps.append(steps)
        self.lead(
            *steps.start,
            drain=steps.drain,
            end=steps.end,
            outcome=steps.outcome,
            reason=steps.reason,
            widened=steps.widened,
        )
        self.least_ready = min(self.least_ready, len(self.ready))
        return steps

    def place(self) -> None:
        """The engine: what waits is placed where there is room."""
        for each in self.record["replicas"]:
            if each["state"] == "queued" and len(self.ledger.allocations) < self.room:
                attempts = len(self.job(each["job_id"])["attempts"])
                held = {tuple(given["gpu_indexes"]) for given in self.ledger.allocations.values()}
                gpu = next(number for number in range(8) if (number,) not in held)
                token = self.grant(each["job_id"], attempts + 1, gpus=(gpu,))
                self.do(StartAttempt(f"{each['job_id']}.{attempts + 1}", token, at=self.now))
        waits = any(each["state"] == "queued" for each in self.record["replicas"])
        self.sees_room = self.sees_room and not waits

    def answer(self) -> None:
        """Hosts: what runs answers, unless it is of a dead revision; what is to end ends."""
        for each in list(self.record["replicas"]):
            job = self.job(each["job_id"])
            if job["cancel_requested"]:
                self.end(each["job_id"], "cancelled", len(job["attempts"]))
            elif each["state"] == "starting" and each["revision"] not in self.dead:
                number = len(job["attempts"])
                self.answers(each["job_id"], job["attempts"][-1]["token"], number=number)
            self.least_ready = min(self.least_ready, len(self.ready))

    def go(self, seconds: int = 30, step_s: float = 1.0) -> None:
        for _ in range(seconds):
            self.decide()
            self.place()
            self.answer()
            self.now += step_s

    def roll(self, command: str = "other", canary: int = 0, canary_s: float = 60.0) -> str:
        self.sees_room = True
        given = service(command=command, **self.record["scale"])
        self.do(PutService(given, True, canary, canary_s, at=self.now))
        return revision_of(given)


def test_a_service_comes_to_its_replicas_and_the_first_revision_is_good_once_one_answers() -> None:
    town = Town(target=3)
    town.go(3)
    assert town.states() == ["ready"] * 3 and town.record["revisions"][0]["outcome"] == "good"
    town.go(20)
    assert town.record["made_total"] == 3, "nothing more is done"


@pytest.mark.parametrize("target", [1, 2, 5])
def test_surge_exchanges_all_and_never_has_fewer_ready(target: int) -> None:
    town = Town(room=8, target=target)
    town.go(5)
    old, town.least_ready = town.old, target
    new = town.roll()
    town.go(60)
    assert town.old == new and town.record["rollout"] is None
    assert (town.states(new), town.states(old)) == (["ready"] * target, [])
    assert town.least_ready >= target


@pytest.mark.parametrize("target", [1, 2, 4])
def test_without_room_one_leaves_for_each_that_comes(target: int) -> None:
    town = Town(room=target, target=target)
    town.go(5)
    town.least_ready = target
    new = town.roll()
    town.go(120)
    assert town.old == new and town.states() == ["ready"] * target
    assert town.least_ready == target - 1


def test_replace_has_never_more_than_there_are_to_be() -> None:
    town = Town(room=8, target=3, strategy="replace")
    town.go(5)
    new = town.roll()
    for _ in range(80):
        town.go(1)
        assert len([each for each in town.record["replicas"] if each["state"] != "draining"]) <= 3
    assert town.old == new


def test_surge_alone_waits_for_room_and_keeps_what_serves() -> None:
    town = Town(room=2, target=2, strategy="surge")
    town.go(5)
    old, town.least_ready = town.old, 2
    new = town.roll()
    town.go(100)
    assert town.old == old and town.least_ready == 2 and town.states(new) == ["queued"]
    town.room = 3
    town.go(60)
    assert town.old == new and town.least_ready == 2


def test_a_revision_that_never_answers_is_given_up_and_the_old_serves_on() -> None:
    town = Town(target=2)
    town.go(5)
    old, town.least_ready = town.old, 2
    new = town.roll()
    town.dead.add(new)
    town.go(5)
    (started,) = [each for each in town.record["replicas"] if each["revision"] == new]
    attempt = town.job(started["job_id"])["attempts"][-1]
    town.answers(started["job_id"], attempt["token"], "unhealthy")
    town.go(10)
    assert town.old == old and town.states() == ["ready"] * 2 and town.least_ready == 2
    assert town.record["revisions"][-1]["outcome"] == "failed"


def test_a_revision_that_ends_again_and_again_is_given_up_and_tried_ever_more_seldom() -> None:
    town = Town(target=1)
    town.go(5)
    old, new = town.old, town.roll()
    town.dead.add(new)
    ends: list[float] = []
    for _ in range(60):
        town.go(1)
        for each in town.record["replicas"]:
            if each["revision"] == new and each["state"] == "starting":
                town.end(each["job_id"], error={"code": "TaskFailed", "message": "exit code 1"})
                ends.append(town.now)
    assert town.old == old and town.record["rollout"] is None and len(ends) == 3
    assert "exit code 1" in town.record["last_rollout"]
    assert [backoff_s(count) for count in (0, 1, 2, 3, 60)] == [0, 1, 2, 4, 300]


def test_answers_that_fail_give_it_up_and_the_new_leave_as_the_old_are_filled_up() -> None:
    town = Town(target=2)
    town.go(5)
    old, new = town.old, town.roll()
    town.go(3)
    assert town.states(new)
    town.fault = "3 of 20 requests failed"
    town.go(1)
    town.fault = ""
    town.go(30)
    assert town.old == old and town.states(new) == [] and town.states(old) == ["ready"] * 2


def test_a_canary_serves_beside_the_old_until_its_time_is_over() -> None:
    town = Town(target=4)
    town.go(5)
    old, new = town.old, town.roll(canary=10, canary_s=60.0)
    town.go(50)
    assert town.states(new) == ["ready"] and town.states(old).count("ready") == 3
    town.go(60)
    assert town.old == new and town.states() == ["ready"] * 4
    assert any(each.widened for each in town.steps)


def test_a_single_replica_stays_beside_its_canary() -> None:
    town = Town(target=1)
    town.go(5)
    old, new = town.old, town.roll(canary=20, canary_s=60.0)
    town.go(30)
    assert town.states(old) == ["ready"] and town.states(new) == ["ready"]


def test_what_leaves_is_ended_when_it_has_nothing_more_or_its_time_is_over() -> None:
    town = Town(target=1, drain_s=60.0)
    town.go(5)
    (first,) = town.ready
    town.busy[first] = 2
    town.roll()
    town.go(40)
    assert town.replica(first)["state"] == "draining", "it has requests"
    town.busy.clear()
    town.go(2)
    assert town.record["rollout"] is None and len(town.record["replicas"]) == 1
    (second,) = town.ready
    town.busy[second] = 1
    town.roll("third")
    town.go(50)
    assert town.replica(second)["state"] == "draining"
    town.go(30)
    assert second not in [each["job_id"] for each in town.record["replicas"]]


def test_what_leaves_stays_until_every_gateway_has_said_that_it_has_nothing() -> None:
    town = Town(target=2)
    town.go(5)
    second = town.record["replicas"][1]["job_id"]
    town.lead(drain=(second,))
    began = town.now
    town.now += 5
    asked: Any = {"record": town.record, "target": 1, "now": town.now, "busy": {}}
    # Whoever has just begun to lead knows of no requests: some gateway has not told it what it has.
    assert not plan(Situation(**asked, told_at=-math.inf)).end
    assert not plan(Situation(**asked, told_at=began + 1)).end, "it may not have heard that the replica leaves"
    assert plan(Situation(**asked, told_at=began + 3)).end == (second,)
    assert plan(Situation(**{**asked, "now": began + 300}, told_at=-math.inf)).end == (second,), "its time is over"


def test_what_is_not_ready_goes_first_then_what_has_least_to_do() -> None:
    town = Town(room=3, target=4)
    town.go(5)
    assert town.states() == ["ready"] * 3 + ["queued"]
    town.busy = dict(zip(town.ready, (5, 0, 2), strict=True))
    record = town.record
    steps = plan(Situation(record, 2, town.now, town.busy))
    assert (steps.end, steps.drain) == (("chat-4",), ("chat-2",))
    assert plan(Situation(record, 3, town.now, town.busy)).drain == ()


def test_one_that_answers_no_more_is_ended_after_a_while_and_another_made() -> None:
    town = Town(target=1)
    town.go(5)
    (first,) = town.ready
    town.answers(first, town.replica(first)["token"], "unhealthy")
    town.now += 29
    assert town.decide().end == ()
    town.now += 2
    assert town.decide().end == (first,)
    town.answer()
    town.go(5)
    assert town.states() == ["ready"] and town.ready != [first]


def test_what_is_on_a_host_that_leaves_is_exchanged_for_one_elsewhere() -> None:
    town = Town(target=2)
    town.go(5)
    record, revision = town.record, town.old
    second = record["replicas"][1]["job_id"]
    assert plan(Situation(record, 2, town.now, {}, leaving={second})) == Steps(start=(revision,))
    third = {**record["replicas"][0], "job_id": "chat-3"}
    left: Any = {**record, "replicas": [*record["replicas"], third]}
    assert plan(Situation(left, 2, town.now, {}, leaving={second})) == Steps(drain=(second,))


def test_a_gang_is_on_every_host_of_its_members() -> None:
    town = Town(target=2)
    town.go(5)
    first, second = (each["job_id"] for each in town.record["replicas"])
    (host,) = {each["host"] for each in town.record["replicas"]}
    gang: Any = {"attempts": [{"members": [{"host": host}, {"host": "other"}]}]}
    assert replicas_on({"other"}, town.record, {first: gang}) == {first}
    assert replicas_on({host}, town.record, {first: gang}) == {first, second}
    waiting: Any = {**town.record, "replicas": [{**town.record["replicas"][0], "host": ""}]}
    assert not replicas_on({"", "other"}, waiting, {first: gang}), "what ended was there, and waits again"


def test_going_back_is_an_exchange_too() -> None:
    town = Town(target=2)
    town.go(5)
    old, new = town.old, town.roll()
    town.go(60)
    assert town.old == new
    town.do(RollBackService("chat", "ann", at=town.now))
    town.least_ready = 2
    town.go(60)
    assert town.old == old and town.states() == ["ready"] * 2 and town.least_ready == 2
    assert [each["outcome"] for each in town.record["revisions"]] == ["good", "good"]


@pytest.mark.parametrize("seed", range(40))
def test_over_random_schedules_what_serves_is_never_taken_before_its_successor(seed: int) -> None:
    dice = random.Random(seed)
    target, surges = dice.randint(1, 5), dice.random() < 0.7
    town = Town(room=8 if surges else target, target=target)
    town.go(6)
    number = 0
    for _ in range(120):
        chance = dice.random()
        if chance < 0.06:
            number += 1
            new = town.roll(f"run{number}", canary=dice.choice([0, 0, 30]), canary_s=dice.choice([5.0, 30.0]))
            if dice.random() < 0.3:
                town.dead.add(new)
        elif chance < 0.1 and town.record["rollout"] is not None:
            town.fault = "it fails"
        town.busy = {job_id: dice.choice([0, 0, 3]) for job_id in town.ready}
        before = set(town.ready)
        steps = town.decide()
        town.fault = ""
        lost = before & {*steps.drain, *steps.end}
        bad = {each["revision"] for each in town.record["revisions"] if each["outcome"] == "failed"}
        wrong = {job_id for job_id in lost if town.replica(job_id)["revision"] in bad}
        missing = target - (len(before) - len(lost - wrong))
        assert not (lost - wrong) or missing <= (0 if town.sees_room else 1), (steps, before)
        assert not {*steps.end} & before, "what is ready is drained, not ended"
        if dice.random() < 0.7:
            town.place()
        if dice.random() < 0.7:
            town.answer()
        for each in list(town.record["replicas"]):
            attempts = town.job(each["job_id"])["attempts"]
            if each["revision"] in town.dead and each["state"] == "starting" and dice.random() < 0.3:
                town.answers(each["job_id"], attempts[-1]["token"], "unhealthy", len(attempts))
            elif each["state"] == "starting" and dice.random() < 0.03:
                town.end(each["job_id"], number=len(attempts))
        town.now += dice.choice([0.2, 1.0, 5.0])
    town.busy, town.dead = {}, set()
    town.go(200, step_s=5.0)
    assert town.record["rollout"] is None and town.states() == ["ready"] * target
    assert {each["revision"] for each in town.record["replicas"]} == {town.old}


def test_a_verdict_needs_enough_requests_and_compares() -> None:
    old = RevisionFigures(1_000, 10, 0.4)
    assert fault_of(RevisionFigures(19, 18, 9.0), old) == "" == fault_of(RevisionFigures(4, 4, 9.0), old)
    assert "all of 5 requests failed" in fault_of(RevisionFigures(5, 5, 0.1), old)
    assert fault_of(RevisionFigures(5, 5, 0.1), RevisionFigures(100, 30, 0.4)) == "", "the old fails often too"
    assert fault_of(RevisionFigures(100, 6, 0.4), old) == ""
    assert "7 of 100 requests failed" in fault_of(RevisionFigures(100, 7, 0.4), old)
    assert fault_of(RevisionFigures(100, 0, 0.9), old) == ""
    assert "first byte" in fault_of(RevisionFigures(100, 0, 0.95), old)
    assert fault_of(RevisionFigures(99, 0, 5.0), old) == "", "too few to tell the time"
    assert fault_of(RevisionFigures(100, 0, 0.3), RevisionFigures(1_000, 0, 0.01)) == ""


def test_what_is_removed_finishes_what_it_has_and_nothing_is_made_for_it() -> None:
    town = Town(target=2)
    town.go(5)
    busy = town.ready[0]
    town.busy = {busy: 3}
    town.do(RemoveService("chat", "ann", at=town.now))
    town.go(10)
    assert [each["job_id"] for each in town.record["replicas"]] == [busy] and not town.job(busy)["cancel_requested"]
    assert state_of(town.record) == "removing"
    assert "rm chat --now" in explain_service(town.record, town.now).next_steps[0]
    town.busy = {}
    town.decide()
    made = town.record["made_total"]
    town.end(busy, "cancelled")
    assert "chat" not in town.ledger.services and made == 2
