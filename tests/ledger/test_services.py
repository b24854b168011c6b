"""Services in the ledger: what is decided about them is decided once, and no address outlives its attempt."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.command import read_command, refuse_if_too_new
from actorgrid.actors.ledger.commands import (
    AdvanceService,
    CancelJob,
    EndAttempt,
    PutService,
    RemoveService,
    ReportReplica,
    RetryJob,
    RollBackService,
    ScaleService,
    SetQuota,
)
from actorgrid.actors.ledger.service_records import ReplicaRecord, ServiceRecord
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables import services
from actorgrid.errors import BadRequest, HostsTooOld, QueueFull, StaleToken, UnknownService, WrongState
from tests.consensus.rig import AT, job_record
from tests.ledger.test_state import Book

NOT_OF_REPLICAS = ("job_id", "user_id", "depends_on", "submitted_at", "deadline", "retries_left")


def service(name: str = "chat", command: str = "serve", **scale: Any) -> dict[str, Any]:
    job = {field: value for field, value in job_record("any").items() if field not in NOT_OF_REPLICAS}
    job.pop("max_execution_time_s", None)
    serving = {"protocol": "openai", "model": "", "ready_path": "", "ready_body": "", "live_path": "/health"}
    how_many = {"min": 1, "max": 4, "concurrency": 8, "idle_s": 900.0, "drain_s": 120.0, "strategy": "auto", **scale}
    return {
        "name": name,
        "user_id": "ann",
        "job": {**job, "command": [command, "--port", "{port}"]},
        "serving": {**serving, "start_timeout_s": 300.0, "preset": ""},
        "scale": how_many,
        "made_by": "ann",
    }


class Keeper(Book):
    """A ledger with one service, and whoever leads it."""

    def __init__(self, **scale: Any) -> None:
        super().__init__(gpus=8)
        self.now = AT
        self.do(PutService(service(**scale), at=AT))

    @property
    def record(self) -> ServiceRecord:
        return self.ledger.services["chat"]

    def replica(self, job_id: str) -> ReplicaRecord:
        return next(each for each in self.record["replicas"] if each["job_id"] == job_id)

    def lead(self, *start: str, drain: tuple[str, ...] = (), end: tuple[str, ...] = (), **more: Any) -> list[str]:
        fields = {"target": self.record["target"], "seen": self.record["changed"], "term": 1, **more}
        command = AdvanceService("chat", start=list(start), drain=list(drain), end=list(end), at=self.now, **fields)
        started: list[str] = self.do(command)["started"]
        return started

    def serve(self, revision: str = "", gpu: int = 0) -> str:
        """One more replica, that answers."""
        (job_id,) = self.lead(revision or self.record["revision"])
        self.answers(job_id, self.grant(job_id, gpus=(gpu,)))
        return job_id

    def answers(self, job_id: str, token: list[int], state: str = "ready", number: int = 1) -> None:
        self.do(ReportReplica(f"{job_id}.{number}", token, state, 20_000, "m", at=self.now))

    def end(self, job_id: str, outcome: str = "failed", number: int = 1, **more: Any) -> None:
        token = self.ledger.allocations[f"{job_id}.{number}"]["token"]
        self.do(EndAttempt(f"{job_id}.{number}", token, outcome, at=self.now, **more))


def test_a_replica_is_a_job_of_its_service_made_once_for_each_record_that_was_decided_about() -> None:
    book = Keeper()
    seen = book.record["changed"]
    (job_id,) = book.lead(book.record["revision"])
    job = book.job(job_id)
    assert (job_id, job["name"], job["user_id"]) == ("chat-1", "chat", "ann")
    assert job["service"] == {"name": "chat", "revision": book.record["revision"]}
    assert job["labels"] == {"service": "chat", "revision": book.record["revision"]}
    with pytest.raises(WrongState, match="not what that was decided about"):
        book.lead(book.record["revision"], seen=seen)
    with pytest.raises(StaleToken):
        book.lead(book.record["revision"], term=0)
    assert [each["job_id"] for each in book.record["replicas"]] == ["chat-1"]


def test_an_address_is_of_one_attempt_and_goes_with_it() -> None:
    book = Keeper()
    (job_id,) = book.lead(book.record["revision"])
    assert book.replica(job_id)["state"] == "queued"
    token = book.grant(job_id)
    assert (book.replica(job_id)["state"], book.replica(job_id)["host"]) == ("starting", "h1")
    book.answers(job_id, token)
    ready = book.replica(job_id)
    assert (ready["state"], ready["port"], ready["token"]) == ("ready", 20_000, token)
    book.end(job_id, "lost", charge=False)
    again = book.replica(job_id)
    assert (again["state"], again["host"], again["port"], again["token"]) == ("queued", "", 0, [])
    with pytest.raises(StaleToken):
        book.answers(job_id, token)
    later = book.grant(job_id, 2)
    with pytest.raises(StaleToken):
        book.answers(job_id, token, number=2)
    book.answers(job_id, later, number=2)
    assert book.replica(job_id)["attempt_id"] == "chat-1.2"


def test_what_ends_of_itself_counts_against_its_revision_and_what_was_asked_for_does_not() -> None:
    book = Keeper()
    first, second = book.serve(), book.serve(gpu=1)
    book.end(first, error={"code": "TaskFailed", "message": "exit code 3"})
    (writing,) = book.record["revisions"]
    assert (writing["failures"], writing["failed_with"]) == (1, "exit code 3")
    book.lead(drain=(second,))
    assert book.replica(second)["state"] == "draining"
    book.answers(second, book.replica(second)["token"], "unhealthy")
    assert book.replica(second)["state"] == "draining", "what leaves does not come back"
    book.lead(end=(second,))
    assert book.job(second)["cancel_requested"]
    book.end(second, "cancelled")
    third = book.serve()
    book.do(CancelJob(third, "ann", at=AT))
    book.end(third, "cancelled")
    assert book.record["revisions"][0]["failures"] == 1
    assert [(each["job_id"], each["asked"]) for each in book.record["ended"]] == [
        (first, False),
        (second, True),
        (third, True),
    ]
    fourth = book.serve()
    book.now += services.STABLE_S
    book.end(fourth)
    assert book.record["revisions"][0]["failures"] == 1, "it had served for long: that begins anew"
    fifth = book.serve()
    book.answers(fifth, book.replica(fifth)["token"], "unhealthy")
    book.lead(end=(fifth,))
    book.end(fifth, "cancelled")
    assert book.record["revisions"][0]["failures"] == 2 and not book.record["ended"][-1]["asked"]


def test_another_writing_is_an_exchange_and_goes_forward_or_back() -> None:
    book = Keeper()
    old = book.record["revision"]
    with pytest.raises(WrongState, match="rollout"):
        book.do(PutService(service(command="other"), at=AT))
    told = book.do(PutService(service(command="other", max=6), True, 10, 60.0, at=AT))
    new = told["revision"]
    assert told["rolling_out"] and new != old and book.record["revision"] == old
    assert book.record["rollout"] is not None and book.record["rollout"]["canary"] == 10
    assert book.record["scale"]["max"] == 6
    book.serve(new)
    book.lead(widened=True)
    assert book.record["rollout"]["canary"] == 0
    book.lead(outcome="promoted")
    assert (book.record["revision"], book.record["rollout"]) == (new, None)
    with pytest.raises(WrongState, match="nothing that served before"):
        book.do(RollBackService("chat", "ann", at=AT))
    book.do(PutService(service(command="third"), True, at=AT))
    book.lead(outcome="aborted", reason="it does not answer")
    assert book.record["revision"] == new and "does not answer" in book.record["last_rollout"]
    assert [each["outcome"] for each in book.record["revisions"]] == ["", "good", "failed"]
    third = book.do(PutService(service(command="fourth"), True, at=AT))["revision"]
    book.lead(outcome="promoted")
    assert book.do(RollBackService("chat", "ann", at=AT))["revision"] == new
    assert book.record["rollout"]["back"] and book.record["revision"] == third
    assert book.do(RollBackService("chat", "ann", at=AT))["revision"] == third, "it takes the way back back"


def test_what_has_just_come_to_serve_can_be_gone_back_to() -> None:
    book = Keeper()
    old = book.record["revision"]
    book.serve(old)  # and whoever leads has not said yet that it serves
    book.do(PutService(service(command="other"), True, at=AT))
    book.lead(outcome="promoted")
    assert [each["outcome"] for each in book.record["revisions"]] == ["good", "good"]
    assert book.do(RollBackService("chat", "ann", at=AT))["revision"] and book.record["rollout"]["to"] == old


def test_only_what_serves_or_is_to_is_started() -> None:
    book = Keeper()
    assert book.lead("0" * 12) == []
    old = book.record["revision"]
    new = book.do(PutService(service(command="other"), True, at=AT))["revision"]
    assert len(book.lead(old, new)) == 2
    book.lead(outcome="promoted")
    assert book.lead(old) == []


def test_the_target_stays_within_its_bounds() -> None:
    book = Keeper(min=0, max=4)
    assert book.record["target"] == 1, "what was written is tried once"
    book.lead(target=200)
    assert book.record["target"] == 4
    assert book.do(ScaleService("chat", 2, 3, at=AT))["unchanged"] is False
    assert book.record["target"] == 3
    book.lead(target=0)
    assert book.record["target"] == 2
    with pytest.raises(BadRequest):
        read_command(ScaleService("chat", 3, 2, at=AT).to_plain())


def test_a_replica_that_the_quota_refuses_is_said_and_not_made() -> None:
    book = Keeper()
    book.do(SetQuota("ann", {"jobs_waiting": 1}, "me", at=AT))
    assert len(book.lead(book.record["revision"], book.record["revision"])) == 1
    assert "ann" in book.record["problem"] and len(book.record["replicas"]) == 1


def test_removing_it_ends_its_replicas() -> None:
    book = Keeper()
    running = book.serve()
    (waiting,) = book.lead(book.record["revision"])
    assert book.do(RemoveService("chat", "ann", True, at=AT))["ending"] == [running, waiting]
    assert (book.job(waiting)["state"], book.job(running)["cancel_requested"]) == ("cancelled", True)
    book.end(running, "cancelled")
    with pytest.raises(UnknownService):
        book.do(RemoveService("chat", at=AT))


def test_bounds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Keeper()
    monkeypatch.setattr(services, "SERVICES_MAX", 1)
    with pytest.raises(QueueFull):
        book.do(PutService(service("other"), at=AT))
    with pytest.raises(QueueFull):
        book.do(PutService(service(command="x" * 60_000 + "y" * 6_000), True, at=AT))
    for number in range(services.REVISIONS_KEPT + 3):
        book.do(PutService(service(command=f"other{number}"), True, at=AT))
    assert len(book.record["revisions"]) == services.REVISIONS_KEPT
    assert book.record["revision"] in {each["revision"] for each in book.record["revisions"]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a b"},
        {"scale": {"min": 3, "max": 2}},
        {"serving": {}},
        {"job": {"resources": {}, "retries_left": 1}},
        {"more": 1},
        {"user_id": ""},
    ],
)
def test_what_is_malformed_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        read_command(PutService({**service(), **wrong}, at=AT).to_plain())


def test_hosts_of_before_are_not_told_and_a_snapshot_has_all() -> None:
    with pytest.raises(HostsTooOld):
        refuse_if_too_new(PutService(service(), at=AT), {"a": {"ledger_version": 9}})  # type: ignore[typeddict-item]
    book = Keeper()
    first = book.serve()
    book.do(PutService(service(command="other"), True, at=AT))
    again = Ledger.restore(book.ledger.snapshot())
    assert again.digest() == book.ledger.digest() and again.snapshot() == book.ledger.snapshot()
    book.ledger = again
    book.end(first)
    assert book.record["replicas"] == [], "its job is known to be its"


def routing(*adapters: str, **more: Any) -> dict[str, Any]:
    named = [{"model": each, "served_as": each} for each in adapters]
    return {"strategy": "least_loaded", "affinity_header": "x-user", "adapters": named, "fallbacks": ["small"], **more}


def test_how_requests_come_to_replicas_is_written_without_an_exchange_and_stays() -> None:
    book = Keeper()
    revision = book.record["revision"]
    told = book.do(PutService({**service(), "routing": routing("law")}, at=AT))
    assert (told["unchanged"], told["rolling_out"], book.record["revision"]) == (False, False, revision)
    assert book.do(PutService(service(), at=AT))["unchanged"], "what is not said stays as it was"
    assert book.record["routing"] == routing("law")
    for name, adapters in (("other", ["law"]), ("other", ["chat"]), ("other", ["a", "a"]), ("law", [])):
        with pytest.raises(WrongState):
            book.do(PutService({**service(), "name": name, "routing": routing(*adapters)}, at=AT))
    book.do(PutService({**service(), "name": "other", "routing": routing("medicine")}, at=AT))


@pytest.mark.parametrize(
    "wrong",
    [
        {"strategy": "luck"},
        {"affinity_header": "X-User"},
        {"adapters": [{"model": "a"}]},
        {"adapters": [{"model": "a\n", "served_as": "b"}]},
        {"fallbacks": [""]},
        {"fallbacks": ["m"] * 9},
        {"more": 1},
    ],
)
def test_a_way_to_replicas_that_is_not_as_it_should_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        Keeper().do(PutService({**service(), "routing": routing(**wrong)}, at=AT))


def test_what_is_removed_goes_once_its_replicas_have_finished_and_nothing_is_written_meanwhile() -> None:
    book = Keeper()
    first, second = book.serve(), book.serve(gpu=1)
    (waiting,) = book.lead(book.record["revision"])
    assert book.do(RemoveService("chat", "ann", at=AT))["ending"] == [first, second, waiting]
    assert book.job(waiting)["state"] == "cancelled" and not book.job(first)["cancel_requested"]
    assert {each["state"] for each in book.record["replicas"]} == {"draining"} and book.record["target"] == 0
    for command in (PutService(service(), at=AT), ScaleService("chat", 1, 2, at=AT), RollBackService("chat", at=AT)):
        with pytest.raises(WrongState, match="being removed"):
            book.do(command)
    assert book.lead(book.record["revision"], target=3) == [] and book.record["target"] == 0
    book.lead(end=(first,))
    book.end(first, "cancelled")
    assert [each["job_id"] for each in book.record["replicas"]] == [second]
    assert book.record["removed_by"] == "ann"
    book.do(RemoveService("chat", "ann", at=AT))
    assert "chat" not in book.ledger.services and book.job(second)["cancel_requested"], "a second time: at once"
    book.end(second, "cancelled")
    book.do(PutService(service(), at=AT))
    last = book.serve()
    book.do(RemoveService("chat", "ann", at=AT))
    book.lead(end=(last,))
    book.end(last, "cancelled")
    assert "chat" not in book.ledger.services


def test_a_replica_that_ended_is_not_begun_again_as_a_job_of_nobody() -> None:
    book = Keeper()
    first = book.serve()
    book.end(first, error={"code": "TaskFailed", "message": "exit code 3"})
    with pytest.raises(WrongState, match="replica of the service chat") as caught:
        book.do(RetryJob(first, "ann", at=AT))
    assert "actorgrid scale chat" in (caught.value.hint or "")
