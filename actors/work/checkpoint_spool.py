"""The folder of an attempt as the place where its checkpoints wait for the agent.

    ATTEMPT_ID/checkpoint/         the directory whose content follows the job, where it asked for one
    ATTEMPT_ID/checkpoint-7.new    its 7th, whole; renamed into place, by the shim or by an actor
    ATTEMPT_ID/checkpoint.begun    the digest of the directory's listing as it was unpacked, where it was
    ATTEMPT_ID/checkpoint.told     what became of the last one that the agent took (``SpoolAnswer``)

Only the newest counts: with it, those before are removed. So a file waits there while the agent is away, and no more.

An actor at ``full`` has ATTEMPT_ID/spool/ for what it leaves, which is its own, and finds what became of it in
ATTEMPT_ID/answers/, which is the agent's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgpack

from actorgrid.actors.files.untrusted_files import open_to_write, read_whole
from actorgrid.digests import is_digest
from actorgrid.errors import ErrorRecord, NotARegularFile

from .attempt_dir import write_whole

DIRECTORY, UNPACKING = "checkpoint", "checkpoint.unpacking"
SPOOL, ANSWERS = "spool", "answers"
DRAFT = "checkpoint.draft"
TOLD = "checkpoint.told"
BEGUN = "checkpoint.begun"
DIGEST_HEX = 64
TOLD_BYTES_MAX = 64 * 1024
LOOKED_AT_MAX = 1_000
"""How many names of the folder are looked at: there are a few, and work that puts more there holds up nobody."""
_NEW = re.compile(r"checkpoint-([1-9][0-9]{0,8})\.new")


class SpoolAnswer(NamedTuple):
    """What became of a checkpoint, and so of all before it."""

    number: int
    size_bytes: int
    error: ErrorRecord | None
    """Why it is not the job's; ``None``: it is."""


def name_of(number: int) -> str:
    """The name of a checkpoint's file."""
    return f"checkpoint-{number}.new"


def waiting(folder: Path) -> list[int]:
    """The numbers of the checkpoints that wait, the newest last."""
    try:
        with os.scandir(folder) as entries:
            found = [_NEW.fullmatch(entry.name) for entry in islice(entries, LOOKED_AT_MAX)]
    except OSError:
        return []
    return sorted(int(each[1]) for each in found if each is not None)


def leave(folder: Path, number: int, write: Callable[[BinaryIO], object]) -> None:
    """Have *write* fill the file of a checkpoint, and leave it for the agent, on the disk for good.

    Raises OSError, NotARegularFile, and what *write* raises: then nothing is left.
    """
    draft = folder / DRAFT
    try:
        with os.fdopen(open_to_write(folder, DRAFT, os.O_TRUNC), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, folder / name_of(number))
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    remove(folder, number - 1)


def drop_draft(folder: Path) -> None:
    """Remove what a packer that was killed has begun."""
    with suppress(OSError):
        (folder / DRAFT).unlink()


def remove(folder: Path, up_to: int | None = None) -> None:
    """Remove those that wait, up to that number, as far as the work lets us."""
    for number in waiting(folder):
        if up_to is None or number <= up_to:
            with suppress(OSError):  # a folder, say: it goes with that of the attempt
                (folder / name_of(number)).unlink()


def begin_with(folder: Path, listing: str) -> None:
    """Note that the directory began with a *listing* of that digest. Raises OSError, NotARegularFile."""
    write_whole(folder / BEGUN, listing.encode())


def begun_with(folder: Path) -> str:
    """The digest of the listing that the directory began with; empty: nobody knows."""
    try:
        said = (read_whole(folder, BEGUN, DIGEST_HEX) or b"").decode("ascii", "replace")
    except (OSError, NotARegularFile):
        return ""
    return said if is_digest(said) else ""


def tell(folder: Path, answer: SpoolAnswer) -> None:
    """Say what became of a checkpoint. Raises OSError, NotARegularFile."""
    write_whole(folder / TOLD, msgpack.packb(answer._asdict(), use_bin_type=True))
    if folder.name == ANSWERS:
        os.chmod(folder / TOLD, 0o644)  # it is ours, for a uid that reads it; until then that finds none


def told(folder: Path) -> SpoolAnswer | None:
    """What became of the last one that was taken; ``None``: nothing is known yet."""
    try:
        data = read_whole(folder, TOLD, TOLD_BYTES_MAX)
        said = None if data is None else msgpack.unpackb(data, raw=False)
    except (OSError, ValueError, msgpack.UnpackException, NotARegularFile):
        return None
    match said:
        case {"number": int(number), "size_bytes": int(size_bytes), "error": (None | dict()) as error}:
            return SpoolAnswer(number, size_bytes, cast("ErrorRecord | None", error))
    return None
