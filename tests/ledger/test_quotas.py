"""Quotas in the ledger: what they refuse, what they count, what they leave alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import (
    CancelJob,
    EndAttempt,
    GrantAttempt,
    GrantLease,
    NewTerm,
    RegisterHost,
    ReleaseLease,
    SetQuota,
    SubmitJobs,
)
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.record_checks import HELD_LIMITS, LIMITS
from actorgrid.actors.ledger.snapshot import decode, pack
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables import quotas as quotas_module
from actorgrid.actors.ledger.tables.quotas import amount_text, amounts_held, over, quota_of, shortage
from actorgrid.errors import BadRequest, NotFound, Overcommit, QueueFull, QuotaExceeded, WrongState
from tests.consensus.rig import AT, Follower, Host, host_record, job_record

NOTHING = dict.fromkeys(HELD_LIMITS, 0)


class Book:
    """A ledger with a host of four devices."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.commands: list[dict[str, Any]] = []
        self.do(NewTerm(1, at=AT))
        self.do(RegisterHost(host_record(gpus=4, cpu_milli=100_000), at=AT))

    def apply(self, command: Command) -> Outcome:
        self.commands.append(command)
        return self.ledger.apply(self.ledger.index + 1, json.loads(json.dumps(command.to_plain())))

    def do(self, command: Command) -> dict[str, Any]:
        outcome = self.apply(command)
        if outcome.error is not None:
            raise outcome.error
        assert outcome.result is not None
        return outcome.result

    def limit(self, user: str, **limits: int | None) -> dict[str, Any]:
        return self.do(SetQuota(user, limits, "me", at=AT))

    def submit(self, *job_ids: str, user: str = "ann", **resources: Any) -> None:
        whole = {"gpu_milli": 1000, "gpu_memory_mib": 0, **resources}
        self.do(SubmitJobs([job_record(id, user_id=user, resources=whole) for id in job_ids], at=AT))

    def grant(self, job_id: str, gpus: tuple[int, ...] = (0,), number: int = 1) -> list[int]:
        token: list[int] = self.do(GrantAttempt(job_id, number, "h1", 1, list(gpus), 1, at=AT))["token"]
        return token

    def lease(self, lease_id: str, gpus: tuple[int, ...], user: str = "ann") -> None:
        wanted = {"gpu_count": len(gpus), "gpu_milli": 1000}
        self.do(
            GrantLease(lease_id, "s1", "h1", 1, list(gpus), wanted, pool="general", env={}, term=1, at=AT, user_id=user)
        )

    def used(self, user: str = "ann") -> dict[str, int]:
        return self.ledger.quotas.used(user)


def test_a_grant_that_takes_its_user_over_the_quota_is_refused_and_changes_nothing() -> None:
    book = Book()
    book.limit("ann", gpu_milli=1500)
    book.submit("a", "b")
    book.submit("c", user="bob")
    book.grant("a", (0,))
    before = book.ledger.snapshot()
    with pytest.raises(QuotaExceeded) as refused:
        book.grant("b", (1,))
    assert refused.value.asked == "1 GPU" and refused.value.found == "1 of 1.5 GPUs in use"
    book.ledger.index -= 1
    assert book.ledger.snapshot() == before
    book.grant("c", (1,))
    book.do(EndAttempt("a.1", book.ledger.jobs["a"]["attempts"][0]["token"], "succeeded", at=AT))
    book.grant("b", (2,))


def test_leases_count_for_the_user_of_their_session() -> None:
    book = Book()
    book.limit("ann", gpu_milli=2000)
    book.lease("L1", (0, 1))
    book.submit("a")
    with pytest.raises(QuotaExceeded):
        book.grant("a", (2,))
    with pytest.raises(QuotaExceeded):
        book.lease("L2", (2,))
    book.lease("L3", (2,), "bob")
    book.do(ReleaseLease("L1", at=AT))
    book.grant("a", (0,))
    assert book.used() == {**NOTHING, "gpu_milli": 1000, "cpu_milli": 1000}
    assert book.used("bob") == {**NOTHING, "gpu_milli": 1000}


@pytest.mark.parametrize(
    ("limit", "resources", "asked"),
    [
        ({"gpu_milli": 1999}, {"gpu_count": 2}, "2 GPUs"),
        ({"gpu_memory_mib": 2047}, {"gpu_count": 2, "gpu_memory_mib": 1024}, "2 GiB of GPU memory"),
        ({"cpu_milli": 999}, {"cpu_milli": 1000}, "1 CPU"),
        ({"memory_mib": 99}, {"memory_mib": 100}, "100 MiB of memory"),
    ],
)
def test_a_job_that_asks_for_more_than_the_whole_quota_is_refused_at_submit(
    limit: dict[str, int], resources: dict[str, Any], asked: str
) -> None:
    book = Book()
    book.limit("ann", **limit)
    with pytest.raises(QuotaExceeded) as refused:
        book.submit("fits", "large", **{"cpu_milli": 1, **resources})
    assert refused.value.asked == asked and "a quota of" in refused.value.found and "ann" in refused.value.message
    assert not book.ledger.jobs
    book.submit("other", user="bob", **resources)


def test_the_default_holds_for_whoever_has_none_of_their_own_and_for_nobody_nameless() -> None:
    book = Book()
    book.limit("*", gpu_milli=0)
    book.limit("ann")
    book.submit("a")
    with pytest.raises(QuotaExceeded):
        book.submit("b", user="bob")
    book.submit("n", user="")
    for number, job_id in enumerate(("a", "n")):
        book.grant(job_id, (number,))
    book.do(SetQuota("ann", None, "me", at=AT))
    with pytest.raises(QuotaExceeded):
        book.submit("a2")


def test_what_is_asked_for_as_zero_is_within_every_quota() -> None:
    book = Book()
    book.submit("a")
    book.grant("a")
    book.limit("ann", gpu_milli=0, gpu_memory_mib=0)
    book.submit("cpu", gpu_count=0)
    book.grant("cpu", ())


def test_a_lower_quota_stops_nobody_and_lets_nothing_new_in() -> None:
    book = Book()
    book.submit("a", "b", "waits")
    book.grant("a", (0,))
    book.grant("b", (1,))
    answer = book.limit("ann", gpu_milli=1000)
    assert (answer["previous"], answer["limits"]["gpu_milli"]) == (None, 1000)
    assert set(book.ledger.allocations) == {"a.1", "b.1"}
    for id in ("a", "b"):
        with pytest.raises(QuotaExceeded):
            book.grant("waits", (2,))
        book.do(EndAttempt(f"{id}.1", book.ledger.jobs[id]["attempts"][0]["token"], "failed", at=AT))
    book.grant("waits", (2,))


def test_jobs_waiting_bounds_the_queue_of_a_user_not_what_comes_back_to_it() -> None:
    book = Book()
    book.limit("ann", jobs_waiting=2)
    book.do(SubmitJobs([job_record("a", user_id="ann", retries_left=1)], at=AT))
    book.submit("b")
    with pytest.raises(QueueFull) as refused:
        book.submit("c")
    assert refused.value.found == "2 waiting of 2"
    book.submit("other", user="bob")
    token = book.grant("a")
    with pytest.raises(QueueFull):
        book.submit("c", "d")
    book.submit("c")
    book.do(EndAttempt("a.1", token, "failed", at=AT))
    assert book.ledger.jobs["a"]["state"] == "queued"
    book.do(SubmitJobs([job_record("a", user_id="ann")], at=AT))  # a duplicate asks for no place
    book.do(CancelJob("a", "me", at=AT))
    book.do(CancelJob("b", "me", at=AT))
    book.submit("d")


def test_removing_a_quota_that_is_not_there_says_which_is() -> None:
    book = Book()
    book.limit("alice", gpu_milli=1)
    with pytest.raises(NotFound) as refused:
        book.do(SetQuota("alcie", None, "me", at=AT))
    assert refused.value.hint == "did you mean alice?"
    assert book.do(SetQuota("alice", None, "me", at=AT))["previous"]["gpu_milli"] == 1
    with pytest.raises(NotFound):
        book.do(SetQuota("alice", None, "me", at=AT))


def test_quotas_have_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "QUOTAS_MAX", 1)
    book = Book()
    book.limit("ann", gpu_milli=1)
    book.limit("ann", gpu_milli=2)
    with pytest.raises(WrongState):
        book.limit("bob", gpu_milli=1)


@pytest.mark.parametrize(
    ("user", "limits"),
    [
        ("", {}),
        ("x" * 129, {}),
        ("a\nb", {}),
        ("ann", {"gpu_milli": -1}),
        ("ann", {"gpu_milli": 1.5}),
        ("ann", {"gpu_milli": True}),
        ("ann", {"gpus": 1}),
        ("ann", []),
    ],
)
def test_a_quota_that_is_none_is_refused(user: str, limits: Any) -> None:
    with pytest.raises(BadRequest):
        Book().do(SetQuota(user, limits, "me", at=AT))


def test_a_snapshot_of_the_format_before_has_no_quotas_and_says_whose_allocations_are() -> None:
    book = Book()
    book.submit("a", user="bob")
    book.grant("a")
    book.lease("L1", (1,), "local")
    header, sections = decode(book.ledger.snapshot())
    assert sections.pop("quotas", []) == []
    before = [{name: value for name, value in one.items() if name != "user_id"} for one in sections["allocations"]]
    old = {**sections, "allocations": before}
    values = [{**header, "format": 2}, *([name, items] for name, items in old.items() if items)]
    restored = Ledger.restore(b"".join(map(pack, [*values, ["end", len(values) - 1]])))
    assert restored.snapshot() == book.ledger.snapshot() and restored.digest() == book.ledger.digest()
    assert restored.quotas.used("bob") == book.used("bob")
    assert restored.quotas.used("local") == {**NOTHING, "gpu_milli": 1000}


def test_rows_tell_who_is_held_to_what_and_holds_what() -> None:
    book = Book()
    book.limit("*", gpu_milli=3000)
    book.limit("idle", jobs_waiting=0)
    book.submit("a", "b")
    book.grant("a")
    rows = {row["user"]: row for row in book.ledger.quotas.rows()}
    assert list(rows) == ["*", "ann", "idle"]
    assert rows["ann"]["default"] and rows["ann"]["limits"]["gpu_milli"] == 3000
    assert rows["ann"]["used"] == {**NOTHING, "gpu_milli": 1000, "cpu_milli": 1000, "jobs_waiting": 1}
    assert not rows["idle"]["default"] and not rows["*"]["default"]


def test_quotas_reach_those_who_follow_the_ledger_and_survive_a_restart(make_host: Callable[..., Host]) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    host.node.settle()
    host.propose(SetQuota("ann", {"gpu_milli": 5}, "me", at=AT))
    host.node.settle()
    assert follower.ledger.quotas == {"ann": {**dict.fromkeys(LIMITS), "gpu_milli": 5}}
    host.stop()
    host.start()
    assert [row["limits"]["gpu_milli"] for row in host.query("quotas")["quotas"]] == [5]
    host.propose(SetQuota("ann", None, "me", at=AT))
    assert host.query("quotas") == {"quotas": []}
    kinds = [(event["kind"], event["state"]) for event in host.query("events")["events"]]
    assert kinds[-2:] == [("quota", "set"), ("quota", "gone")]


@pytest.mark.parametrize(
    ("name", "amount", "text"),
    [
        ("gpu_milli", 1000, "1 GPU"),
        ("gpu_milli", 250, "0.25 GPUs"),
        ("cpu_milli", 0, "0 CPUs"),
        ("memory_mib", 1536, "1.5 GiB of memory"),
        ("jobs_waiting", 1, "1 waiting job"),
    ],
)
def test_amounts_read_as_people_say_them(name: str, amount: int, text: str) -> None:
    assert amount_text(name, amount) == text


amounts = st.fixed_dictionaries(
    {
        "gpu_count": st.integers(0, 2),
        "gpu_milli": st.sampled_from([1, 500, 1000]),
        "gpu_memory_mib": st.sampled_from([0, 1000, 40_000]),
        "cpu_milli": st.sampled_from([0, 1000, 3000]),
        "memory_mib": st.sampled_from([0, 10_000]),
    }
)
users = st.sampled_from(["ann", "bob", "carl"])
numbers = st.integers(0, 9)
limits = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "gpu_milli": st.sampled_from([None, 0, 1000, 2500]),
        "gpu_memory_mib": st.sampled_from([None, 2000, 80_000]),
        "cpu_milli": st.sampled_from([None, 1000, 6000]),
        "memory_mib": st.sampled_from([None, 10_000]),
        "jobs_waiting": st.sampled_from([None, 0, 2]),
    },
)
steps = st.one_of(
    st.tuples(st.just("submit"), users, st.lists(st.tuples(numbers, amounts), max_size=3)),
    st.tuples(st.just("grant"), numbers, st.permutations(range(4))),
    st.tuples(st.just("lease"), users, numbers, amounts, st.permutations(range(4))),
    st.tuples(st.just("release"), numbers),
    st.tuples(st.just("end"), numbers, st.sampled_from(["succeeded", "failed", "lost"])),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("quota"), st.sampled_from(["ann", "bob", "*"]), limits),
    st.tuples(st.just("restore")),
)


def command_of(book: Book, step: str, arguments: list[Any]) -> dict[str, Any] | None:
    jobs = book.ledger.jobs
    if step == "submit":
        user, wanted = arguments
        made = [job_record(f"j{n}", user_id=user, resources=what, retries_left=3) for n, what in wanted]
        return SubmitJobs(made, at=AT)
    if step == "quota":
        return SetQuota(arguments[0], arguments[1], "me", at=AT)
    if step == "lease":
        user, number, wanted, order = arguments
        gpus = list(order)[: wanted["gpu_count"]]
        return GrantLease(f"L{number}", "s", "h1", 1, gpus, wanted, pool="general", env={}, term=1, at=AT, user_id=user)
    if step == "release":
        return ReleaseLease(f"L{arguments[0]}", at=AT)
    job = jobs.get(f"j{arguments[0]}")
    if step == "cancel" or job is None:
        return CancelJob(f"j{arguments[0]}", "me", at=AT)
    attempts = job["attempts"]
    if step == "grant":
        gpus = list(arguments[1])[: job["resources"]["gpu_count"]]
        return GrantAttempt(job["job_id"], attempts[-1]["number"] + 1 if attempts else 1, "h1", 1, gpus, 1, at=AT)
    if not attempts:
        return None
    return EndAttempt(attempts[-1]["attempt_id"], attempts[-1]["token"], arguments[1], at=AT)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=60))
def test_use_is_exact_and_no_grant_goes_over(history: list[tuple[Any, ...]]) -> None:
    book = Book()
    for step, *arguments in history:
        if step == "restore":
            again = Ledger.restore(book.ledger.snapshot())
            assert again.quotas.rows() == book.ledger.quotas.rows()
            book.ledger = again
            continue
        command = command_of(book, step, arguments)
        if command is None:
            continue
        outcome = book.apply(command)
        assert not isinstance(outcome.error, QuotaExceeded | QueueFull) or step in ("submit", "grant", "lease")
        used: dict[str, dict[str, int]] = {}
        for allocation in book.ledger.allocations.values():
            mine = used.setdefault(allocation["user_id"], dict(NOTHING))
            for name, amount in amounts_held(allocation).items():
                mine[name] += amount
        waiting: dict[str, int] = {}
        for job in book.ledger.jobs.values():
            if job["state"] == "queued":
                waiting[job["user_id"]] = waiting.get(job["user_id"], 0) + 1
        told = {row["user"]: row["used"] for row in book.ledger.quotas.rows()}
        for user in ("ann", "bob", "carl"):
            expected = {**used.get(user, NOTHING), "jobs_waiting": waiting.get(user, 0)}
            assert told.get(user, {**NOTHING, "jobs_waiting": 0}) == expected
        if step in ("grant", "lease") and outcome.error is None and "token" in (outcome.result or {}):
            key = f"L{arguments[1]}" if step == "lease" else f"{command.job_id}.{command.number}"
            allocation = book.ledger.allocations[key]
            user, mine = allocation["user_id"], amounts_held(allocation)
            others = {name: used[user][name] - mine[name] for name in HELD_LIMITS}
            assert over(quota_of(user, book.ledger.quotas.records), others, mine) == []
        elif isinstance(outcome.error, QuotaExceeded) and step == "grant":
            job = book.ledger.jobs[command.job_id]
            records = book.ledger.quotas.records
            held = book.ledger.allocations.values()
            assert shortage(job["user_id"], records, job["resources"], held) is not None
    replayed = Ledger()
    for number, command in enumerate(book.commands, 1):
        replayed.apply(number, json.loads(json.dumps(command.to_plain())))
    assert replayed.digest() == book.ledger.digest()


def test_room_on_the_host_is_looked_at_before_the_quota() -> None:
    book = Book()
    book.limit("ann", gpu_milli=1000)
    book.submit("a", "b")
    book.grant("a")
    with pytest.raises(Overcommit):
        book.grant("b", (0,))
