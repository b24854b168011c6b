"""The watch over what work holds of its host's disk: ends by name what floods it, before others suffer.

Each look asks for the room on the data directory's file system, which costs a microsecond. Folders are walked only
where work has a limit, or less is free than is kept; in a thread, and at most a tenth of the time while there is room.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from actorgrid.actors.ledger.attempt_ids import job_of
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.record_types import NO_ALLOCATION
from actorgrid.supervisors.background import Background
from actorgrid.supervisors.server import Server

from .attempt_dir import AttemptDir
from .attempts import HostAttempts
from .containment import enclosure_of, read_record
from .disk_limits import DiskRoom, OverDisk, WorkOnDisk, greatest, is_short, kept_bytes, next_look_s, over_limit
from .disk_use import DiskCount, room_of
from .housekeeping import clear_own_sockets
from .leases import Leases
from .outcomes import disk_reason, over_disk
from .process_tree import descendants
from .work_records import WorkSpec, uid_of

LOOK_S, LOOK_LEAST_S = 0.5, 0.02
REST_FACTOR = 9.0
"""While there is room, walks rest so many times as long as they take."""
ENTRIES_MAX = 5_000_000
ENTRIES_MAX_IN_HASTE = 500_000
"""Of one piece of work, in one look; what has more holds more than others by that alone."""
SAY_AGAIN_S = 60.0
GOES_S = 30.0
"""So long work that was told to end may take before another is ended for the same room."""
EndNow = Callable[[str, str, str], bool]


class _Holder(NamedTuple):
    """A piece of work that may hold something."""

    work_id: str
    """By which it is ended: of the attempt, or of the lease."""
    user_id: str
    folder: Path
    shim_pid: int | None


class _Told(NamedTuple):
    """Work that was told to end."""

    at_s: float
    sockets: str
    """The folder of its uid's sockets, which does not go with it."""


class DiskWatch:
    """Of one host. *end_now* ends an attempt, or a lease's worker, for a reason, with a text for the log."""

    def __init__(
        self, server: Server, ledger: LedgerClient, attempts: HostAttempts, leases: Leases, end_now: EndNow
    ) -> None:
        self._server, self._ledger = server, ledger
        self._attempts, self._leases = attempts, leases
        self._end_now = end_now
        self._background = Background(server.runtime, "disk_watch")
        self._told: dict[str, _Told] = {}
        self._said_at = float("-inf")
        self.ended_total = 0
        self.walks_total = 0

    async def run(self) -> None:
        """Look for as long as the server lives."""
        work, now_s = self._server.host.settings.work, self._server.runtime.monotonic
        before, before_at, rested_at = None, 0.0, 0.0
        while True:
            room = self._room()
            wait_s = LOOK_S
            if room is not None:
                free_min = work.disk_free_min_bytes
                looked_at = now_s()
                if before is not None:
                    wait_s = next_look_s(
                        room.free_bytes,
                        before,
                        looked_at - before_at,
                        kept_bytes(room, free_min),
                        LOOK_LEAST_S,
                        LOOK_S,
                    )
                before, before_at = room.free_bytes, looked_at
                if self._told:
                    await self._see_them_gone()
                if is_short(room, free_min):
                    await self._make_room(room)
                elif work.disk_bytes_max and looked_at >= rested_at:
                    await self._hold_to_limit()
                    rested_at = now_s() + REST_FACTOR * (now_s() - looked_at)
            await self._server.sleep(wait_s)

    def _room(self) -> DiskRoom | None:
        try:
            return room_of(self._server.host.paths.data_dir)
        except OSError:
            return None  # a disk that fails is the detector's (faults.md)

    async def _hold_to_limit(self) -> None:
        works = await self._looked_at(in_haste=False)
        room = self._room()
        if room is not None:
            work = self._server.host.settings.work
            for over in over_limit(works, work.disk_bytes_max, room, work.disk_free_min_bytes):
                self._end(over)

    async def _make_room(self, room: DiskRoom) -> None:
        now = self._server.runtime.monotonic()
        if any(now < told.at_s + GOES_S for told in self._told.values()):
            return  # what it holds is going
        works = await self._looked_at(in_haste=True)
        found = self._room()
        free_min = self._server.host.settings.work.disk_free_min_bytes
        if found is None or not is_short(found, free_min):
            return
        over = greatest(works, found, free_min)
        if over is not None:
            self._end(over)
        elif now >= self._said_at + SAY_AGAIN_S:
            self._said_at = now
            self._server.log.warning(
                "%d bytes are free on the data directory's disk, and no work holds much of it: nothing is ended",
                room.free_bytes,
            )

    def _end(self, over: OverDisk) -> None:
        if over.work_id in self._told:
            return
        reason = disk_reason(over)
        if self._end_now(over.work_id, reason, over_disk(over.work_id, reason).message):
            self.ended_total += 1
        folder = next((each.folder for each in self._holders() if each.work_id == over.work_id), None)
        spec = None if folder is None else AttemptDir(folder.parent, folder.name).read_spec()
        self._told[over.work_id] = _Told(self._server.runtime.monotonic(), _sockets_of(spec))

    async def _see_them_gone(self) -> None:
        live = {holder.work_id for holder in self._holders()}
        for work_id in [each for each in self._told if each not in live]:
            sockets = self._told.pop(work_id).sockets
            if sockets:
                await self._background.run(lambda place=sockets: clear_own_sockets(Path(place)))  # type: ignore[misc]

    async def _looked_at(self, *, in_haste: bool) -> list[WorkOnDisk]:
        self.walks_total += 1
        holders = list(self._holders())
        try:
            device = os.stat(self._server.host.paths.data_dir).st_dev
        except OSError:
            return []
        entries_max = ENTRIES_MAX_IN_HASTE if in_haste else ENTRIES_MAX
        # For room, what it writes elsewhere on that disk counts as well: work at basic has all of it.
        return await self._background.run(
            lambda: [_looked_at(holder, device, entries_max, named=in_haste) for holder in holders]
        )

    def _holders(self) -> Iterator[_Holder]:
        for attempt_id, attempt in list(self._attempts.live.items()):
            job = self._ledger.jobs.get(job_of(attempt_id))
            user = job["user_id"] if job is not None else ""
            yield _Holder(attempt_id, user, attempt.directory.path, attempt.shim_pid)
        for worker in self._leases.workers():
            if worker.lease_id is not None:
                user = str(self._ledger.allocations.get(worker.lease_id, NO_ALLOCATION).get("user_id", ""))
                directory = AttemptDir(self._server.host.paths.workers_dir, worker.worker_id)
                yield _Holder(worker.lease_id, user, directory.path, directory.shim_pid())


def _looked_at(holder: _Holder, device: int, entries_max: int, *, named: bool) -> WorkOnDisk:
    """Look at one piece of work; in a thread."""
    spec = AttemptDir(holder.folder.parent, holder.folder.name).read_spec()
    count = DiskCount(device, uid_of(spec), entries_max)
    for folder in _folders_of(holder.folder, spec):
        count.add_tree(folder)
    with suppress(OSError):
        count.add_open(_pids_of(holder), named=named)
    return WorkOnDisk(holder.work_id, holder.user_id, count.use)


def _sockets_of(spec: WorkSpec | None) -> str:
    return spec["apart"]["sockets"]["own"] if spec is not None and "sockets" in spec.get("apart", {}) else ""


def _folders_of(folder: Path, spec: WorkSpec | None) -> list[str]:
    """The folders that are the work's: those in the attempt's folder, whose files are the agent's, and its sockets'."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        found = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    sockets = _sockets_of(spec)
    return [*found, sockets] if sockets else found


def _pids_of(holder: _Holder) -> list[int]:
    enclosure = enclosure_of(read_record(holder.folder) or {})
    inside = [] if enclosure is None else enclosure.members()
    below = [] if holder.shim_pid is None else descendants(holder.shim_pid)
    return list(dict.fromkeys([*below, *inside]))
