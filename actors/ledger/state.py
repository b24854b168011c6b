"""The replicated state machine: committed commands in, results and changes out.

``apply`` is the guard of the cluster: it refuses, the same way on every replica, any grant that gives out more
than there is, comes from an old term or names a past incarnation. It uses no clock and no dice; the same log gives
the same state, byte for byte (``snapshot``), which voters compare (``digest``). A refused command changes nothing but
the proposer's session.

Bounds: live jobs 1,000,000; graphs, schedules, notices and services as in their ``tables``; hosts 10,000;
allocations 100,000; settings 1,000; locks 10,000; quotas 10,000; members 10,000; join tokens 1,000; API keys 1,000;
sessions 10,000 (least recently used goes first); 1,000 ended jobs kept whole, 100,000 more by id and state; 1,000
attempts per job, of which the first and the last 49 are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from actorgrid.actors.ledger.record_types import JobRecord, OwnerRecord
from actorgrid.errors import (
    ActorGridError,
    LedgerDiverged,
    LedgerRefused,
    LedgerTooNew,
    QueueFull,
    StaleToken,
    UnknownJob,
    WrongState,
    error_from_dict,
)

from .answers import (
    GrantAnswer,
    LoseHostAnswer,
    ReleaseLeaseAnswer,
    SettingAnswer,
    SubmitAnswer,
    SubmittedJob,
    TermAnswer,
)
from .command import Command, read_command
from .commands import (
    EndAttempt,
    GrantLease,
    LoseHost,
    NewTerm,
    ReleaseLease,
    SetSetting,
    SubmitJobs,
)
from .digest import DigestMarks, StateDigest
from .entry import EntryContext, applies, refuse_other_term, verbs_of
from .field_checks import ABSENT
from .messages import JobsWanted, LedgerSnapshot
from .outcome import Change, Event, Outcome
from .reachability import GossipKey
from .records import MAX_ISOLATION_S, new_job, resources_of
from .snapshot import decode, encode, no_state
from .tables.allocations import Allocations, GrantTarget
from .tables.api_keys import ApiKeys
from .tables.attempts import Attempts
from .tables.audit_heads import AuditHeads
from .tables.dependencies import refuse_circles
from .tables.gossip_keys import GossipKeys
from .tables.graphs import Graphs
from .tables.hosts import Hosts, lost_with
from .tables.job_changes import JobChanges
from .tables.jobs import LIVE_JOBS_MAX, LOST, Jobs
from .tables.join_tokens import JoinTokens
from .tables.locks import Locks
from .tables.members import Members
from .tables.notices import Notices
from .tables.quotas import Quotas
from .tables.recoveries import Recoveries
from .tables.removal import Removal
from .tables.retirements import Retirements
from .tables.schedules import Schedules
from .tables.secrets import Secrets
from .tables.services import DesiredServices
from .tables.sessions import Sessions
from .tables.step_changes import StepChanges
from .tables.tenants import Tenants
from .tables.trust import Trust

SETTINGS_MAX = 1_000
NO_STATE = (ActorGridError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What bytes that are no state make the tables raise: a whole state comes as bytes, from a disk or another host."""
NO_RECORDS = ("term", "lock_break", "gossip_key", "steps")
"""Kinds of changes that are told and are nothing that is kept."""


class Ledger:
    """The ledger's state, and the only way to change it.

    A record handed out stays as it is: one that changes is replaced.
    """

    allocations_class: ClassVar[type[Allocations]] = Allocations
    attempts_class: ClassVar[type[Attempts]] = Attempts

    def __init__(self) -> None:
        self.index = 0
        self.term = 0
        self.epoch = 1
        self._at = 0.0
        changed = partial(partial, self._changed)
        self._jobs = Jobs(changed("job"), lambda kind, id: self._digest.changed(kind, id))
        self.jobs = self._jobs.records
        self._members = Members(lambda *told: self._changed("member", *told))
        self.members = self._members.records
        self._hosts = Hosts(self._members, lambda *told: self._changed("host", *told))
        self.hosts = self._hosts.records
        self.settings: dict[str, Any] = {}
        self._locks = Locks(changed("lock"), lambda name, told: self._changes.append(("lock_break", name, told)))
        self.locks = self._locks.records
        self.counts = self._jobs.counts
        self._tenants = Tenants(
            lambda *told: self._changed("tenant", *told),
            lambda *told: self._changed("tenant_use", *told),
            lambda: self._at,
            self._jobs.waiting,
            self._jobs.waiting_bytes,
            lambda tenant, at: self._api_keys.revoke_of(tenant, at),
        )
        self.tenants = self._tenants.records
        self.quotas = Quotas(lambda *told: self._changed("quota", *told), self._jobs.waiting, self._tenants)
        self._given = self.allocations_class(
            self.hosts, self.quotas, lambda id, record: self._changed("allocation", id, record, "")
        )
        self.allocations = self._given.records
        self.capacity = self._given.capacity
        self._attempts = self.attempts_class(self._jobs, self._given, self.members)
        self._graphs = Graphs(
            self._jobs,
            self.quotas,
            lambda graph_id, steps: self._changes.append(("steps", graph_id, steps)),
            lambda id: self._digest.changed("step", id),
        )
        self.steps = self._graphs.steps
        self.step_counts = self._graphs.counts
        self._schedules = Schedules(self._jobs, self.quotas, self._check_room, lambda: self.index, changed("schedule"))
        self.schedules = self._schedules.records
        self._notices = Notices(self._jobs, lambda: (self._at, self.index), changed("notice"))
        self.notices = self._notices.records
        self._services = DesiredServices(
            self._jobs, self.quotas, self.allocations, self._check_room, lambda: self.index, changed("service")
        )
        self.services = self._services.records
        self._join_tokens = JoinTokens(self._members, lambda *told: self._changed("join_token", *told))
        self.join_tokens = self._join_tokens.records
        self._api_keys = ApiKeys(changed("api_key"), self._tenants.check_key)
        self._secrets = Secrets(changed("secret"))
        self.api_keys, self.secrets = self._api_keys.records, self._secrets.records
        self._trust = Trust(self._members, lambda *told: self._changed("trust", *told))
        self.trust = self._trust.records
        self._gossip_keys = GossipKeys(self._members, lambda *told: self._changed("gossip_key", *told))
        self._recoveries = Recoveries(self._hosts, lambda *told: self._changed("recovery", *told))
        self.recoveries = self._recoveries.records
        self._retirements = Retirements(self._members, self._hosts, lambda *told: self._changed("retirement", *told))
        self.retirements = self._retirements.records
        self._audit_heads = AuditHeads(self.members, changed("audit_head"))
        self.audit_heads = self._audit_heads.records
        forget = (self._trust.forget, self._recoveries.forget, self._audit_heads.forget)
        self._removal = Removal(self._members, self._hosts, self._given, self._attempts, forget)
        self.removed = self._members.removed
        self._sessions = Sessions(lambda session: self._digest.changed("session", session))
        self._events_total = 0
        self._digest = self._new_digest()
        self.digest_marks = DigestMarks()
        # Of the entry being applied, beside its time.
        self._type = ""
        self._changes: list[Change] = []
        self._events: list[Event] = []
        self._verbs = verbs_of(
            self,
            self._hosts,
            self._attempts,
            self._locks,
            self.digest_marks,
            self.quotas,
            self._members,
            self._removal,
            self._trust,
            self._join_tokens,
            self._api_keys,
            self._secrets,
            self._recoveries,
            self._gossip_keys,
            self._retirements,
            self._graphs,
            self._schedules,
            self._notices,
            self._services,
            self._tenants,
            self._audit_heads,
            JobChanges(self._jobs, self._graphs, self.quotas),
            StepChanges(self._jobs, self._graphs),
        )

    # -- entries

    def repeated(self, session: str, seq: int) -> Outcome | None:
        """The outcome already given to (session, seq), or WrongState for one that a later one has overtaken."""
        last = self._sessions.last(session) if session else None
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

    def apply(self, index: int, command: Command | object, session: str = "", seq: int = 0) -> Outcome:
        """Carry out the entry at *index*, which must be the next. Never raises for what the command holds: an entry
        of the log may hold any plain value where a command should be.

        Raises LedgerDiverged when a digest of the leader's shows that this state is not the cluster's, LedgerTooNew for
        a command that all members know, as they have said, and this program does not.
        """
        assert index == self.index + 1, f"entry {index} after {self.index}: the log has a gap"
        self.index = index
        earlier = self.repeated(session, seq)
        if earlier is not None:
            self._sessions.used(session)
            return earlier
        self._changes, self._events = [], []
        result: Mapping[str, Any] | None = None
        error: ActorGridError | None = None
        try:
            plain = command.to_plain() if isinstance(command, Command) else command
            checked = read_command(plain, self.members)
            self._at, self._type = float(checked.at), checked.verb
            if checked.of_term:
                self._refuse_other_term(checked)
            result = self._verbs[type(checked)](checked, EntryContext(index, self._at, [self.epoch, index]))
        except (LedgerDiverged, LedgerTooNew):
            raise  # no refusal, which all voters would give alike
        except ActorGridError as refusal:
            assert not self._changes, f"{self._type} changed the state before it was refused"
            error = refusal
        if session:
            answer = {"result": result} if error is None else {"error": error.to_dict()}
            self._sessions.remember(session, seq, index, answer)
        retired = tuple(self._jobs.retire(self._graphs.forget_oldest()))
        for kind, id, _ in self._changes:
            if kind not in NO_RECORDS:
                self._digest.changed(kind, id)
        self.digest_marks.passed(index, self._digest, self._rest)
        return Outcome(index, result, error, tuple(self._changes), tuple(self._events), retired)

    def refuse(self, index: int, error: ActorGridError) -> Outcome:
        """Apply an entry that is no command: it changes nothing, and nobody waits for its answer."""
        assert index == self.index + 1, f"entry {index} after {self.index}: the log has a gap"
        self.index = index
        self.digest_marks.passed(index, self._digest, self._rest)
        return Outcome(index, None, error)

    def pass_over(self, index: int, term: int) -> Outcome:
        """Apply an entry that is Raft's own. The first one of a *term* begins it: grants of earlier terms are refused.

        A leader has such an entry before any other of its term. Where a ``new_term`` went further, nothing begins.
        """
        assert index == self.index + 1, f"entry {index} after {self.index}: the log has a gap"
        self.index = index
        changes: tuple[Change, ...] = ()
        if term > self.term:
            self.term = term
            changes = (("term", "", (self.term, self.epoch)),)
        self.digest_marks.passed(index, self._digest, self._rest)
        return Outcome(index, {}, None, changes)

    # -- snapshots

    def snapshot(self) -> bytes:
        """The whole state as bytes; equal states give equal bytes."""
        return b"".join(self.snapshot_pieces())

    def snapshot_pieces(self) -> Iterator[bytes]:
        """The snapshot in pieces, of the state at this call, however much is applied before the last piece is taken.

        Records are never written into, so a copy of the tables is a copy of the state.
        """
        sections: dict[str, Iterable[Any]] = {
            **self._jobs.dump(),
            "allocations": list(self.allocations.values()),
            "hosts": list(self.hosts.values()),
            "settings": list(self.settings.items()),
            "locks": list(self.locks.values()),
            "quotas": list(self.quotas.records.items()),
            "members": list(self.members.values()),
            "join_tokens": list(self.join_tokens.values()),
            "api_keys": list(self.api_keys.values()),
            "secrets": list(self.secrets.values()),
            "trust": list(self.trust.items()),
            "sessions": self._sessions.dump(),
            "recoveries": list(self.recoveries.values()),
            "retirements": list(self.retirements.values()),
            "schedules": list(self.schedules.values()),
            "notices": list(self.notices.values()),
            "services": list(self.services.values()),
            "tenants": list(self.tenants.values()),
            "tenant_uses": list(self._tenants.uses.values()),
            "audit_heads": list(self.audit_heads.values()),
            **self._graphs.dump(),
        }
        return encode({**self._rest(), "index": self.index}, sections)

    def _rest(self) -> dict[str, Any]:
        """The part of the state that is no record: index, term, epoch, totals."""
        return {
            "term": self.term,
            "epoch": self.epoch,
            "events_total": self._events_total,
            "job_totals": self._jobs.totals,
            "cluster": self._members.rest(),
            **self._gossip_keys.rest(),
        }

    def digest(self) -> dict[str, str]:
        """SHA-256 in hex by kind of record, of the "rest" but the index, and of all as "root": a Merkle tree's top.

        Its cost follows what has changed since it was last asked for.
        """
        return self._digest.by_kind(self._rest())

    def _new_digest(self) -> StateDigest:
        return StateDigest(
            {
                "job": self.jobs,
                "remembered": self._jobs.remembered,
                "allocation": self.allocations,
                "host": self.hosts,
                "setting": self.settings,
                "lock": self.locks,
                "quota": self.quotas.records,
                "member": self.members,
                "join_token": self.join_tokens,
                "api_key": self.api_keys,
                "secret": self.secrets,
                "trust": self.trust,
                "session": self._sessions.answers,
                "recovery": self.recoveries,
                "retirement": self.retirements,
                "step": self._graphs.by_id,
                "schedule": self.schedules,
                "notice": self.notices,
                "service": self.services,
                "tenant": self.tenants,
                "tenant_use": self._tenants.uses,
                "audit_head": self.audit_heads,
            }
        )

    @classmethod
    def restore(cls, data: bytes) -> Ledger:
        """The state that ``snapshot`` wrote, or an earlier version's.

        Raises LedgerTooNew for a later format, LedgerRefused for bytes that are no state.
        """
        try:
            return cls._of(*decode(data))
        except (LedgerRefused, LedgerTooNew):
            raise
        except NO_STATE as error:
            raise no_state(data, f"{type(error).__name__}: {error}") from None

    @classmethod
    def _of(cls, header: dict[str, Any], sections: dict[str, list[Any]]) -> Ledger:
        for name in ("index", "term", "epoch"):
            if type(header[name]) is not int or header[name] < 0:
                raise ValueError(f"its {name} is {header[name]!r:.40}")
        ledger = cls()
        ledger.index, ledger.term, ledger.epoch = header["index"], header["term"], header["epoch"]
        ledger._events_total = header["events_total"]
        ledger._jobs.load(sections, header["job_totals"])
        ledger.hosts.update((record["host_id"], record) for record in sections.get("hosts", ()))
        ledger.settings.update((key, value) for key, value in sections.get("settings", ()))
        ledger._locks.load(sections.get("locks", ()))
        ledger._sessions.load(sections.get("sessions", ()))
        ledger.quotas.records.update(sections.get("quotas", ()))
        ledger._members.load(header["cluster"], sections.get("members", []))
        ledger._join_tokens.load(sections.get("join_tokens", []))
        ledger._api_keys.load(sections.get("api_keys", []))
        ledger._secrets.load(sections.get("secrets", []))
        ledger._gossip_keys.load(header)
        ledger._trust.load(sections.get("trust", []))
        ledger._recoveries.load(sections.get("recoveries", []))
        ledger._retirements.load(sections.get("retirements", []))
        ledger._tenants.load(sections.get("tenants", []), sections.get("tenant_uses", []))
        ledger._audit_heads.load(sections.get("audit_heads", []))
        ledger._given.load(sections.get("allocations", []))
        ledger._graphs.load(sections)
        ledger._schedules.load(sections.get("schedules", []))
        ledger._notices.load(sections.get("notices", []))
        ledger._services.load(sections.get("services", []))
        ledger._digest = ledger._new_digest()
        return ledger

    @classmethod
    def restore_of_others(cls, data: bytes, index: int) -> Ledger:
        """As ``restore``, for bytes that another host sent as the state of entry *index*: each record is checked.

        Raises LedgerTooNew, LedgerRefused.
        """
        ledger = cls.restore(data)
        try:
            ledger.digest()
        except NO_STATE as error:
            raise no_state(data, f"{type(error).__name__}: {error}") from None
        if ledger.index != index:
            raise no_state(data, f"it is of entry {ledger.index}, sent as of {index}")
        return ledger

    def live(self, jobs: JobsWanted = "all") -> LedgerSnapshot:
        """The live records that a subscriber starts from, with the *jobs* that it asked for."""
        return LedgerSnapshot(
            index=self.index,
            term=self.term,
            epoch=self.epoch,
            jobs=self._jobs.wanted(jobs),
            job_counts=dict(self.counts),
            allocations=dict(self.allocations),
            hosts=dict(self.hosts),
            settings=dict(self.settings),
            locks=dict(self.locks),
            quotas=dict(self.quotas.records),
            members=dict(self.members),
            join_tokens=dict(self.join_tokens),
            api_keys=dict(self.api_keys),
            trust=dict(self.trust),
            recoveries=dict(self.recoveries),
            retirements=dict(self.retirements),
            schedules=dict(self.schedules),
            notices=dict(self.notices),
            services=dict(self.services),
            tenants=dict(self.tenants),
            tenant_uses=dict(self._tenants.uses),
        )

    # -- terms, settings

    @applies(NewTerm)
    def _new_term(self, command: NewTerm, entry: EntryContext) -> TermAnswer:
        epoch = command.epoch or self.epoch
        if command.term <= self.term or epoch < self.epoch:
            raise StaleToken("the term is not new", asked=f"term {command.term}", found=f"term {self.term}")
        self.term, self.epoch = command.term, epoch
        self._changes.append(("term", "", (self.term, self.epoch)))
        return {"term": self.term, "epoch": self.epoch}

    @applies(SetSetting)
    def _set_setting(self, command: SetSetting, entry: EntryContext) -> SettingAnswer:
        key, value = command.key, command.value
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

    @applies(SubmitJobs)
    def _submit_jobs(self, command: SubmitJobs, entry: EntryContext) -> SubmitAnswer:
        fresh: dict[str, JobRecord] = {}
        answers: list[SubmittedJob] = []
        for given in command.jobs:
            job_id = given["job_id"]
            duplicate = job_id in fresh or self._jobs.known(job_id)
            answers.append({"job_id": job_id, "duplicate": duplicate})
            if not duplicate:
                fresh[job_id] = given  # the fields it lacks are put in when it is accepted
        self._check_room(len(fresh))
        for job in fresh.values():
            for name in job.get("depends_on", ()):
                if name not in fresh and not self._jobs.known(name):
                    raise UnknownJob(
                        f"job {job['job_id']} depends on {name}, which is not known",
                        asked=name,
                        hint="submit it first, or in the same batch",
                    )
        self.quotas.check_submit(fresh.values())
        limits = command.waiting_bytes
        if limits is not ABSENT:
            self._jobs.waiting_bytes.refuse_over(fresh.values(), limits["user"], limits["all"])
        refuse_circles({job_id: given.get("depends_on", ()) for job_id, given in fresh.items()})
        first = self._jobs.next_ordinal
        self._jobs.accept(
            [new_job(given, first + number, self.index, entry.at) for number, given in enumerate(fresh.values())],
            entry.at,
        )
        return {"jobs": answers}

    def _check_room(self, jobs: int) -> None:
        """Raises QueueFull for so many live jobs more than there may be."""
        live = self._jobs.live_count
        if live + jobs > LIVE_JOBS_MAX:
            raise QueueFull(
                "the ledger holds its maximum of jobs", asked=f"{jobs} more", found=f"{live} of {LIVE_JOBS_MAX}"
            )

    # -- grants

    @applies(GrantLease)
    def _grant_lease(self, command: GrantLease, entry: EntryContext) -> GrantAnswer:
        place = GrantTarget(command.host, command.incarnation, command.gpu_indexes)
        self._given.host_for(place)
        lease_id, user = command.lease_id, command.user_id
        owner: OwnerRecord = {"kind": "session", "session_id": command.session_id, "lease_id": lease_id}
        resources = resources_of(command.resources)
        pool, env = command.pool, command.env
        allocation = self._given.give_out(
            lease_id,
            owner,
            place,
            resources,
            user=user,
            token=entry.token,
            at=entry.at,
            pool=pool,
            env=env,
            max_isolation_s=MAX_ISOLATION_S if command.max_isolation_s is ABSENT else command.max_isolation_s,
        )
        self._event("allocation", lease_id, "granted")
        return {"token": allocation["token"], "gpu_uuids": allocation["gpu_uuids"]}

    def _refuse_other_term(self, command: Any) -> None:
        refuse_other_term(command, self.term)

    @applies(ReleaseLease)
    def _release_lease(self, command: ReleaseLease, entry: EntryContext) -> ReleaseLeaseAnswer:
        lease_id = command.lease_id
        allocation = self.allocations.get(lease_id)
        if allocation is None:
            return {"released": False}
        if allocation["owner"]["kind"] != "session":
            raise WrongState(f"{lease_id} belongs to a job's attempt", hint="end or cancel the job")
        self._given.take_back(lease_id)
        self._event("allocation", lease_id, "released")
        return {"released": True}

    # -- hosts that are lost

    @applies(LoseHost)
    def _lose_host(self, command: LoseHost, entry: EntryContext) -> LoseHostAnswer:
        """End the work that, the leader says, cannot live on there; grant nothing there until the host is back."""
        host = self._hosts.current(command)
        self._hosts.lose(command, entry.index)
        ended = []
        for name, token in command.allocations:
            allocation = self.allocations.get(name)
            if allocation is None or allocation["token"] != token or allocation["host"] != command.host:
                continue  # it ended by itself meanwhile
            ended.append(name)
            if allocation["owner"]["kind"] == "session":
                self._release_lease(ReleaseLease(name), entry)
                continue
            error = lost_with(host, name, command.heard_at)
            self._attempts.end(EndAttempt(name, token, LOST, charge=False, error=error), entry)
        return {"ended": ended, "lost_at": self.hosts[command.host].get("lost_at")}

    @property
    def gossip_key(self) -> GossipKey:
        """The secret of the members, for the server that seals with it."""
        return self._gossip_keys.now()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the waiting jobs of all users take (see ``waiting_bytes.py``)."""
        return self._jobs.waiting_bytes.total

    @property
    def waiting_bytes_most(self) -> tuple[str, int] | None:
        """The user whose waiting jobs take most, and how many bytes; ``None``: nothing waits."""
        return self._jobs.waiting_bytes.most()

    # -- what an entry did

    def _changed(self, kind: str, identity: str, record: Any, state: str) -> None:
        """Note a changed record; without a word for its *state* it is no event for people."""
        self._changes.append((kind, identity, record))
        if state:
            self._event(kind, identity, state)

    def _event(self, kind: str, identity: str, state: str) -> None:
        self._events_total += 1
        self._events.append(Event(self._events_total, self.index, self._at, self._type, kind, identity, state))
