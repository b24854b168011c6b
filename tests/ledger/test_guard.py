"""Whatever is proposed, in whatever order: nothing is given out twice, and the log alone decides the state."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actorgrid.actors.ledger.commands import (
    CancelJob,
    EndAttempt,
    FailJob,
    GrantAttempt,
    GrantGang,
    GrantLease,
    NewTerm,
    PreemptAttempt,
    RegisterHost,
    ReleaseLease,
    StartAttempt,
    SubmitJobs,
)
from actorgrid.actors.ledger.entry_codec import decode_entry, encode_entry
from actorgrid.actors.ledger.snapshot import decode
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.jobs import FINAL
from tests.consensus.rig import AT, host_record, job_record

JOBS = st.sampled_from([f"j{number}" for number in range(12)])
HOSTS = st.sampled_from(["h1", "h2"])
LEASES = st.sampled_from(["L1", "L2", "L3", "L4"])
INDEXES = st.lists(st.integers(0, 2), max_size=2, unique=True)
SMALL = st.integers(0, 3)
PORTS = (29_500, 29_502)


@st.composite
def amounts(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(0, 2))
    return {
        "gpu_count": count,
        "gpu_milli": draw(st.sampled_from([1, 250, 500, 600, 1000])) if count else 0,
        "gpu_memory_mib": draw(st.sampled_from([0, 1_000, 40_000, 50_000, 80_000])) if count else 0,
        "cpu_milli": draw(st.sampled_from([0, 1_000, 3_000, 5_000])),
        "memory_mib": draw(st.sampled_from([0, 10_000, 20_000])),
    }


class Guard(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.log: list[bytes] = []
        self.restored: Ledger | None = None
        self.seq = 0
        self.tokens: dict[str, list[int]] = {}
        self.freed: set[str] = (
            set()
        )  # ended members whose host was lost after: their room is free before the gang is over
        self.do(NewTerm(1, at=AT))
        for host_id in ("h1", "h2"):
            self.do(RegisterHost(host_record(host_id), at=AT))

    def do(self, command: dict[str, Any], session: str = "s", seq: int | None = None) -> dict[str, Any] | None:
        if seq is None:
            self.seq += 1
            seq = self.seq
        payload = encode_entry(command, session, seq)
        self.log.append(payload)
        name, number, decoded = decode_entry(payload)
        outcome = self.ledger.apply(self.ledger.index + 1, decoded, name, number)
        if self.restored is not None:
            again = self.restored.apply(self.restored.index + 1, decode_entry(payload)[2], name, number)
            assert repr(again.error) == repr(outcome.error)
            assert (again.result, again.changes, again.events) == (outcome.result, outcome.changes, outcome.events)
        return outcome.result

    @rule(job_id=JOBS, resources=amounts(), size=st.integers(2, 3), spread=st.booleans(), retries=SMALL)
    def submit_gang(self, job_id: str, resources: dict[str, Any], size: int, spread: bool, retries: int) -> None:
        gang = {**resources, "gang": size, "spread": spread}
        self.do(SubmitJobs([job_record(job_id, resources=gang, retries_left=retries)], at=AT))

    @rule(data=st.data(), right=st.booleans(), number=SMALL, incarnation=SMALL, hosts=st.lists(HOSTS, max_size=4))
    def grant_gang(self, data: st.DataObject, right: bool, number: int, incarnation: int, hosts: list[str]) -> None:
        gangs = sorted(id for id, job in self.ledger.jobs.items() if job["resources"].get("gang"))
        job_id = data.draw(st.sampled_from(gangs)) if gangs else "j0"
        job = self.ledger.jobs.get(job_id)
        before = self.ledger.allocations.keys() - ()
        gpus = [[0]] * len(hosts)
        incarnations = [incarnation] * len(hosts)
        if right and job is not None:
            number = job["attempts"][-1]["number"] + 1 if job["attempts"] else 1
            hosts = [data.draw(HOSTS) for _ in range(job["resources"].get("gang", 1))]
            count = job["resources"]["gpu_count"]
            gpus = [data.draw(st.permutations([0, 1]))[:count] for _ in hosts]
            incarnations = [self.ledger.hosts[host]["incarnation"] for host in hosts]
        members = [
            {"host": host, "incarnation": each, "gpu_indexes": list(indexes)}
            for host, each, indexes in zip(hosts, incarnations, gpus, strict=True)
        ]
        given_out = self.do(GrantGang(job_id, number, members, PORTS, self.ledger.term, at=AT))
        fresh = self.ledger.allocations.keys() - before
        if given_out is None or "token" not in given_out:
            assert not fresh, "a gang that was refused holds something"
            return
        assert fresh == {f"{job_id}.{number}-{rank}" for rank in range(len(members))}
        self.tokens |= dict.fromkeys(fresh, given_out["token"])

    @rule(job_id=JOBS, resources=amounts(), retries=SMALL, depends=st.lists(JOBS, max_size=2), more=JOBS)
    def submit(self, job_id: str, resources: dict[str, Any], retries: int, depends: list[str], more: str) -> None:
        jobs = [job_record(job_id, resources=resources, retries_left=retries, depends_on=depends)]
        jobs.append(job_record(more, resources=resources))
        self.do(SubmitJobs(jobs, at=AT))

    @rule(job_id=JOBS, right=st.booleans(), number=SMALL, host=HOSTS, incarnation=SMALL, gpus=INDEXES, term=SMALL)
    def grant(
        self, job_id: str, right: bool, number: int, host: str, incarnation: int, gpus: list[int], term: int
    ) -> None:
        job = self.ledger.jobs.get(job_id)
        if right and job is not None:
            number = job["attempts"][-1]["number"] + 1 if job["attempts"] else 1
            incarnation, term = self.ledger.hosts[host]["incarnation"], self.ledger.term
            gpus = list(range(job["resources"]["gpu_count"]))
        given_out = self.do(GrantAttempt(job_id, number, host, incarnation, gpus, term, at=AT))
        if given_out is not None and "token" in given_out:
            assert all(given_out["token"] > token for token in self.tokens.values())
            self.tokens[f"{job_id}.{number}"] = given_out["token"]

    @rule(lease_id=LEASES, host=HOSTS, gpus=INDEXES, resources=amounts())
    def lease(self, lease_id: str, host: str, gpus: list[int], resources: dict[str, Any]) -> None:
        incarnation, term = self.ledger.hosts[host]["incarnation"], self.ledger.term
        self.do(GrantLease(lease_id, "S", host, incarnation, gpus, resources, pool="general", env={}, term=term, at=AT))

    @rule(lease_id=LEASES)
    def release(self, lease_id: str) -> None:
        self.do(ReleaseLease(lease_id, at=AT))

    @precondition(lambda self: self.tokens)
    @rule(
        data=st.data(),
        stale=st.booleans(),
        outcome=st.sampled_from(["succeeded", "failed", "cancelled", "timed_out", "lost", "preempted"]),
        charge=st.booleans(),
    )
    def end(self, data: st.DataObject, stale: bool, outcome: str, charge: bool) -> None:
        attempt_id = data.draw(st.sampled_from(sorted(self.tokens)))
        token = [1, 1] if stale else self.tokens[attempt_id]
        answer = self.do(EndAttempt(attempt_id, token, outcome, at=AT, charge=charge))
        if outcome == "lost" and answer is not None and answer["already"]:
            self.freed.add(attempt_id)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        attempt_id = data.draw(st.sampled_from(sorted(self.tokens)))
        self.do(StartAttempt(attempt_id, self.tokens[attempt_id], at=AT))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), stale=st.booleans(), old_term=st.booleans(), for_job=JOBS)
    def preempt(self, data: st.DataObject, stale: bool, old_term: bool, for_job: str) -> None:
        attempt_id = data.draw(st.sampled_from(sorted(self.tokens)))
        token = [1, 1] if stale else self.tokens[attempt_id]
        self.do(PreemptAttempt(attempt_id, token, 1.0, for_job, self.ledger.term - old_term, at=AT))

    @rule(job_id=JOBS)
    def cancel(self, job_id: str) -> None:
        self.do(CancelJob(job_id, "me", at=AT))

    @rule(job_id=JOBS)
    def fail(self, job_id: str) -> None:
        self.do(FailJob(job_id, {"code": "TooManyGpus"}, at=AT))

    @rule(host=HOSTS, incarnation=SMALL)
    def restart_host(self, host: str, incarnation: int) -> None:
        self.do(RegisterHost(host_record(host, incarnation), at=AT))

    @rule()
    def change_term(self) -> None:
        self.do(NewTerm(self.ledger.term + 1, at=AT))

    @rule()
    def repeat_the_last(self) -> None:
        session, seq, command = decode_entry(self.log[-1])
        before, sections = decode(self.ledger.snapshot())
        self.do(command, session, seq)
        assert decode(self.ledger.snapshot()) == ({**before, "index": self.ledger.index}, sections)

    @rule()
    def restore_a_snapshot(self) -> None:
        self.restored = Ledger.restore(self.ledger.snapshot())

    @invariant()
    def nothing_is_given_out_twice(self) -> None:
        used: dict[tuple[str, Any], list[int]] = {}
        for allocation in self.ledger.allocations.values():
            whole = used.setdefault((allocation["host"], "host"), [0, 0])
            whole[0] += allocation["cpu_milli"]
            whole[1] += allocation["memory_mib"]
            for index in allocation["gpu_indexes"]:
                device = used.setdefault((allocation["host"], index), [0, 0])
                device[0] += allocation["gpu_milli"]
                device[1] += allocation["gpu_memory_mib"]
        for (host_id, what), (first, second) in used.items():
            host = self.ledger.hosts[host_id]
            if what == "host":
                assert first <= host["cpu_milli"]
                assert second <= host["memory_mib"]
                assert (first, second) == (
                    self.ledger.capacity.used_cpu_milli(host_id),
                    self.ledger.capacity.used_memory_mib(host_id),
                )
            else:
                assert first <= 1000
                assert second <= 80_000
                assert (first, second) == self.ledger.capacity.used_device(host_id, what)

    @invariant()
    def every_allocation_has_one_living_owner(self) -> None:
        living = {
            member["allocation_id"]
            for job in self.ledger.jobs.values()
            if job["state"] in ("placed", "running")
            for member in job["attempts"][-1].get("members", job["attempts"][-1:])
            if member["state"] != "lost" and member["allocation_id"] not in self.freed
        }
        held = {key for key, value in self.ledger.allocations.items() if value["owner"]["kind"] == "attempt"}
        assert living == held

    @invariant()
    def a_gang_is_over_when_all_its_members_are(self) -> None:
        meeting = set()
        for job in self.ledger.jobs.values():
            for attempt in job["attempts"]:
                if "members" not in attempt:
                    continue
                open_ones = [member for member in attempt["members"] if member["ended_at"] is None]
                assert (attempt["ended_at"] is None) == bool(open_ones)
                assert (attempt["ending"] is None) == all(
                    member["state"] in ("placed", "running", "succeeded") for member in attempt["members"]
                )
                first = attempt["members"][0]
                if open_ones and first["state"] != "lost" and first["allocation_id"] not in self.freed:
                    meeting.add((attempt["host"], attempt["rendezvous"]["port"]))
                    hosts = {member["host"] for member in attempt["members"]}
                    assert len(hosts) == len(attempt["members"]) or not job["resources"]["spread"]
        gangs = {id for id, held in self.ledger.allocations.items() if held["owner"].get("rank") == 0}
        assert len(meeting) == len(gangs), "two gangs meet at one port of a host"

    @invariant()
    def nothing_waits_for_what_failed(self) -> None:
        jobs = self.ledger.jobs
        for job in jobs.values():
            if job["state"] == "queued":
                assert not any(jobs[name]["state"] in FINAL[1:] for name in job["depends_on"])
            elif job["state"] in ("placed", "running", "succeeded"):
                assert all(jobs[name]["state"] == "succeeded" for name in job["depends_on"])
        counted = {state: 0 for state in self.ledger.counts}
        for job in jobs.values():
            counted[job["state"]] += 1
        assert counted == self.ledger.counts

    def teardown(self) -> None:
        again = Ledger()
        for number, payload in enumerate(self.log, 1):
            session, seq, command = decode_entry(payload)
            again.apply(number, command, session, seq)
        assert again.digest() == self.ledger.digest()
        if self.restored is not None:
            assert self.restored.digest() == self.ledger.digest()


TestGuard = Guard.TestCase
TestGuard.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TYPES = [
    "new_term",
    "register_host",
    "submit_jobs",
    "grant_attempt",
    "grant_gang",
    "start_attempt",
    "end_attempt",
    "cancel_job",
    "fail_job",
    "grant_lease",
    "release_lease",
    "set_setting",
]
NAMES = [
    *("term", "epoch", "host", "jobs", "job_id", "number", "incarnation", "gpu_indexes", "attempt_id", "token"),
    *("outcome", "charge", "error", "retry_at", "by", "lease_id", "session_id", "resources", "pool", "env"),
    *("key", "value", "members", "ports"),
]
PLAUSIBLE = st.sampled_from(
    [
        1,
        0,
        "h1",
        "j1",
        "j1.1",
        [0],
        [1, 2],
        "failed",
        True,
        host_record("h9"),
        [job_record("j1")],
        {"cpu_milli": 1},
        {},
        [{"host": "h9", "incarnation": 1, "gpu_indexes": []}] * 2,
    ]
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(TYPES), st.dictionaries(st.sampled_from(NAMES), PLAUSIBLE | PLAIN, max_size=10)),
        max_size=10,
    )
)
def test_no_command_can_crash_the_ledger(commands: list[tuple[str, dict[str, Any]]]) -> None:
    ledger = Ledger()
    for kind, fields in commands:
        outcome = ledger.apply(ledger.index + 1, {"type": kind, "v": 1, "at": AT, **fields})
        assert (outcome.result is None) != (outcome.error is None)
    assert Ledger.restore(ledger.snapshot()).index == ledger.index
