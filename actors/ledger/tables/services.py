"""Services: how many replicas of a server there are to be, what they run, and their jobs. Part of the state.

How many are wanted, which answer, and what comes of an exchange of one revision for another nobody can tell here: it
takes a clock and what gateways and hosts see. Whoever leads decides it, always about the record as it is (``changed``),
and this carries it out in one entry with the jobs that are made: a replica is made once, whoever leads. What ends is
noted in the entry that ends its job, so that no address outlives the attempt that answers at it; its token says which.

Bounds: 500 services, whose revisions take 8 MiB packed; of each 256 replicas besides those that leave, the last 6
revisions and the last 10 replicas that are no more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from actorgrid.errors import ActorGridError, QueueFull, StaleToken, UnknownService, WrongState
from actorgrid.labels import LABELS_MAX

from ..answers import AdvanceServiceAnswer, RemoveServiceAnswer, ReplicaAnswer, ServiceAnswer
from ..attempt_ids import rank_of
from ..commands import (
    AdvanceService,
    PutService,
    RemoveService,
    ReportReplica,
    RollBackService,
    ScaleService,
)
from ..entry import EntryContext, applies
from ..field_checks import Plain
from ..record_types import AllocationRecord, JobRecord
from ..records import new_job
from ..service_checks import REASON_CHARS_MAX, REPLICAS_MAX, SERVICE_BYTES_MAX
from ..service_records import (
    EndedReplicaRecord,
    ReplicaRecord,
    RolloutRecord,
    ServiceRecord,
    ServiceRevisionRecord,
    goal_of,
    revision_in,
)
from ..snapshot import pack
from .jobs import CANCELLED, PLACED, QUEUED, Jobs
from .quotas import Quotas

SERVICES_MAX = 500
SERVICES_BYTES_MAX = 8 * 2**20
REVISIONS_KEPT, ENDED_KEPT = 6, 10
STABLE_S = 60.0
"""A replica that served for so long did not fail to start: the count of failures begins anew."""
LABEL, REVISION_LABEL = "service", "revision"
"""What each replica's job is labelled with, so that all of them are found, long after they have ended."""
STARTING, READY, UNHEALTHY, DRAINING = "starting", "ready", "unhealthy", "draining"
GOOD, FAILED, WITHDRAWN = "good", "failed", "withdrawn"
_NAMES_TRIED = 100
_REMOVED = "its service is removed"


class DesiredServices:
    """The services by name. They make and end *jobs*, within *quotas*; *allocations* are the grants there are.

    *room* refuses so many more live jobs; *index* gives that of the entry being applied; *changed* is told of each
    service that is another, with a word for people.
    """

    def __init__(
        self,
        jobs: Jobs,
        quotas: Quotas,
        allocations: Mapping[str, AllocationRecord],
        room: Callable[[int], None],
        index: Callable[[], int],
        changed: Callable[[str, ServiceRecord | None, str], None],
    ) -> None:
        self._jobs = jobs
        self._quotas = quotas
        self._allocations = allocations
        self._room = room
        self._index = index
        self._changed = changed
        self.records: dict[str, ServiceRecord] = {}
        self._of_job: dict[str, str] = {}
        self._bytes: dict[str, int] = {}
        jobs.when_moved.append(self._job_moved)
        jobs.when_ended.append(self._job_ended)

    def load(self, records: Iterable[ServiceRecord]) -> None:
        """Load what a snapshot held; for a new, empty object."""
        for record in records:
            self._keep(record)

    # -- verbs of people

    @applies(PutService)
    def put(self, command: PutService, entry: EntryContext) -> ServiceAnswer:
        """Write a service. Raises WrongState for a name that is taken, QueueFull at the bounds."""
        given = command.service
        name, digest = given["name"], revision_of(given)
        record = self.records.get(name)
        if record is not None:
            self._standing(name)
        self._check_models(given)
        if record is None:
            made = self._made(given, digest, entry)
            self._check_bytes(made)
            self._put(made, "made")
            return {"name": name, "revision": digest, "unchanged": False, "rolling_out": False}
        there = digest == record["revision"] or (record["rollout"] is not None and digest == record["rollout"]["to"])
        if not there and not command.replace:
            raise WrongState(
                f"there is a service {name} already, and it runs something else",
                asked=f"revision {digest}",
                found=f"revision {record['revision']}, made by {record['made_by'] or 'somebody'}",
                hint=f"actorgrid rollout {name} exchanges its replicas; or take another name",
            )
        scale = given["scale"]
        wanted = cast("ServiceRecord", {**record, "scale": scale, "target": _within(record["target"], scale)})
        if "routing" in given:
            wanted = cast("ServiceRecord", {**wanted, "routing": given["routing"]})
        if not there:
            wanted = self._with_revision(wanted, given, digest, entry)
            part = (command.canary, command.canary_s)
            wanted = _begun(wanted, digest, entry.at, given["made_by"], part)
            self._check_bytes(wanted)
        elif digest == record["revision"] and record["rollout"] is not None:
            wanted = _withdrawn(wanted, f"{given['made_by'] or 'somebody'} wrote what served before")
        unchanged = wanted == record
        if not unchanged:
            self._put(wanted, "changed" if there else "rollout")
        return {"name": name, "revision": digest, "unchanged": unchanged, "rolling_out": wanted["rollout"] is not None}

    @applies(ScaleService)
    def scale(self, command: ScaleService, _entry: EntryContext) -> ServiceAnswer:
        """Say how many replicas there are to be. Raises UnknownService."""
        record = self._standing(command.name)
        scale = {**record["scale"], "min": command.least, "max": command.most}
        wanted = cast("ServiceRecord", {**record, "scale": scale, "target": _within(record["target"], scale)})
        if wanted != record:
            self._put(wanted, "scaled")
        return _answer(wanted, unchanged=wanted == record)

    @applies(RollBackService)
    def roll_back(self, command: RollBackService, entry: EntryContext) -> ServiceAnswer:
        """Go back. Raises UnknownService; WrongState where nothing served before."""
        record = self._standing(command.name)
        if record["rollout"] is not None:
            wanted = _withdrawn(record, f"taken back by {command.by or 'somebody'}")
            self._put(wanted, "rolled_back")
            return _answer(wanted)
        before = [each for each in record["revisions"] if each["outcome"] == GOOD]
        earlier = [each["revision"] for each in before if each["revision"] != record["revision"]]
        if not earlier:
            raise WrongState(
                f"nothing that served before revision {record['revision']} of service {command.name} is known",
                asked="to go back",
                found=f"{len(record['revisions'])} revisions",
                hint=f"actorgrid services {command.name} shows them; actorgrid rollout {command.name} -- CMD",
            )
        # The latest that served: revisions are moved behind the others when they come to serve.
        wanted = _begun(record, earlier[-1], entry.at, command.by, back=True)
        self._put(wanted, "rolled_back")
        return _answer(wanted)

    @applies(RemoveService)
    def remove(self, command: RemoveService, entry: EntryContext) -> RemoveServiceAnswer:
        """Take a service away, and end its replicas. Raises UnknownService.

        Replicas that answer leave as those do that are exchanged; the record goes with the last of them.
        """
        record = self._known(command.name)
        ending = [each["job_id"] for each in record["replicas"]]
        at_once = command.at_once or "removed_by" in record
        going = [] if at_once else [each["job_id"] for each in record["replicas"] if _may_have_requests(each)]
        if not going:
            self._forget(command.name)
        else:
            replicas = [
                cast("ReplicaRecord", {**each, "state": DRAINING, "since": entry.at, "reason": _REMOVED})
                if each["job_id"] in going and each["state"] != DRAINING
                else each
                for each in record["replicas"]
            ]
            wanted = {**record, "target": 0, "rollout": None, "replicas": replicas, "problem": ""}
            self._put(cast("ServiceRecord", {**wanted, "removed_by": command.by or "somebody"}), "removed")
        for job_id in ending:
            if job_id not in going:
                self._jobs.end(job_id, entry.at, _REMOVED)
        return {"name": command.name, "ending": ending}

    def _forget(self, name: str) -> None:
        record = self.records.pop(name)
        del self._bytes[name]
        for replica in record["replicas"]:
            self._of_job.pop(replica["job_id"], None)
        self._changed(name, None, "gone")

    # -- verbs of hosts

    @applies(AdvanceService)
    def advance(self, command: AdvanceService, entry: EntryContext) -> AdvanceServiceAnswer:
        """Lead a service on. Raises UnknownService; WrongState for what was decided about an earlier record.

        A replica that there is no room for in the ledger or the user's quota is not made, and the record says why.
        """
        record = self._known(command.name)
        if record["changed"] != command.seen:
            raise WrongState(
                f"service {command.name} is not what that was decided about",
                asked=f"that of entry {command.seen}",
                found=f"that of entry {record['changed']}",
            )
        if command.outcome or command.widened:
            record = _led_on(record, command)
        target = 0 if "removed_by" in record else _within(command.target, record["scale"])
        record = {**record, "target": target, "problem": command.problem}
        self._put(record, command.outcome)
        record = self.records[command.name]
        may = {record["revision"], *([record["rollout"]["to"]] if record["rollout"] is not None else ())}
        started = []
        for revision in command.start:
            staying = sum(each["state"] != DRAINING for each in self.records[command.name]["replicas"])
            if revision not in may or staying >= REPLICAS_MAX or "removed_by" in record:
                continue
            try:
                started.append(self._start(command.name, revision, entry.at))
            except ActorGridError as error:
                self._put({**self.records[command.name], "problem": error.message[:REASON_CHARS_MAX]}, "")
                break
        for job_id in command.drain:
            why = command.reason or "there is one more than is wanted"
            self._change(self.records[command.name], job_id, {"state": DRAINING, "since": entry.at, "reason": why})
        for job_id in command.end:
            if self._of_job.get(job_id) == command.name:
                self._jobs.end(job_id, entry.at, "its service")
        return {"name": command.name, "started": started}

    @applies(ReportReplica)
    def report(self, command: ReportReplica, entry: EntryContext) -> ReplicaAnswer:
        """Note the state of a replica. Raises StaleToken for an attempt that is over, WrongState for what is none."""
        allocation = self._allocations.get(command.attempt_id)
        if allocation is None or allocation["token"] != command.token:
            raise StaleToken(
                f"attempt {command.attempt_id} is over, so what it answers does not count",
                asked=f"that it is {command.state}",
            )
        job_id = allocation["owner"].get("job_id", "")
        name = self._of_job.get(job_id)
        if name is None or rank_of(command.attempt_id):
            raise WrongState(f"{command.attempt_id} is no replica of a service", asked=f"that it is {command.state}")
        record = self.records[name]
        replica = next(each for each in record["replicas"] if each["job_id"] == job_id)
        if replica["state"] == DRAINING:
            return {"state": DRAINING}
        told: Plain = {"state": command.state, "reason": command.reason, "model": command.model}
        told |= {"host": allocation["host"], "attempt_id": command.attempt_id, "token": list(command.token)}
        told |= {"port": command.port}
        if replica["state"] != command.state:
            told["since"] = entry.at
        if command.state == READY and replica["ready_at"] is None:
            told["ready_at"] = entry.at
        if command.state == READY and replica["revision"] == record["revision"]:
            # Of one that is exchanged for another it is said at the end of the exchange; of the first one, now: said by
            # who leads it came too late where another was wanted at once, and nobody could go back to what served.
            record = _serves(record)
        self._change(record, job_id, told, f"replica_{command.state}" if "since" in told else "")
        return {"state": command.state}

    # -- jobs

    def _start(self, name: str, revision: str, at: float) -> str:
        """Make one replica. Raises what refuses its job."""
        record = self.records[name]
        writing = revision_in(record, revision)
        job_id = self._job_id(name, record["made_total"] + 1)
        job = self._job(record, writing, job_id)
        self._room(1)
        self._quotas.check_submit([cast("JobRecord", job)])
        replica: ReplicaRecord = {
            "job_id": job_id,
            "revision": revision,
            "made_at": at,
            "state": QUEUED,
            "since": at,
            "reason": "",
            "host": "",
            "attempt_id": "",
            "token": [],
            "port": 0,
            "model": "",
            "ready_at": None,
        }
        replicas = [*record["replicas"], replica]
        self._put({**record, "replicas": replicas, "made_total": record["made_total"] + 1}, "replica_made")
        self._jobs.accept([new_job(job, self._jobs.next_ordinal, self._index(), at)], at)
        return job_id

    def _job(self, record: ServiceRecord, writing: ServiceRevisionRecord, job_id: str) -> Plain:
        given, name, revision = writing["job"], record["name"], writing["revision"]
        labels = {**(given.get("labels") or {}), LABEL: name, REVISION_LABEL: revision}
        more: Plain = {"labels": labels} if len(labels) <= LABELS_MAX else {}
        more |= {"job_id": job_id, "user_id": record["user_id"], "service": {"name": name, "revision": revision}}
        return {"name": name, **given, **more}

    def _job_id(self, name: str, number: int) -> str:
        ids = (f"{name}-{each}" for each in range(number, number + _NAMES_TRIED))
        return next((id for id in ids if not self._jobs.known(id)), f"{name}-{number}-{self._index()}")

    def _job_moved(self, before: str, job: JobRecord) -> None:
        """A replica is placed, or waits again: nothing answers for it until an attempt of now says that it does."""
        name = self._of_job.get(job["job_id"])
        if name is None or job["state"] not in (QUEUED, PLACED):
            return
        placed = job["state"] == PLACED
        host = job["attempts"][-1]["host"] if placed else ""
        told: Plain = {"host": host, "attempt_id": "", "token": [], "port": 0, "ready_at": None}
        replica = next(each for each in self.records[name]["replicas"] if each["job_id"] == job["job_id"])
        if replica["state"] != DRAINING:
            told |= {"state": STARTING if placed else QUEUED, "reason": ""}
            told["since"] = job["attempts"][-1]["placed_at"] if placed else job["attempts"][-1]["ended_at"] or 0.0
        self._change(self.records[name], job["job_id"], told)

    def _job_ended(self, job: JobRecord, at: float) -> None:
        """A replica is no more: note how, and against its revision where nobody wanted that."""
        name = self._of_job.pop(job["job_id"], None)
        if name is None:
            return
        record = self.records[name]
        replica = next(each for each in record["replicas"] if each["job_id"] == job["job_id"])
        unwell = replica["state"] == UNHEALTHY
        asked = replica["state"] == DRAINING or (job["cancel_requested"] and not unwell) or job["state"] == CANCELLED
        asked = asked and not unwell
        reason = replica["reason"] if unwell else _end_of(job)
        ended: EndedReplicaRecord = {
            "job_id": job["job_id"],
            "revision": replica["revision"],
            "state": job["state"],
            "reason": reason[:REASON_CHARS_MAX],
            "at": at,
            "asked": asked,
        }
        wanted = {
            **record,
            "replicas": [each for each in record["replicas"] if each is not replica],
            "ended": [*record["ended"], ended][-ENDED_KEPT:],
        }
        if not asked:
            served = replica["ready_at"] is not None and at - replica["ready_at"] >= STABLE_S
            wanted["revisions"] = [
                {**each, "failures": 1 if served else each["failures"] + 1, "failed_at": at, "failed_with": reason}
                if each["revision"] == replica["revision"]
                else each
                for each in record["revisions"]
            ]
        self._put(cast("ServiceRecord", wanted), "replica_ended")
        if "removed_by" in wanted and not wanted["replicas"]:
            self._forget(name)

    # -- records

    def _made(self, given: Plain, digest: str, entry: EntryContext) -> ServiceRecord:
        if len(self.records) >= SERVICES_MAX:
            raise QueueFull(
                "the ledger holds its maximum of services",
                found=f"{SERVICES_MAX} services",
                hint="remove some: actorgrid services shows them",
            )
        scale = given["scale"]
        record: ServiceRecord = {
            "name": given["name"],
            "user_id": given["user_id"],
            "made_by": given["made_by"],
            "made_at": entry.at,
            "changed": entry.index,
            "scale": scale,
            # With a minimum of 0 too: that what was written serves is known only once it has.
            "target": max(1, scale["min"]),
            "revision": digest,
            "revisions": [],
            "rollout": None,
            "replicas": [],
            "made_total": 0,
            "revisions_total": 0,
            "ended": [],
            "problem": "",
        }
        if "routing" in given:
            record["routing"] = given["routing"]
        return self._with_revision(record, given, digest, entry)

    def _check_models(self, given: Plain) -> None:
        """Raises WrongState for a name that another service or an adapter of another has as a model."""
        name, routing = given["name"], given.get("routing") or {}
        asked = [each["model"] for each in routing.get("adapters", ())]
        others = (each for each in self.records.values() if each["name"] != name and "routing" in each)
        adapters = {each["model"] for other in others for each in other["routing"]["adapters"]}
        if name in adapters:
            raise WrongState(
                f"an adapter of another service is called {name}", asked=name, hint="take another name for the service"
            )
        taken = {name, *self.records, *adapters}
        for at, model in enumerate(asked):
            if model in taken or model in asked[:at]:
                raise WrongState(
                    f"the adapter {model} has the name of another model",
                    asked=model,
                    found="names of services and adapters are one for the whole cluster",
                    hint=f"--adapter OTHER={model} gives it another name for clients",
                )

    def _with_revision(self, record: ServiceRecord, given: Plain, digest: str, entry: EntryContext) -> ServiceRecord:
        """*record* with what is *given* as its last revision, and no more than are kept."""
        writing: ServiceRevisionRecord = {
            "revision": digest,
            "number": record["revisions_total"] + 1,
            "job": given["job"],
            "serving": given["serving"],
            "made_by": given["made_by"],
            "made_at": entry.at,
            "outcome": "",
            "reason": "",
            "failures": 0,
            "failed_at": 0.0,
            "failed_with": "",
        }
        others = [each for each in record["revisions"] if each["revision"] != digest]
        used = {record["revision"], *(each["revision"] for each in record["replicas"])}
        spare = [each for each in others if each["revision"] not in used]
        gone = {each["revision"] for each in spare[: max(0, len(others) + 1 - REVISIONS_KEPT)]}
        kept = [each for each in others if each["revision"] not in gone]
        total = record["revisions_total"] + 1
        return {**record, "revisions": [*kept, writing], "revisions_total": total}

    def _check_bytes(self, record: ServiceRecord) -> None:
        size = len(pack(record["revisions"][-1]))
        if size > SERVICE_BYTES_MAX:
            raise QueueFull(
                f"what service {record['name']} runs is too large",
                asked=f"{size} bytes",
                found=f"at most {SERVICE_BYTES_MAX}",
            )
        whole = sum(self._bytes.values()) - self._bytes.get(record["name"], 0) + _size(record)
        if whole > SERVICES_BYTES_MAX:
            raise QueueFull(
                "the ledger holds its maximum of what services run",
                asked=f"{whole} bytes",
                found=f"at most {SERVICES_BYTES_MAX}",
                hint="remove some: actorgrid services shows them",
            )

    def _known(self, name: str) -> ServiceRecord:
        record = self.records.get(name)
        if record is None:
            raise UnknownService(
                f"there is no service {name}",
                asked=name,
                found=f"{len(self.records)} services",
                hint="actorgrid services shows them",
            )
        return record

    def _standing(self, name: str) -> ServiceRecord:
        """The service. Raises UnknownService, and WrongState for one that is being taken away."""
        record = self._known(name)
        if "removed_by" in record:
            raise WrongState(
                f"service {name} is being removed",
                asked=name,
                found=f"{len(record['replicas'])} replicas that finish what they have",
                hint=f"wait for them, or end them now: actorgrid services rm {name} --now",
            )
        return record

    def _change(self, record: ServiceRecord, job_id: str, told: Plain, word: str = "") -> None:
        """Replace one replica by one with what is *told*; nothing happens where it is no more."""
        replicas = [
            cast("ReplicaRecord", {**each, **told}) if each["job_id"] == job_id else each for each in record["replicas"]
        ]
        self._put({**record, "replicas": replicas}, word)

    def _put(self, record: ServiceRecord, word: str) -> None:
        record = {**record, "changed": self._index()}
        self._keep(record)
        self._changed(record["name"], record, word)

    def _keep(self, record: ServiceRecord) -> None:
        name = record["name"]
        before = self.records.get(name)
        if before is None or before["revisions"] is not record["revisions"]:
            self._bytes[name] = _size(record)
        for replica in record["replicas"]:
            self._of_job[replica["job_id"]] = name
        self.records[name] = record


def revision_of(given: Plain) -> str:
    """What the replicas of a service run, as one word: 12 digits of the SHA-256 of it in canonical JSON."""
    said = json.dumps([given["job"], given["serving"]], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _may_have_requests(replica: ReplicaRecord) -> bool:
    return replica["attempt_id"] != "" and replica["ready_at"] is not None


def _size(record: ServiceRecord) -> int:
    return sum(len(pack(each)) for each in record["revisions"])


def _within(target: int, scale: Mapping[str, Any]) -> int:
    return int(min(max(target, scale["min"]), scale["max"]))


def _answer(record: ServiceRecord, *, unchanged: bool = False) -> ServiceAnswer:
    rolling_out = record["rollout"] is not None
    return {"name": record["name"], "revision": goal_of(record), "unchanged": unchanged, "rolling_out": rolling_out}


def _begun(
    record: ServiceRecord,
    digest: str,
    at: float,
    by: str,
    part: tuple[int, float] = (0, 300.0),
    *,
    back: bool = False,
) -> ServiceRecord:
    """*record* with an exchange for that revision, whose failures of before do not count against it.

    *part*: percentage and seconds of its canary.
    """
    rollout: RolloutRecord = {
        "to": digest,
        "canary": part[0],
        "canary_s": part[1],
        "began_at": at,
        "by": by,
        "back": back,
    }
    return _marked({**record, "rollout": rollout}, digest, failures=0)


def _withdrawn(record: ServiceRecord, reason: str) -> ServiceRecord:
    """*record* without its exchange."""
    rollout = record["rollout"]
    assert rollout is not None, "there is one to withdraw"
    wanted = _marked(record, rollout["to"], outcome=WITHDRAWN, reason=reason[:REASON_CHARS_MAX])
    return {**wanted, "rollout": None, "last_rollout": f"{rollout['to']} {reason}"[:REASON_CHARS_MAX]}


def _serves(record: ServiceRecord) -> ServiceRecord:
    """*record*, whose revision is known to serve."""
    known = revision_in(record, record["revision"])
    return record if known["outcome"] == GOOD else _marked(record, known["revision"], outcome=GOOD, reason="")


def _led_on(record: ServiceRecord, command: AdvanceService) -> ServiceRecord:
    """*record* after what was decided about its exchange. Raises WrongState where there is none."""
    rollout = record["rollout"]
    if rollout is None:
        raise WrongState(f"no exchange of service {record['name']} goes on", asked=command.outcome or "widen it")
    to = rollout["to"]
    if command.outcome == "promoted":
        marked = _marked(record, to, outcome=GOOD, reason="")
        revisions = [each for each in marked["revisions"] if each["revision"] != to] + [revision_in(marked, to)]
        told = f"{to} serves" + (" again" if rollout["back"] else "")
        return {**marked, "revision": to, "revisions": revisions, "rollout": None, "last_rollout": told}
    if command.outcome == "aborted":
        marked = _marked(record, to, outcome=FAILED, reason=command.reason)
        told = f"{to} was given up: {command.reason}"[:REASON_CHARS_MAX]
        return {**marked, "rollout": None, "last_rollout": told}
    return {**record, "rollout": {**rollout, "canary": 0}}


def _marked(record: ServiceRecord, digest: str, **fields: Any) -> ServiceRecord:
    """*record* with these *fields* of one revision."""
    revisions = [
        cast("ServiceRevisionRecord", {**each, **fields}) if each["revision"] == digest else each
        for each in record["revisions"]
    ]
    return {**record, "revisions": revisions}


def _end_of(job: JobRecord) -> str:
    """How a replica's job ended, in words."""
    error = job.get("error")
    if error is not None:
        return str(error.get("message") or job["state"])
    return "it ended of itself" if job["state"] == "succeeded" else str(job["state"])
