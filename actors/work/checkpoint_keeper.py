"""The agent's part in checkpoints: what an attempt leaves is kept, spread, and entered into the ledger with its token.

One coroutine for each attempt that makes any looks for the newest (checkpoint_spool.py). It is copied among the
payloads, brought to a majority of the voters, and only then named in the ledger, which refuses it where the attempt is
not the job's any more. With each one that the ledger names, every host drops the one before.

Bounds: one copy at a time for each attempt; a file that waits, and the job's last one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from actorgrid.actors.files.blob_store import BlobStore
from actorgrid.actors.files.untrusted_files import open_to_read, remove_tree
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.commands import CheckpointAttempt
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.checkpoints import CHECKPOINT_BYTES_MAX, HEAD_BYTES, SPOOL_VARIABLE, head_of
from actorgrid.digests import is_digest
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    BodyTooLarge,
    DiskFull,
    LedgerRefused,
    MalformedBody,
    NotARegularFile,
    StorageError,
)
from actorgrid.job_outcome import FINAL_STATES
from actorgrid.supervisors.server import Server

from ..links.messages import SpreadBlobs
from .attempt_dir import AttemptDir
from .checkpoint_spec import check_head
from .checkpoint_spool import ANSWERS, SPOOL, SpoolAnswer, name_of, remove, tell, waiting
from .file_threads import FileThreads, one_by_one
from .isolation.work_folder import owner_of
from .live_attempt import LiveAttempt
from .work_records import WorkSpec

LOOK_S = 0.1
AGAIN_S = 1.0
PACKING_BYTES_MAX = 16 * 2**20
"""What an archive of as many files as may be has beside their content."""
SPREAD_S = 120.0
THREADS = 2
LAST_S = 120.0
"""For how long the last one of an attempt that has ended is tried to be entered, before its end is told without."""
REFUSED = (LedgerRefused, BadRequest, StorageError, NotARegularFile)
"""What trying again does not help with: the next one may be taken."""


@dataclass(slots=True)
class _Copied:
    """A checkpoint that is on this host's disk among the payloads."""

    number: int
    digest: str
    size_bytes: int
    offered: bool = False
    """Whether the ledger was asked to take it, and so may have."""


class _Places(NamedTuple):
    """Where an attempt leaves its checkpoints, and finds what became of them."""

    spool: Path
    answers: Path
    owner: int | None
    """The uid that files in the spool must be of, where the work can put anything there; ``None``: nobody looks."""


def _places_of(directory: AttemptDir, spec: WorkSpec | None) -> _Places:
    has_own = spec is not None and SPOOL_VARIABLE in spec["env"] and owner_of(spec) is not None
    path = directory.path
    return _Places(path / SPOOL, path / ANSWERS, owner_of(spec)) if has_own else _Places(path, path, None)


class CheckpointKeeper:
    """Of one host's attempts."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self.entered_total = 0
        self.refused_total = 0
        self._server = server
        self._ledger = ledger
        self._threads: FileThreads[Callable[[], _Copied], _Copied] = FileThreads(server.runtime, one_by_one, THREADS)
        self._following: set[str] = set()
        self._places: dict[str, _Places] = {}
        self._copied: dict[str, _Copied] = {}
        self._settled: dict[str, int] = {}  # of attempts, the last that was entered or refused: it may not go away
        self._without_room: dict[str, int] = {}  # of attempts, one of those: it was refused as the disk was full
        self._named: dict[str, str] = {}  # of jobs that live, the digest of the last one

    # -- what attempts leave

    def follow(self, attempt: LiveAttempt) -> None:
        """Look after what a running attempt leaves, if it makes checkpoints."""
        attempt_id = attempt.directory.attempt_id
        spec = attempt.directory.read_spec()
        if spec is not None and "checkpoint" in spec and attempt_id not in self._following:
            self._following.add(attempt_id)
            self._places[attempt_id] = _places_of(attempt.directory, spec)
            self._server.spawn(self._follow(attempt))

    async def _follow(self, attempt: LiveAttempt) -> None:
        attempt_id = attempt.directory.attempt_id
        while attempt.link is not None:
            await self._server.sleep(LOOK_S if await self._take(attempt) else AGAIN_S)
        self._following.discard(attempt_id)

    async def take_last(self, attempt: LiveAttempt, outcome: str) -> None:
        """Enter what an attempt has left that is over, before its end is told: the next one begins with that."""
        attempt_id = attempt.directory.attempt_id
        until = self._server.runtime.monotonic() + LAST_S
        while attempt_id in self._following:  # it is about to see the end, or enters one
            await self._server.sleep(LOOK_S / 2)
        while outcome not in ("succeeded", "cancelled") and not await self._take(attempt, is_last=True):
            if self._server.runtime.monotonic() > until:
                self._server.log.warning("the last checkpoint of %s could not be entered", attempt_id)
                break
            await self._server.sleep(AGAIN_S)
        self._copied.pop(attempt_id, None)
        self._settled.pop(attempt_id, None)
        self._without_room.pop(attempt_id, None)
        spool = self._places_of(attempt).spool
        self._places.pop(attempt_id, None)
        remove(spool)  # nobody takes it any more
        if spool != attempt.directory.path:
            remove_tree(spool)

    async def _take(self, attempt: LiveAttempt, *, is_last: bool = False) -> bool:
        """Enter the newest that waits; ``False`` when that has to be tried again.

        On a full disk the last one waits for room: nobody makes another.
        """
        attempt_id = attempt.directory.attempt_id
        places = self._places_of(attempt)
        folder = places.spool
        again = self._without_room.get(attempt_id, 0) if is_last else 0
        settled = self._settled.get(attempt_id, 0)
        numbers = [number for number in waiting(folder) if number > settled or number == again]
        if not numbers:
            return True
        number = numbers[-1]
        error: ActorGridError | None = None
        copied = self._copied.get(attempt_id)
        blobs = self._server.host.paths.blobs_dir
        try:
            # Looked at each time: without a majority for hours, a sweep takes what no job names.
            if copied is None or copied.number != number or not BlobStore(blobs).has(copied.digest):
                if copied is not None and copied.number != number and not copied.offered:
                    self._drop(blobs / copied.digest)
                copied = await self._threads.run(lambda: self._copy(places, attempt_id, number))
                self._copied[attempt_id] = copied
            if self._server.host.enrolment is not None:
                await self._server.call("links", SpreadBlobs((copied.digest,)), SPREAD_S)
            copied.offered = True
            await self._ledger.propose(
                CheckpointAttempt(attempt_id, attempt.token, copied.digest, number, copied.size_bytes)
            )
            self.entered_total += 1
        except FileNotFoundError:
            return True  # a newer one has come
        except REFUSED as refused:
            if is_last and isinstance(refused, DiskFull):
                self._server.log.warning("the last checkpoint of %s waits for room: %s", attempt_id, refused)
                return False
            self.refused_total += 1
            self._server.log.info("checkpoint %d of %s is not taken: %s", number, attempt_id, refused)
            error = refused
        except ActorGridError as failure:
            self._server.log.warning("checkpoint %d of %s is not entered yet: %s", number, attempt_id, failure)
            return False
        size_bytes = 0 if copied is None else copied.size_bytes
        try:
            tell(places.answers, SpoolAnswer(number, size_bytes, None if error is None else error.to_dict()))
        except (OSError, NotARegularFile) as failure:
            self._server.log.warning(
                "what became of checkpoint %d of %s cannot be told: %s", number, attempt_id, failure
            )
        if isinstance(error, DiskFull):
            self._without_room[attempt_id] = (
                number  # its shim takes it away and makes another; if there is none, we try
            )
        else:
            remove(folder, number)
        self._settled[attempt_id] = number
        self._copied.pop(attempt_id, None)
        return True

    def _places_of(self, attempt: LiveAttempt) -> _Places:
        found = self._places.get(attempt.directory.attempt_id)
        if found is None:  # it has ended, and was not followed: most leave nothing
            has_own = os.path.lexists(attempt.directory.path / SPOOL)
            found = _places_of(attempt.directory, attempt.directory.read_spec() if has_own else None)
        return found

    def _copy(self, places: _Places, attempt_id: str, number: int) -> _Copied:
        """Copy a checkpoint among the payloads. Raises FileNotFoundError, BodyTooLarge, DiskFull, StorageError, ..."""
        try:
            return self._copied_from(places, attempt_id, number)
        except FileNotFoundError:
            raise
        except OSError as error:  # the work can take our rights to it away
            raise StorageError(f"the checkpoint cannot be read: {error.strerror}", asked=name_of(number)) from error

    def _copied_from(self, places: _Places, attempt_id: str, number: int) -> _Copied:
        store = BlobStore(self._server.host.paths.blobs_dir)
        with open_to_read(places.spool, name_of(number)) as descriptor:
            facts = os.fstat(descriptor)
            if places.owner is not None and facts.st_uid != places.owner:
                raise NotARegularFile(
                    "what was left as a checkpoint is another name of a file that is not the work's",
                    asked=name_of(number),
                    found=f"of uid {facts.st_uid}",
                )
            size_bytes = facts.st_size
            if size_bytes > CHECKPOINT_BYTES_MAX + PACKING_BYTES_MAX:
                raise BodyTooLarge(
                    "the checkpoint is too large",
                    asked=f"{size_bytes} bytes",
                    found=f"at most {CHECKPOINT_BYTES_MAX}",
                    hint="keep in it what is needed to go on; large data that does not change belongs elsewhere",
                )
            store.check_room(size_bytes + HEAD_BYTES, self._server.host.settings.performance.min_free_bytes)
            with os.fdopen(os.dup(descriptor), "rb") as source:
                digest = store.put_file(source, head_of(attempt_id, number), size_bytes)
        return _Copied(number, digest, size_bytes)

    # -- what is dropped

    def snapshot(self, jobs: Mapping[str, JobRecord]) -> None:
        """Take the jobs as they are, in place of what was known."""
        self._named = {job_id: job["checkpoint_digest"] for job_id, job in jobs.items() if "checkpoint_digest" in job}

    def job_changed(self, job: JobRecord) -> None:
        """Drop the file of the checkpoint before, where the job has a later one: nobody else names it.

        Unless it is none of this job's: a host can have entered the digest of any payload.
        """
        job_id = job["job_id"]
        digest = job.get("checkpoint_digest")
        before = self._named.get(job_id)
        if before is not None and before != digest and is_digest(before):
            self._drop(self._server.host.paths.blobs_dir / before, of_job=job_id)
        if digest is not None and job["state"] not in FINAL_STATES:
            self._named[job_id] = digest
        else:
            self._named.pop(job_id, None)  # its file goes as all payloads of jobs that are over

    def _drop(self, path: Path, of_job: str | None = None) -> None:
        try:
            if of_job is not None:
                with open_to_read(path.parent, path.name) as descriptor:
                    check_head(os.read(descriptor, HEAD_BYTES), of_job)
            path.unlink()
        except (OSError, NotARegularFile, MalformedBody):
            return  # this host never had it, or it is something else
