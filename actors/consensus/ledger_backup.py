"""Backups of the ledger: one file, made beside a running host, and a ledger made from it that fences off the old one.

The file is a tar of the log's segments, ``state.db`` and, last, ``manifest.json`` with the SHA-256 of each: a file that
was cut short has none. A restore applies all that was committed and starts a new recovery epoch: tokens are
(epoch, index), so whatever was granted after the backup was made, or by another ledger restored from it, is older than
every token from now on. The epoch is the restore's time in seconds where that is more than one more than the last.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import NewTerm
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.messages import ConfState, HardState
from actorgrid.actors.raft.storage.disk import members_to_text
from actorgrid.actors.raft.storage.log import Reset, SegmentLog
from actorgrid.actors.raft.storage.segments import NO_ROOM, segment_paths
from actorgrid.actors.raft.storage.store import Store
from actorgrid.configs.fsync import sync_folder
from actorgrid.errors import BadRequest, DataDirUnusable, DiskFull, LogCorrupted, StorageError

from .history import WRITE_AT_ROWS, History
from .ledger_check import Checked, Report, check, copy_store

FORMAT = 1
MANIFEST = "manifest.json"
TRIES = 5
CHUNK_BYTES = 2**20
FIRST_SEGMENT_BYTES = 2**24


def backup(folder: Path, target: Path, report: Report) -> dict[str, Any]:
    """Write what the ledger in *folder* holds now to the new file *target*; what it holds, for people.

    It is checked before it gets its name. Raises BadRequest when *target* exists, and as ``ledger_check.check`` does.
    """
    if target.exists():
        raise BadRequest("that file exists already", asked=str(target), hint="give the backup a name of its own")
    if not target.parent.is_dir():
        raise BadRequest("there is no such folder", asked=str(target.parent), hint="make it first")
    with our_errors(target), tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as name:
        staging = Path(name)
        found = _consistent_copy(folder, staging / "ledger", report)
        partial = staging / target.name
        facts = _facts(found)
        _pack(staging / "ledger", partial, facts, report)
        # A link is refused where a rename would replace what came there meanwhile.
        os.link(partial, target)
        sync_folder(target.parent)
    return {"path": str(target), "bytes": target.stat().st_size, **facts}


def _consistent_copy(folder: Path, copy: Path, report: Report) -> Checked:
    """Copy the store first, then the log, which so reaches at least as far.

    Tried again when segments went meanwhile.
    """
    for attempt in range(TRIES):
        shutil.rmtree(copy, ignore_errors=True)
        (copy / "segments").mkdir(parents=True)
        if not (folder / "segments").is_dir():
            raise DataDirUnusable("there is no ledger here", asked=str(folder), hint="name the host's with --data-dir")
        if (folder / "state.db").exists():
            copy_store(folder / "state.db", copy / "state.db")
        try:
            paths = segment_paths(folder / "segments")
            for number, path in enumerate(paths, 1):
                shutil.copyfile(path, copy / "segments" / path.name)
                report("copying", number, len(paths))
            return check(copy, report)
        except (FileNotFoundError, LogCorrupted):
            # The host may have dropped segments behind a newer snapshot between the two copies.
            if attempt == TRIES - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _facts(found: Checked) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "index": found.committed_index,
        "last_index": found.log.last_index,
        "term": found.state.term,
        "epoch": found.state.epoch,
    }


def _pack(folder: Path, target: Path, facts: dict[str, Any], report: Report) -> None:
    files = [path for path in (folder / "state.db", *segment_paths(folder / "segments")) if path.exists()]
    sums: dict[str, str] = {}
    with target.open("wb") as raw:
        os.fchmod(raw.fileno(), 0o600)
        with tarfile.open(fileobj=raw, mode="w") as tar:
            for number, path in enumerate(files, 1):
                name = str(path.relative_to(folder))
                sums[name] = _sha256(path)
                info = tarfile.TarInfo(name)
                info.size, info.mode = path.stat().st_size, 0o600
                with path.open("rb") as file:
                    tar.addfile(info, file)
                report("packing", number, len(files))
            manifest = json.dumps({**facts, "sha256": sums}).encode()
            info = tarfile.TarInfo(MANIFEST)
            info.size, info.mode = len(manifest), 0o600
            tar.addfile(info, io.BytesIO(manifest))
        raw.flush()
        os.fsync(raw.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- restoring


def restore(source: Path, folder: Path, at: float, members: ConfState, replace: bool, report: Report) -> dict[str, Any]:
    """Make the ledger in *folder* what *source* holds, in a new epoch, with *members*; what there is then, for people.

    The caller holds the host's lock. *at* is the time now, in seconds since 1970. A ledger that is there is refused,
    or with *replace* kept beside as ``ledger.before-restore-N``. Until the last step, two renames, nothing of it is
    touched. Raises BadRequest, LogCorrupted for a backup that is damaged, DiskFull, StorageError.
    """
    there = (folder / "segments").is_dir() and any((folder / "segments").iterdir())
    if there and not replace:
        raise BadRequest(
            "there is a ledger here already",
            asked=str(folder),
            hint="with --replace it is put aside, as ledger.before-restore-N, and kept",
        )
    with our_errors(folder), tempfile.TemporaryDirectory(prefix=".restoring-", dir=folder.parent) as name:
        staging = Path(name) / "ledger"
        _unpack(source, staging, report)
        done = begin_epoch(staging, at, members, report)
        kept = put_in_place(staging, folder, "before-restore")
    return {"path": str(folder), "kept": str(kept) if kept else None, **done}


def _unpack(source: Path, staging: Path, report: Report) -> None:
    """Unpack only files of the names that a backup has, each with the checksum that the manifest says."""
    (staging / "segments").mkdir(parents=True, mode=0o700)
    sums: dict[str, str] = {}
    manifest: dict[str, Any] = {}
    try:
        with tarfile.open(source, mode="r:") as tar:
            for number, info in enumerate(tar, 1):
                file = tar.extractfile(info) if info.isreg() else None
                if file is None or manifest:
                    raise _damaged(source, f"{info.name} does not belong there")
                if info.name == MANIFEST:
                    manifest = json.loads(file.read(CHUNK_BYTES * 16))
                    continue
                parts = Path(info.name).parts
                if parts != ("state.db",) and not (len(parts) == 2 and parts[0] == "segments" and ".." not in parts):
                    raise _damaged(source, f"{info.name} does not belong there")
                sums[info.name] = _copy_out(file, staging / info.name)
                report("unpacking", number, 0)
    except FileNotFoundError:
        raise BadRequest("there is no such backup", asked=str(source)) from None
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise _damaged(source, str(error)) from error
    if not manifest:
        raise _damaged(source, "it is not whole")
    if manifest.get("format") != FORMAT:
        raise BadRequest(f"the backup is of format {manifest.get('format')}", found=f"this version knows {FORMAT}")
    if manifest.get("sha256") != sums:
        raise _damaged(source, "a file fails its checksum")


def _copy_out(file: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("xb") as copy:
        os.fchmod(copy.fileno(), 0o600)
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
    return digest.hexdigest()


def begin_epoch(
    staging: Path,
    at: float,
    members: ConfState,
    report: Report,
    *,
    whole: bool = False,
    also: Callable[[Ledger], list[Command]] = lambda _: [],
) -> dict[str, Any]:
    """Apply what the log in *staging* holds (*whole*: as in ``check``), then an entry that begins a new term and epoch,
    then those that *also* asks for; the log starts after them. Raises what the ledger refuses these with."""
    store = Store(staging / "state.db")
    try:
        history = History(store)

        def keep(outcome: Outcome) -> None:
            history.keep(outcome)
            if history.waiting > WRITE_AT_ROWS:
                history.write(outcome.index)

        found = check(staging, report, keep, whole=whole)
        state = found.state
        stored = found.log.hard_state.term if found.log.hard_state else 0
        term = max(state.term, found.log.last_term, stored) + 1
        epoch = max(state.epoch + 1, int(at))
        index = state.index + 1
        keep(state.apply(index, NewTerm(term, at=at, epoch=epoch)))
        assert (state.term, state.epoch) == (term, epoch), "the ledger refused the new epoch"
        for command in also(state):
            index += 1
            outcome = state.apply(index, command)
            if outcome.error is not None:
                raise outcome.error
            keep(outcome)
        history.write(index)
        store.save_snapshot(index, term, state.snapshot(), members_to_text(members))
    finally:
        store.close()
    shutil.rmtree(staging / "segments")
    log = SegmentLog.open(staging / "segments", FIRST_SEGMENT_BYTES)
    try:
        log.write([Reset(index, term), HardState(term, 0, index)])
    finally:
        log.close()
    report("restoring", 1, 1)
    return {"index": index, "term": term, "epoch": epoch, "jobs": len(state.jobs), "hosts": len(state.hosts)}


def put_in_place(staging: Path, folder: Path, word: str) -> Path | None:
    """Make *staging* the ledger; what was there is kept beside it under that *word*, and named."""
    kept: Path | None = None
    sync_folder(staging)
    if folder.exists() and any(folder.iterdir()):
        kept = _free_name(folder, word)
        folder.rename(kept)
    elif folder.exists():
        folder.rmdir()
    staging.rename(folder)
    sync_folder(folder.parent)
    return kept


def _free_name(folder: Path, word: str) -> Path:
    number = 1
    while (name := folder.with_name(f"{folder.name}.{word}-{number}")).exists():
        number += 1
    return name


def _damaged(source: Path, reason: str) -> LogCorrupted:
    return LogCorrupted(
        f"the backup is damaged: {reason}", asked=str(source), hint="use another backup; this one was not used"
    )


@contextlib.contextmanager
def our_errors(where: Path) -> Iterator[None]:
    """Context that turns the system's errors about files near *where* into named ones."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull("no room for the copy", asked=str(where), hint="free some space") from error
        raise StorageError(f"{error.strerror or error}", asked=str(error.filename or where)) from error
