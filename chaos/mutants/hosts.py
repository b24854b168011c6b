"""Mutants around the core: what a host does with a Ready, its disk, its ledger and its clients, done wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from actorgrid.actors.ledger.commands import AcquireLock, TakeSuccess
from actorgrid.actors.ledger.entry import EntryContext
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.record_types import AttemptRecord, DeviceRecord, HostRecord, JobRecord, ResourcesRecord
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.allocations import Allocations, GrantTarget
from actorgrid.actors.ledger.tables.attempts import Attempts
from actorgrid.actors.ledger.tables.capacity import Capacity
from actorgrid.actors.ledger.tables.jobs import SUCCEEDED
from actorgrid.actors.raft.core import RaftCore
from actorgrid.actors.raft.messages import HardState, RaftSnapshot, Ready
from actorgrid.chaos.simulator.disk import Compaction, Disk, Image
from actorgrid.chaos.simulator.gateway import SimulatedGateway
from actorgrid.chaos.simulator.node import SimulatedHost
from actorgrid.chaos.simulator.requests import ClientRequest
from actorgrid.errors import LogFailed, StorageError


def with_core(core: type[RaftCore]) -> type[SimulatedHost]:
    """The class of a host with that core."""
    return type(f"{core.__name__}Node", (SimulatedHost,), {"core_class": core})


# -- what is done with a Ready


class AcksBeforeSync(SimulatedHost):
    """Votes and acknowledgements leave before what they promise is on disk."""

    def persist(self, ready: Ready) -> None:
        """Send all messages at once."""
        self.send(ready.persisted_messages)
        super().persist(ready)


# -- disks


class _TailLost(Disk):
    def recover(self) -> Image:
        image = super().recover()
        lost = self._rng.randrange(4)
        if lost and image.entries:
            del image.entries[-lost:]
            if image.hard_state is not None:
                commit = min(image.hard_state.commit, image.last_index)
                image.hard_state = HardState(image.hard_state.term, image.hard_state.vote, commit)
        return image


class TailLost(SimulatedHost):
    """Up to three synced entries are gone after a restart, and nothing notices."""

    disk_class = _TailLost


class _SyncFailsSilently(Disk):
    def sync(self) -> None:
        try:
            super().sync()
        except LogFailed:
            return


class FailedSyncIgnored(SimulatedHost):
    """A failed fsync is taken for one that worked the second time."""

    disk_class = _SyncFailsSilently


class StateApartFromIndex(SimulatedHost):
    """State and index are written one after the other: a crash between leaves a new index on an old state."""

    def save(self, snapshot: RaftSnapshot) -> None:
        """The index now, the state a moment later."""
        before = self.durable.snapshot
        old = snapshot.data if before is None else before.data
        super().save(RaftSnapshot(snapshot.index, snapshot.term, snapshot.conf_state, old))
        self.disk.sync()
        self.later(30_000, lambda: self._write_state(snapshot))

    def _write_state(self, snapshot: RaftSnapshot) -> None:
        try:
            self.disk.write([Compaction(snapshot)])
            self.disk.sync()
        except StorageError as error:
            self.crash(error.code)

    def restored(self, snapshot: RaftSnapshot | None) -> Ledger:
        """Believe the index."""
        state = super().restored(snapshot)
        if snapshot is not None:
            state.index = snapshot.index
        return state


# -- doors


class _ReadsHere(SimulatedGateway):
    def read(self, sender: str, ask: ClientRequest) -> None:
        self.answer_read(sender, ask)


class StaleRead(SimulatedHost):
    """Reads are answered from this host's state, however old."""

    gateway_class = _ReadsHere


# -- ledgers


class _Forgetful(Ledger):
    def repeated(self, session: str, seq: int) -> Outcome | None:
        return None


class AppliedTwice(SimulatedHost):
    """A repeated proposal is applied again."""

    ledger_class = _Forgetful


class _AnyTerm(Ledger):
    def _refuse_other_term(self, command: Any) -> None:
        return


class OldTermGrants(SimulatedHost):
    """Grants decided under an earlier leadership are taken."""

    ledger_class = _AnyTerm


class _ForAnyLife(Allocations):
    def host_for(self, place: GrantTarget) -> HostRecord:
        host = self._hosts.get(place.host)
        known = place.incarnation if host is None else host["incarnation"]
        return super().host_for(place._replace(incarnation=known))


class _AnyIncarnation(Ledger):
    allocations_class = _ForAnyLife


class OldIncarnationGrants(SimulatedHost):
    """Grants to a host's earlier life are taken."""

    ledger_class = _AnyIncarnation


class _Hasty(Attempts):
    def is_over(self, attempt: AttemptRecord) -> bool:
        return attempt["ending"] is not None or super().is_over(attempt)


class _HastyGangs(Ledger):
    attempts_class = _Hasty


class GangsStartAgainEarly(SimulatedHost):
    """A gang is tried again as soon as one member has failed, while others still run."""

    ledger_class = _HastyGangs


class _FreesAtOnce(Attempts):
    def _take(
        self, job: JobRecord, lost: AttemptRecord, rank: int | None, command: TakeSuccess, at: float
    ) -> JobRecord:
        before = job["attempts"][-1]
        taken = super()._take(job, lost, rank, command, at)
        if before["ended_at"] is None and taken.get("taken") is not None:
            for member in before.get("members", (before,)):
                self._given.take_back(member["allocation_id"])
            return self._jobs.finish(job["job_id"], SUCCEEDED, None, at)
        return taken


class _HastySuccess(Ledger):
    attempts_class = _FreesAtOnce


class FreesWhatIsSuperseded(SimulatedHost):
    """A success that comes late ends its job at once, and frees the devices on which it still runs elsewhere."""

    ledger_class = _HastySuccess


class _Endless(Capacity):
    def check(self, host: HostRecord, gpu_indexes: list[int], resources: ResourcesRecord) -> list[DeviceRecord]:
        return [device for device in host["devices"] if device["index"] in gpu_indexes]


class _NoGuard(_AnyTerm):
    def __init__(self) -> None:
        super().__init__()
        self.capacity = self._given.capacity = _Endless()


class _NeverMinds(Capacity):
    def _refuse_both(self, what: str, host_id: str, device: DeviceRecord) -> None:
        pass


class _GivesBoth(Ledger):
    def __init__(self) -> None:
        super().__init__()
        self.capacity = self._given.capacity = _NeverMinds()


class WholesAndPartsAtOnce(SimulatedHost):
    """The ledger gives out instances of a GPU that somebody has as a whole, and the whole under its instances."""

    ledger_class: ClassVar[type[Ledger]] = _GivesBoth


class NoGuard(SimulatedHost):
    """The ledger takes every grant as it comes: neither term nor room is looked at."""

    ledger_class: ClassVar[type[Ledger]] = _NoGuard


class _ForgetsSessions(Ledger):
    @classmethod
    def restore(cls, data: bytes) -> Ledger:
        state = super().restore(data)
        state._sessions.answers.clear()
        return state


class SessionsNotInSnapshot(SimulatedHost):
    """A snapshot leaves out what was answered: after a restart, repetitions are applied again here."""

    ledger_class = _ForgetsSessions


class _TakesLocks(Ledger):
    def __init__(self) -> None:
        super().__init__()
        acquire = self._verbs[AcquireLock]

        def grab(command: AcquireLock, entry: EntryContext) -> Mapping[str, Any]:
            record = self.locks.get(command.name)
            if record is not None and not command.wait:
                del self.locks[command.name]
            return acquire(command, entry)

        self._verbs[AcquireLock] = grab


class LocksGrabbed(SimulatedHost):
    """A held lock is given to whoever asks for it next."""

    ledger_class = _TakesLocks


class _CrowdsLocks(Ledger):
    def __init__(self) -> None:
        super().__init__()
        acquire = self._verbs[AcquireLock]

        def crowd(command: AcquireLock, entry: EntryContext) -> Mapping[str, Any]:
            record = self.locks.get(command.name)
            if record is not None and record["slots"] > 1:
                room = record["slots"] + 1
                self.locks[command.name] = {**record, "slots": room}
                try:
                    return acquire(replace(command, slots=room), entry)
                finally:
                    self.locks[command.name] = {**self.locks[command.name], "slots": record["slots"]}
            return acquire(command, entry)

        self._verbs[AcquireLock] = crowd


class SlotsOverfilled(SimulatedHost):
    """A semaphore is given to one more than it has slots."""

    ledger_class = _CrowdsLocks
