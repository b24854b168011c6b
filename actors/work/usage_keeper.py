"""Counts what work of this host uses, and keeps it over the end of the work, of the agent and of the machine.

What the ledger grants on this host is counted from its grant to its end (``usage_meter.py``). The end of an attempt
tells the ledger what it used; here the same is kept for the host's own history (``usage_history.py``), sessions' leases
too. Every ``WRITE_S`` what is not over is written down, so that the next agent goes on from there: one that is killed
loses at most that much of what memory and energy its work used meanwhile, and nothing of its GPU-seconds. What ended
while no agent was here is closed as of the last time that one was, and is marked as incomplete.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actorgrid.errors import ActorGridError, StorageError
from actorgrid.supervisors.background import Background
from actorgrid.supervisors.server import Server

from ..files.identity import write_atomically
from ..ledger.attempt_ids import rank_of
from ..ledger.client import LedgerClient
from ..ledger.command import cluster_version
from ..ledger.commands.jobs import USAGE_SINCE
from ..ledger.messages import Applied
from ..ledger.record_types import NO_HOST, NO_JOB, AllocationRecord, EndFacts, GangMemberRecord, JobRecord
from ..ledger.usage_records import UsageRecord
from .linux import boot_id
from .messages import DevicesSampled, ReadWorkUsage
from .usage_history import UsageHistory
from .usage_meter import HeldDevice, HeldWork, UsageMeter
from .usage_rows import UsageEntry, UsageRow, entry_of, merged

WRITE_S = 5.0
PENDING_MAX = 20_000
"""Ends that are not written yet: a disk that takes nothing for longer costs the oldest of them, which are counted."""
AWAY = "it ended while no agent was here"
MACHINE_WENT = "the machine went down while it ran"


class UsageKeeper:
    """Of one host. The file is touched by a thread of its own alone."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self.lost_total = 0
        self._server = server
        self._ledger = ledger
        self._folder: Path = server.host.paths.usage_dir
        self._boot = boot_id()
        self._meter = UsageMeter()
        self._alive_to: float | None = None
        """Until when, in this boot, an agent is known to have been here; ``None``: none was."""
        self._pending: list[UsageEntry] = []
        self._background = Background(server.runtime, "usage")
        self._history: UsageHistory | None = None
        self._writing = False
        self._was_open = False
        self._follows = False

    # -- what there is

    def recover(self) -> None:
        """Take up what the agent before wrote of what was not over."""
        try:
            kept = json.loads((self._folder / "open.json").read_bytes())
            boot, at, wall = str(kept["boot_id"]), float(kept["at"]), float(kept["wall"])
            meter = UsageMeter.from_plain(kept["meter"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._server.log.warning("what work used before this start is not known: %s", error)
            return
        if boot == self._boot:
            self._meter, self._alive_to = meter, at
            return
        for work_id in list(meter.open):
            usage = meter.end(work_id, at)
            if usage is not None:
                self._pending.append(entry_of(usage, wall, incomplete=MACHINE_WENT))

    def follow(self) -> None:
        """Take over what the ledger has granted here, all of it: its copy was filled anew."""
        held = self._ledger.allocations
        for work_id in list(self._meter.open):
            if work_id not in held:
                self._close(work_id, self._now() if self._follows else self._alive_to, None, AWAY)
        for allocation in held.values():
            self.ensure(allocation, just_granted=self._follows)
        self._follows = True

    def applied(self, message: Applied) -> None:
        """Take over a change of the ledger."""
        jobs: dict[str, JobRecord] = {}
        for kind, identity, record in message.changes:
            if kind == "job" and record is not None:
                jobs[identity] = record
            elif kind == "allocation" and record is not None:
                self.ensure(record)
        for kind, identity, record in message.changes:
            if kind == "allocation" and record is None and identity in self._meter.open:
                job = jobs.get(self._meter.open[identity].work.job_id)
                self._close(identity, self._now(), job)

    def ensure(self, allocation: AllocationRecord, *, just_granted: bool = True) -> None:
        """Count *allocation*, unless it is another host's or waits for the place of another attempt."""
        work_id = allocation["allocation_id"]
        if allocation["host"] != self._server.host.host_id or "behind" in allocation or work_id in self._meter.open:
            return
        now = self._now()
        began = now if just_granted else now - self._held_before(allocation, now)
        owner = allocation["owner"]
        job_id = owner.get("job_id") or owner.get("session_id", "")
        job = self._ledger.jobs.get(job_id) or NO_JOB
        work = HeldWork(
            work_id,
            "attempt" if owner["kind"] == "attempt" else "session",
            job_id,
            allocation["user_id"],
            allocation["gpu_milli"],
            allocation["cpu_milli"],
            tuple(self._devices_of(allocation)),
            allocation["granted_at"],
            dict(job.get("labels", {})),
        )
        self._meter.begin(work, began)

    def _held_before(self, allocation: AllocationRecord, now: float) -> float:
        """For how long it was held before this start: by the wall clock, and no longer than nobody was here."""
        longest = now if self._alive_to is None else now - self._alive_to
        return min(max(0.0, time.time() - allocation["granted_at"]), longest)

    def _devices_of(self, allocation: AllocationRecord) -> Iterator[HeldDevice]:
        known = {each["uuid"]: each for each in self._ledger.hosts.get(allocation["host"], NO_HOST).get("devices", ())}
        for uuid in allocation["gpu_uuids"]:
            device = known.get(uuid)
            if device is None:
                yield HeldDevice(uuid, "")
            else:
                yield HeldDevice(uuid, device["model"], device["source"] == "simulated")

    def _close(self, work_id: str, at: float | None, job: JobRecord | None, incomplete: str = "") -> None:
        usage = self._meter.end(work_id, self._now() if at is None else at)
        if usage is None:
            return
        facts = _facts_of(job, work_id)
        cpu_s, rss = (None, None) if facts is None else (facts["cpu_s"], facts["max_rss_bytes"])
        self._pending.append(entry_of(usage, time.time(), cpu_s, rss, incomplete))
        if len(self._pending) > PENDING_MAX:
            del self._pending[0]
            self.lost_total += 1

    # -- samples, and the ledger

    def sampled(self, message: DevicesSampled) -> None:
        """Take a sample of devices."""
        self._meter.sample(message.devices, message.by_work_mib, self._now())

    def usage_of(self, work_id: str) -> UsageRecord | None:
        """What the end of an attempt tells of its devices; ``None``: it has none, or older hosts would not know it."""
        found = self._meter.open.get(work_id)
        if found is None or not found.devices or cluster_version(self._ledger.members) < USAGE_SINCE:
            return None
        usage = self._meter.used(work_id, self._now())
        return None if usage is None else usage.to_record()

    # -- the disk

    async def write(self) -> None:
        """Write down what has ended, and then what has not."""
        if self._writing:
            return
        self._writing = True
        try:
            entries = self._pending[:]
            if entries:
                await self._background.run(lambda: self._opened().add(entries, time.time()))
                written = {id(entry) for entry in entries}
                self._pending = [entry for entry in self._pending if id(entry) not in written]
            if self._follows and (self._meter.open or self._was_open):
                self._was_open = bool(self._meter.open)
                self._alive_to = self._now()
                plain = self._plain()
                await self._background.run(lambda: self._write_open(plain))
        except (sqlite3.Error, ActorGridError, OSError) as error:
            self._server.log.warning("what work used is not written yet: %s", error)
        finally:
            self._writing = False

    def leave(self) -> None:
        """Write down what is not over, at the end of this agent, in its own thread."""
        if not self._follows:
            return
        try:
            self._write_open(self._plain())
        except ActorGridError as error:
            self._server.log.warning("what work used since %s is not written: %s", self._alive_to, error)

    def _plain(self) -> dict[str, Any]:
        return {"boot_id": self._boot, "at": self._now(), "wall": time.time(), "meter": self._meter.to_plain()}

    def _write_open(self, plain: dict[str, Any]) -> None:
        write_atomically(self._folder / "open.json", json.dumps(plain, separators=(",", ":")).encode())

    def _opened(self) -> UsageHistory:
        """The history; a file that is none is put aside, and another begun. In the thread."""
        if self._history is None:
            path = self._folder / "history.db"
            try:
                self._history = UsageHistory(path)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                aside = path.with_suffix(".broken")
                self._server.log.warning("%s is no history of usage (%s): it is put aside as %s", path, error, aside)
                path.replace(aside)
                self._history = UsageHistory(path)
        return self._history

    # -- answers

    async def answer(self, asked: ReadWorkUsage) -> dict[str, Any]:
        """What work of this host used: rows, and since when each piece of work is kept by itself."""
        wall, now = time.time(), self._now()
        running = [
            entry_of(usage, None)
            for work_id in list(self._meter.open)
            if (usage := self._meter.used(work_id, now)) is not None
        ]
        running += self._pending
        host_id = self._server.host.host_id

        def read() -> tuple[list[UsageRow], float]:
            history = self._opened()
            rows = history.rows(running, asked.by, asked.since, wall, asked.user_id, host_id)
            return merged(rows), history.kept_since()

        try:
            rows, kept_since = await self._background.run(read)
        except sqlite3.Error as error:
            raise StorageError(f"the history of usage cannot be read: {error}", asked=str(self._folder)) from error
        return {"rows": rows, "kept_since": kept_since}

    def _now(self) -> float:
        return self._server.runtime.boottime()


def _facts_of(job: JobRecord | None, work_id: str) -> EndFacts | None:
    """What the ledger knows of how an attempt, or a gang's member, ended."""
    for attempt in reversed(job["attempts"] if job is not None else []):
        members: list[GangMemberRecord] = attempt.get("members", [])
        parts: list[EndFacts] = [*members] if rank_of(work_id) is not None else [attempt]
        ids = [member["allocation_id"] for member in members] or [attempt["allocation_id"]]
        if work_id in ids:
            return parts[ids.index(work_id)]
    return None
