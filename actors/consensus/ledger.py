"""The replicated state machine: committed commands in, results and changes out.

``apply`` is the guard of the cluster: it refuses, the same way on every replica, any grant that gives out more
than there is, comes from an old term or names a past incarnation. It uses no clock and no dice; the same log gives
the same state, byte for byte (``snapshot``). A refused command changes nothing but the proposer's session.

Bounds: live jobs 1,000,000; hosts 10,000; allocations 100,000; settings 1,000; sessions 10,000 (least recently used
goes first); 1,000 ended jobs kept whole, 100,000 more by id and state; 1,000 attempts per job, of which the first
and the last 49 are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actorgrid.errors import (
    ActorGridError,
    DependencyFailed,
    LedgerRefused,
    QueueFull,
    StaleIncarnation,
    StaleToken,
    TaskCancelled,
    TaskFailed,
    TaskTimedOut,
    UnknownJob,
    WorkerLost,
    WrongState,
    error_from_dict,
)
from actorgrid.models import JobState

from .capacity import Capacity
from .commands import check
from .messages import Snapshot

FORMAT = 1
LIVE_JOBS_MAX = 1_000_000
HOSTS_MAX = 10_000
ALLOCATIONS_MAX = 100_000
SETTINGS_MAX = 1_000
SESSIONS_MAX = 10_000
ENDED_MAX = 1_000
REMEMBERED_MAX = 100_000
ATTEMPTS_MAX = 1_000
ATTEMPTS_KEPT = 50

QUEUED, PLACED, RUNNING = JobState.QUEUED.value, JobState.PLACED.value, JobState.RUNNING.value
SUCCEEDED, FAILED = JobState.SUCCEEDED.value, JobState.FAILED.value
CANCELLED, LOST = JobState.CANCELLED.value, JobState.LOST.value
FINAL = (SUCCEEDED, FAILED, CANCELLED, LOST)

_JOB_DEFAULTS: dict[str, Any] = {
    "name": "",
    "user_id": "local",
    "kind": "command",
    "command": [],
    "payload_digest": None,
    "stdin_digest": None,
    "python": "",
    "priority": 50,
    "policy": "priority",
    "env": {},
    "cwd": None,
    "max_execution_time_s": None,
    "pool": None,
    "depends_on": [],
    "max_isolation_s": 10.0,
    "retries_left": 0,
}
_RESOURCE_DEFAULTS: dict[str, Any] = {
    "gpus": 0.0,
    "gpu_count": 0,
    "gpu_milli": 0,
    "gpu_memory_mib": 0,
    "gpu_models": [],
    "gpu_affinity": [],
    "cpu_milli": 0,
    "memory_mib": 0,
}
_DEVICE_DEFAULTS: dict[str, Any] = {
    "vendor": "",
    "model": "",
    "source": "declared",
    "compute_capability": None,
    "pcie_bus_id": None,
    "numa_node": None,
}
_END_FACTS = ("exit_code", "signal", "max_rss_bytes", "cpu_s", "result_bytes")

Change = tuple[str, str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, for people: numbered from 1 over the ledger's whole life."""

    number: int
    index: int
    at: float
    type: str
    kind: str
    id: str
    state: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one entry did. ``index`` is where the command first stood, when this was a repetition.

    Exactly one of ``result`` and ``error`` is given. ``retired`` are ended jobs that left memory, as
    (number, record): their only home is now the history.
    """

    index: int
    result: dict[str, Any] | None
    error: ActorGridError | None
    changes: tuple[Change, ...] = ()
    events: tuple[Event, ...] = ()
    retired: tuple[tuple[int, dict[str, Any]], ...] = ()
    repeated: bool = False


class Ledger:
    """The state, and the only way to change it. Records handed out are live: read them, do not write them."""

    def __init__(self) -> None:
        self.index = 0
        self.term = 0
        self.epoch = 1
        self.jobs: dict[str, dict[str, Any]] = {}
        self.allocations: dict[str, dict[str, Any]] = {}
        self.hosts: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, Any] = {}
        self.counts: dict[str, int] = {state.value: 0 for state in JobState}
        self.capacity = Capacity()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._remembered: OrderedDict[str, str] = OrderedDict()
        self._sessions: OrderedDict[str, tuple[int, int, dict[str, Any]]] = OrderedDict()
        self._jobs_total = 0
        self._events_total = 0
        self._retired_total = 0
        # Derived, never stored: which jobs wait for which.
        self._unmet: dict[str, set[str]] = {}
        self._dependents: dict[str, dict[str, None]] = {}
        # Of the entry being applied.
        self._at = 0.0
        self._type = ""
        self._changes: list[Change] = []
        self._events: list[Event] = []
        self._retired: list[tuple[int, dict[str, Any]]] = []
        self._verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "new_term": self._new_term,
            "register_host": self._register_host,
            "submit_jobs": self._submit_jobs,
            "grant_attempt": self._grant_attempt,
            "start_attempt": self._start_attempt,
            "end_attempt": self._end_attempt,
            "cancel_job": self._cancel_job,
            "fail_job": self._fail_job,
            "grant_lease": self._grant_lease,
            "release_lease": self._release_lease,
            "set_setting": self._set_setting,
        }

    # -- entries

    def repeated(self, session: str, seq: int) -> Outcome | None:
        """The outcome already given to (session, seq), or WrongState for one that a later one has overtaken."""
        last = self._sessions.get(session) if session else None
        if last is None or seq > last[0]:
            return None
        if seq < last[0]:
            error = WrongState(
                "a later command of this session was already committed",
                asked=f"session {session} number {seq}",
                found=f"number {last[0]}",
                hint="keep one command per session under way at a time",
            )
            return Outcome(self.index, None, error, repeated=True)
        kept = last[2]
        if "error" in kept:
            return Outcome(last[1], None, error_from_dict(kept["error"]), repeated=True)
        return Outcome(last[1], kept["result"], None, repeated=True)

    def apply(self, index: int, command: Any, session: str = "", seq: int = 0) -> Outcome:
        """Carry out the entry at *index*, which must be the next. Never raises for what the command holds."""
        assert index == self.index + 1, f"entry {index} after {self.index}: the log has a gap"
        self.index = index
        earlier = self.repeated(session, seq)
        if earlier is not None:
            self._sessions.move_to_end(session)
            return earlier
        self._changes, self._events, self._retired = [], [], []
        result: dict[str, Any] | None = None
        error: ActorGridError | None = None
        try:
            check(command)
            self._at, self._type = float(command["at"]), command["type"]
            result = self._verbs[command["type"]](command)
        except ActorGridError as refusal:
            assert not self._changes, f"{self._type} changed the state before it was refused"
            error = refusal
        if session:
            kept = {"result": result} if error is None else {"error": error.to_dict()}
            self._sessions[session] = (seq, index, kept)
            self._sessions.move_to_end(session)
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
        self._retire()
        return Outcome(index, result, error, tuple(self._changes), tuple(self._events), tuple(self._retired))

    # -- snapshots

    def snapshot(self) -> bytes:
        """The whole state as canonical bytes: equal states give equal bytes."""
        state = {
            "format": FORMAT,
            "index": self.index,
            "term": self.term,
            "epoch": self.epoch,
            "jobs": self.jobs,
            "allocations": self.allocations,
            "hosts": self.hosts,
            "settings": self.settings,
            "ended": list(self._ended),
            "remembered": list(self._remembered.items()),
            "sessions": [[name, *last] for name, last in self._sessions.items()],
            "totals": [self._jobs_total, self._events_total, self._retired_total],
        }
        return json.dumps(state, sort_keys=True, separators=(",", ":")).encode("ascii")

    def digest(self) -> str:
        """SHA-256 of ``snapshot``, in hex."""
        return hashlib.sha256(self.snapshot()).hexdigest()

    @classmethod
    def restore(cls, data: bytes) -> Ledger:
        """The state that ``snapshot`` wrote. Raises LedgerRefused for a later format."""
        state = json.loads(data)
        if state["format"] > FORMAT:
            raise LedgerRefused(
                f"the snapshot is of format {state['format']}",
                found=f"this host knows formats up to {FORMAT}",
                hint="upgrade this host",
            )
        ledger = cls()
        ledger.index, ledger.term, ledger.epoch = state["index"], state["term"], state["epoch"]
        ledger.jobs = dict(sorted(state["jobs"].items(), key=lambda item: item[1]["ordinal"]))
        ledger.allocations = dict(sorted(state["allocations"].items(), key=lambda item: item[1]["token"]))
        ledger.hosts = state["hosts"]
        ledger.settings = state["settings"]
        ledger._ended = OrderedDict.fromkeys(state["ended"])
        ledger._remembered = OrderedDict((name, value) for name, value in state["remembered"])
        ledger._sessions = OrderedDict((name, (seq, index, kept)) for name, seq, index, kept in state["sessions"])
        ledger._jobs_total, ledger._events_total, ledger._retired_total = state["totals"]
        for allocation in ledger.allocations.values():
            ledger.capacity.take(allocation)
        for job in ledger.jobs.values():
            ledger.counts[job["state"]] += 1
            if job["state"] == QUEUED:
                ledger._await_dependencies(job)
        return ledger

    def live(self) -> Snapshot:
        """What a subscriber starts from."""
        return Snapshot(
            index=self.index,
            term=self.term,
            epoch=self.epoch,
            jobs={job_id: job for job_id, job in self.jobs.items() if job["state"] not in FINAL},
            allocations=dict(self.allocations),
            hosts=dict(self.hosts),
            settings=dict(self.settings),
        )

    # -- terms, hosts, settings

    def _new_term(self, command: dict[str, Any]) -> dict[str, Any]:
        epoch = command.get("epoch") or self.epoch
        if command["term"] <= self.term or epoch < self.epoch:
            raise StaleToken("the term is not new", asked=f"term {command['term']}", found=f"term {self.term}")
        self.term, self.epoch = command["term"], epoch
        self._changes.append(("term", "", (self.term, self.epoch)))
        return {"term": self.term, "epoch": self.epoch}

    def _register_host(self, command: dict[str, Any]) -> dict[str, Any]:
        given = command["host"]
        host_id = given["host_id"]
        known = self.hosts.get(host_id)
        if known is None and len(self.hosts) >= HOSTS_MAX:
            raise WrongState("the ledger holds its maximum of hosts", found=f"{HOSTS_MAX} hosts")
        if known is not None and given["incarnation"] < known["incarnation"]:
            raise StaleIncarnation(
                f"host {host_id} has started again since",
                asked=f"incarnation {given['incarnation']}",
                found=f"incarnation {known['incarnation']}",
            )
        defaults = {"hostname": host_id, "state": "up", "address": None, "port": None}
        devices = [{**_DEVICE_DEFAULTS, **device} for device in given["devices"]]
        self.hosts[host_id] = {**defaults, **given, "devices": devices, "registered_at": self._at}
        self._changed("host", host_id, self.hosts[host_id], self.hosts[host_id]["state"])
        return {"host_id": host_id, "incarnation": given["incarnation"]}

    def _set_setting(self, command: dict[str, Any]) -> dict[str, Any]:
        key, value = command["key"], command["value"]
        previous = self.settings.get(key)
        if value is None:
            self.settings.pop(key, None)
        elif key not in self.settings and len(self.settings) >= SETTINGS_MAX:
            raise WrongState("the ledger holds its maximum of settings", found=f"{SETTINGS_MAX} settings")
        else:
            self.settings[key] = value
        self._changed("setting", key, value, "unset" if value is None else "set")
        return {"key": key, "value": value, "previous": previous}

    # -- jobs

    def _submit_jobs(self, command: dict[str, Any]) -> dict[str, Any]:
        fresh: dict[str, dict[str, Any]] = {}
        answers = []
        for given in command["jobs"]:
            job_id = given["job_id"]
            duplicate = job_id in fresh or job_id in self.jobs or job_id in self._remembered
            answers.append({"job_id": job_id, "duplicate": duplicate})
            if not duplicate:
                fresh[job_id] = given
        live = len(self.jobs) - len(self._ended)
        if live + len(fresh) > LIVE_JOBS_MAX:
            raise QueueFull(
                "the ledger holds its maximum of jobs", asked=f"{len(fresh)} more", found=f"{live} of {LIVE_JOBS_MAX}"
            )
        for given in fresh.values():
            for name in given.get("depends_on", ()):
                if name not in fresh and name not in self.jobs and name not in self._remembered:
                    raise UnknownJob(
                        f"job {given['job_id']} depends on {name}, which is not known",
                        asked=name,
                        hint="submit it first, or in the same batch",
                    )
        _refuse_cycles(fresh)
        accepted = []
        for job_id, given in fresh.items():
            self._jobs_total += 1
            job = {
                **_JOB_DEFAULTS,
                "submitted_at": self._at,
                **given,
                "depends_on": list(dict.fromkeys(given.get("depends_on", ()))),
                "resources": {**_RESOURCE_DEFAULTS, **given["resources"]},
                "ordinal": self._jobs_total,
                "state": QUEUED,
                "cancel_requested": False,
                "submitted_index": self.index,
                "not_before": 0.0,
                "ended_at": None,
                "error": None,
                "attempts": [],
            }
            self.jobs[job_id] = job
            self.counts[QUEUED] += 1
            accepted.append(job)
            self._changed("job", job_id, job, QUEUED)
        for job in accepted:
            self._await_dependencies(job)
        for job in accepted:
            if job["state"] == QUEUED:
                broken = next((name for name in job["depends_on"] if self._broken(name)), None)
                if broken is not None:
                    self._finish(job, FAILED, _dependency_failed(job["job_id"], broken, self._state_of(broken)))
        return {"jobs": answers}

    def _state_of(self, job_id: str) -> str:
        job = self.jobs.get(job_id)
        # What was accepted as a dependency and is remembered no more has succeeded: a failure ends its dependents.
        return job["state"] if job is not None else self._remembered.get(job_id, SUCCEEDED)

    def _broken(self, job_id: str) -> bool:
        state = self._state_of(job_id)
        return state in FINAL and state != SUCCEEDED

    def _await_dependencies(self, job: dict[str, Any]) -> None:
        unmet = {name for name in job["depends_on"] if self._state_of(name) != SUCCEEDED}
        if unmet:
            self._unmet[job["job_id"]] = unmet
            for name in sorted(unmet):
                self._dependents.setdefault(name, {})[job["job_id"]] = None

    def _cancel_job(self, command: dict[str, Any]) -> dict[str, Any]:
        job_id = command["job_id"]
        job = self.jobs.get(job_id)
        if job is None:
            if job_id in self._remembered:
                return {"state": self._remembered[job_id], "cancel_requested": False}
            raise UnknownJob(f"there is no job {job_id}", asked=job_id)
        if job["state"] == QUEUED:
            error = TaskCancelled(f"cancelled by {command.get('by') or 'request'} before it started")
            self._finish(job, CANCELLED, error.to_dict())
        elif job["state"] not in FINAL and not job["cancel_requested"]:
            job["cancel_requested"] = True
            self._changed("job", job_id, job, job["state"])
        return {"state": job["state"], "cancel_requested": job["cancel_requested"]}

    def _fail_job(self, command: dict[str, Any]) -> dict[str, Any]:
        job_id = command["job_id"]
        job = self.jobs.get(job_id)
        if job is None:
            if job_id in self._remembered:
                return {"state": self._remembered[job_id]}
            raise UnknownJob(f"there is no job {job_id}", asked=job_id)
        if job["state"] in (PLACED, RUNNING):
            raise WrongState(
                f"job {job_id} is {job['state']}", asked="fail it before it starts", hint="cancel it instead"
            )
        if job["state"] == QUEUED:
            self._finish(job, FAILED, command["error"])
        return {"state": job["state"]}

    # -- grants

    def _grant_attempt(self, command: dict[str, Any]) -> dict[str, Any]:
        job_id, number = command["job_id"], command["number"]
        host = self._grantable(command)
        job = self.jobs.get(job_id)
        if job is None or job["state"] != QUEUED or job["cancel_requested"]:
            found = "no such live job" if job is None else f"{job['state']}"
            raise WrongState(f"job {job_id} is not waiting", asked=f"attempt {number}", found=found)
        if number != _last_number(job) + 1:
            raise WrongState(
                f"job {job_id} has had another number of attempts",
                asked=f"attempt {number}",
                found=f"the next is {_last_number(job) + 1}",
            )
        if self._unmet.get(job_id):
            raise WrongState(f"job {job_id} waits for others", found=f"not ended: {sorted(self._unmet[job_id])[:5]}")
        resources = job["resources"]
        devices = self.capacity.check(host, command["gpu_indexes"], resources)
        attempt_id = f"{job_id}.{number}"
        self._refuse_taken(attempt_id)
        owner = {"kind": "attempt", "job_id": job_id, "attempt": number}
        allocation = self._allocate(attempt_id, owner, command, devices, resources, job["pool"], {})
        attempt: dict[str, Any] = {
            "number": number,
            "attempt_id": attempt_id,
            "host": host["host_id"],
            "incarnation": host["incarnation"],
            "state": PLACED,
            "token": allocation["token"],
            "allocation_id": attempt_id,
            "gpu_indexes": allocation["gpu_indexes"],
            "gpu_uuids": allocation["gpu_uuids"],
            "placed_at": self._at,
            "started_at": None,
            "ended_at": None,
            "error": None,
            "placement_latency_us": command.get("placement_latency_us"),
            **dict.fromkeys(_END_FACTS),
        }
        job["attempts"].append(attempt)
        if len(job["attempts"]) > ATTEMPTS_KEPT:
            del job["attempts"][1]
        self._move(job, PLACED)
        return {"token": allocation["token"], "attempt_id": attempt_id, "gpu_uuids": allocation["gpu_uuids"]}

    def _grant_lease(self, command: dict[str, Any]) -> dict[str, Any]:
        host = self._grantable(command)
        self._refuse_taken(command["lease_id"])
        resources = {**_RESOURCE_DEFAULTS, **command["resources"]}
        devices = self.capacity.check(host, command["gpu_indexes"], resources)
        owner = {"kind": "session", "session_id": command["session_id"], "lease_id": command["lease_id"]}
        allocation = self._allocate(
            command["lease_id"], owner, command, devices, resources, command.get("pool"), command.get("env", {})
        )
        self._event("allocation", command["lease_id"], "granted")
        return {"token": allocation["token"], "gpu_uuids": allocation["gpu_uuids"]}

    def _grantable(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["term"] != self.term:
            raise StaleToken(
                "the grant was decided under another leadership",
                asked=f"term {command['term']}",
                found=f"term {self.term}",
                hint="decide again from the state of this term",
            )
        host = self.hosts.get(command["host"])
        if host is None:
            raise StaleIncarnation(f"no host {command['host']} is registered", asked=command["host"])
        if command["incarnation"] != host["incarnation"]:
            raise StaleIncarnation(
                f"host {command['host']} has started again since",
                asked=f"incarnation {command['incarnation']}",
                found=f"incarnation {host['incarnation']}",
            )
        if host["state"] != "up":
            raise WrongState(f"host {command['host']} is {host['state']}", asked="a grant there")
        if len(self.allocations) >= ALLOCATIONS_MAX:
            raise WrongState("the ledger holds its maximum of allocations", found=f"{ALLOCATIONS_MAX}")
        return host

    def _refuse_taken(self, allocation_id: str) -> None:
        if allocation_id in self.allocations:
            raise WrongState(f"allocation {allocation_id} is there already", asked=allocation_id)

    def _allocate(
        self,
        allocation_id: str,
        owner: dict[str, Any],
        command: dict[str, Any],
        devices: list[dict[str, Any]],
        resources: dict[str, Any],
        pool: str | None,
        env: dict[str, str],
    ) -> dict[str, Any]:
        touches = bool(devices)
        allocation = {
            "allocation_id": allocation_id,
            "owner": owner,
            "host": command["host"],
            "incarnation": command["incarnation"],
            "gpu_indexes": list(command["gpu_indexes"]),
            "gpu_uuids": [device["uuid"] for device in devices],
            "gpu_milli": resources["gpu_milli"] if touches else 0,
            "gpu_memory_mib": resources["gpu_memory_mib"] if touches else 0,
            "cpu_milli": resources["cpu_milli"],
            "memory_mib": resources["memory_mib"],
            "token": [self.epoch, self.index],
            "granted_at": self._at,
            "pool": pool,
            "env": env,
        }
        self.allocations[allocation_id] = allocation
        self.capacity.take(allocation)
        self._changes.append(("allocation", allocation_id, allocation))
        return allocation

    def _free(self, allocation_id: str) -> bool:
        allocation = self.allocations.pop(allocation_id, None)
        if allocation is None:
            return False
        self.capacity.give(allocation)
        self._changes.append(("allocation", allocation_id, None))
        return True

    def _release_lease(self, command: dict[str, Any]) -> dict[str, Any]:
        lease_id = command["lease_id"]
        allocation = self.allocations.get(lease_id)
        if allocation is None:
            return {"released": False}
        if allocation["owner"]["kind"] != "session":
            raise WrongState(f"{lease_id} belongs to a job's attempt", hint="end or cancel the job")
        self._free(lease_id)
        self._event("allocation", lease_id, "released")
        return {"released": True}

    # -- attempts

    def _start_attempt(self, command: dict[str, Any]) -> dict[str, Any]:
        job, attempt = self._attempt(command)
        if job is None or attempt is None or attempt["state"] in FINAL:
            raise WrongState(f"attempt {command['attempt_id']} is over", asked="start it")
        if attempt["state"] == RUNNING:
            return {"already": True, "cancel_requested": job["cancel_requested"]}
        attempt["state"], attempt["started_at"] = RUNNING, self._at
        self._move(job, RUNNING)
        return {"already": False, "cancel_requested": job["cancel_requested"]}

    def _end_attempt(self, command: dict[str, Any]) -> dict[str, Any]:
        job, attempt = self._attempt(command)
        if job is None or attempt is None or attempt["state"] in FINAL:
            return {"already": True, "job_state": self._state_of(command["attempt_id"].rpartition(".")[0])}
        outcome, error = command["outcome"], command.get("error")
        attempt["state"] = FAILED if outcome == "timed_out" else outcome
        attempt["ended_at"] = self._at
        attempt.update({name: command.get(name) for name in _END_FACTS})
        if outcome != SUCCEEDED:
            error = error or _default_error(outcome, attempt)
            attempt["error"] = error
        self._free(attempt["allocation_id"])
        if outcome == SUCCEEDED:
            self._finish(job, SUCCEEDED, None)
        elif outcome == CANCELLED or job["cancel_requested"]:
            self._finish(job, CANCELLED, error)
        elif attempt["number"] >= ATTEMPTS_MAX:
            self._finish(job, LOST, error)
        elif not command.get("charge", True) or job["retries_left"] > 0:
            if command.get("charge", True):
                job["retries_left"] -= 1
            job["not_before"] = command.get("retry_at") or self._at
            self._move(job, QUEUED)
        else:
            self._finish(job, LOST if outcome == LOST else FAILED, error)
        return {"already": False, "job_state": job["state"]}

    def _attempt(self, command: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """The job and attempt a command is about; no attempt when it ended too long ago to be kept."""
        job_id, _, number = command["attempt_id"].rpartition(".")
        job = self.jobs.get(job_id)
        if job is None:
            if job_id in self._remembered:
                return None, None
            raise WrongState(f"there is no attempt {command['attempt_id']}", asked=command["attempt_id"])
        attempt = next((a for a in reversed(job["attempts"]) if str(a["number"]) == number), None)
        if attempt is None:
            if number.isdecimal() and 1 <= int(number) < _last_number(job):
                return job, None
            raise WrongState(f"there is no attempt {command['attempt_id']}", asked=command["attempt_id"])
        if command["token"] != attempt["token"]:
            raise StaleToken(
                f"the token is not that of attempt {command['attempt_id']}",
                asked=f"{command['token']}",
                found=f"{attempt['token']}",
            )
        return job, attempt

    # -- transitions

    def _move(self, job: dict[str, Any], state: str) -> None:
        self.counts[job["state"]] -= 1
        self.counts[state] += 1
        job["state"] = state
        self._changed("job", job["job_id"], job, state)

    def _finish(self, job: dict[str, Any], state: str, error: dict[str, Any] | None) -> None:
        """End a job, and with it, unless it succeeded, all that waits for it, directly or not."""
        ending = [(job, state, error)]
        while ending:
            job, state, error = ending.pop(0)
            job_id = job["job_id"]
            job["ended_at"], job["error"] = self._at, error
            for name in self._unmet.pop(job_id, ()):
                waiting = self._dependents.get(name, {})
                waiting.pop(job_id, None)
                if not waiting:
                    self._dependents.pop(name, None)
            self._move(job, state)
            self._ended[job_id] = None
            for dependent_id in self._dependents.pop(job_id, {}):
                if state == SUCCEEDED:
                    self._unmet[dependent_id].discard(job_id)
                    if not self._unmet[dependent_id]:
                        del self._unmet[dependent_id]
                else:
                    dependent = self.jobs[dependent_id]
                    for name in self._unmet.pop(dependent_id):
                        if name != job_id:
                            waiting = self._dependents.get(name, {})
                            waiting.pop(dependent_id, None)
                            if not waiting:
                                self._dependents.pop(name, None)
                    ending.append((dependent, FAILED, _dependency_failed(dependent_id, job_id, state)))

    def _retire(self) -> None:
        while len(self._ended) > ENDED_MAX:
            job_id, _ = self._ended.popitem(last=False)
            job = self.jobs.pop(job_id)
            self.counts[job["state"]] -= 1
            self._remembered[job_id] = job["state"]
            self._retired_total += 1
            self._retired.append((self._retired_total, job))
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def _changed(self, kind: str, identity: str, record: Any, state: str) -> None:
        self._changes.append((kind, identity, record))
        self._event(kind, identity, state)

    def _event(self, kind: str, identity: str, state: str) -> None:
        self._events_total += 1
        self._events.append(Event(self._events_total, self.index, self._at, self._type, kind, identity, state))


def _last_number(job: dict[str, Any]) -> int:
    return job["attempts"][-1]["number"] if job["attempts"] else 0


def _dependency_failed(job_id: str, dependency: str, state: str) -> dict[str, Any]:
    return DependencyFailed(
        f"job {dependency}, which job {job_id} depends on, {state}", found=state, hint=f"actorgrid why {dependency}"
    ).to_dict()


def _default_error(outcome: str, attempt: dict[str, Any]) -> dict[str, Any]:
    kinds: dict[str, type[ActorGridError]] = {
        "failed": TaskFailed,
        "cancelled": TaskCancelled,
        "timed_out": TaskTimedOut,
        "lost": WorkerLost,
    }
    return kinds[outcome](f"attempt {attempt['attempt_id']} {outcome.replace('_', ' ')}").to_dict()


def _refuse_cycles(jobs: dict[str, dict[str, Any]]) -> None:
    """Jobs of one batch may depend on each other in any order, but not in a circle."""
    left = {job_id: [name for name in job.get("depends_on", ()) if name in jobs] for job_id, job in jobs.items()}
    users: dict[str, list[str]] = {}
    open_counts = {}
    for job_id, names in left.items():
        unique = set(names)
        open_counts[job_id] = len(unique)
        for name in unique:
            users.setdefault(name, []).append(job_id)
    ready = [job_id for job_id, count in open_counts.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for user in users.get(ready.pop(), ()):
            open_counts[user] -= 1
            if open_counts[user] == 0:
                ready.append(user)
    if done != len(jobs):
        circle = sorted(job_id for job_id, count in open_counts.items() if count)
        raise WrongState("the jobs depend on each other in a circle", found=f"among {circle[:5]}")
