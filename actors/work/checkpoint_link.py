"""The path by which work knows the directory that follows it: a link to that in the directory in which it runs.

There work may put anything in its place, at any time. Of work at ``full`` it is therefore made and removed with the
rights of its uid, below a directory that is held, and by no link on the way.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from actorgrid.actors.ledger.attempt_ids import attempt_of, job_of, rank_of
from actorgrid.errors import NotARegularFile, WrongState

from .attempt_dir import AttemptDir, is_id
from .checkpoint_spool import DIRECTORY
from .isolation.work_folder import FOLDER, WorkFolder, below, rights_of
from .work_records import CheckpointSpec, WorkSpec

LINK_TRIES = 100


class _LinkPlace(NamedTuple):
    """A name in a folder that is open."""

    within: int
    name: str
    owner: int | None
    """With whose rights it is reached."""
    shown: str

    def target(self, name: str = "") -> Path:
        """Where the link there leads. Raises OSError where there is none."""
        with rights_of(self.owner):
            return Path(os.readlink(name or self.name, dir_fd=self.within))

    def make(self, target: Path) -> None:
        """Raises FileExistsError, OSError."""
        with rights_of(self.owner):
            os.symlink(target, self.name, dir_fd=self.within)

    def rename(self, name: str, to: str) -> None:
        """Raises OSError."""
        with rights_of(self.owner):
            os.rename(name, to, src_dir_fd=self.within, dst_dir_fd=self.within)

    def remove(self, name: str = "") -> None:
        """Remove it, if it is there. Raises OSError."""
        with rights_of(self.owner), suppress(FileNotFoundError):
            os.unlink(name or self.name, dir_fd=self.within)


def link_checkpoint(spec: WorkSpec) -> None:
    """Make the link, before the work begins; where members of a gang share a directory, it is that of rank 0, whose
    files are kept. Raises WrongState where something else has its place, OSError."""
    wanted = spec.get("checkpoint")
    if not wanted or not wanted["folder"]:
        return
    folder = Path(wanted["folder"])
    cwd = WorkFolder(spec, folder.parent)
    if not cwd.may_be_entered:
        return  # the work cannot begin there, as is said when it tries to
    try:
        with _place_of(wanted, cwd) as place:
            for _ in range(LINK_TRIES):
                try:
                    place.make(folder)
                    return
                except FileExistsError:
                    if rank_of(folder.parent.name) and _is_of_same_attempt(place, place.name, folder):
                        return
                    _make_way(place, folder)
    finally:
        cwd.close()
    raise WrongState("another job takes the place of the checkpoint directory just now", asked=wanted["link"])


def unlink_checkpoint(wanted: CheckpointSpec, folder: WorkFolder) -> None:
    """Remove the link, if it is there still. *folder*: in which the work ran."""
    link = Path(wanted["link"])
    with suppress(OSError, NotARegularFile):
        if folder.owner is None:
            if os.readlink(link) == wanted["folder"]:
                link.unlink()
            return
        *parts, name = os.path.relpath(link, folder.path).split(os.sep)
        with folder.opened() as top, below(top, parts, folder.owner) as within:
            place = _LinkPlace(within, name, folder.owner, wanted["link"])
            if place.target() == Path(wanted["folder"]):
                place.remove()


@contextmanager
def _place_of(wanted: CheckpointSpec, folder: WorkFolder) -> Iterator[_LinkPlace]:
    link = Path(wanted["link"])
    if folder.owner is None:
        link.parent.mkdir(parents=True, exist_ok=True)
        within = os.open(link.parent, FOLDER)
        try:
            yield _LinkPlace(within, link.name, None, str(link))
        finally:
            os.close(within)
        return
    *parts, name = os.path.relpath(link, folder.path).split(os.sep)
    with folder.opened() as top, below(top, parts, folder.owner, make=True) as within:
        yield _LinkPlace(within, name, folder.owner, str(link))


def _is_of_same_attempt(place: _LinkPlace, name: str, folder: Path) -> bool:
    try:
        before = place.target(name)
    except OSError:
        return False
    return before.name == DIRECTORY and attempt_of(before.parent.name) == attempt_of(folder.parent.name)


def _remove_former(place: _LinkPlace, folder: Path) -> None:
    """Remove a link of the same job, but not that of rank 0, which may have taken its place just now."""
    aside = f".{place.name[:64]}.{secrets.token_hex(8)}"
    try:
        place.rename(place.name, aside)
    except FileNotFoundError:
        return
    try:
        taken = place.target(aside)
    except OSError:
        place.rename(aside, place.name)  # no link any more: whose it is, the next look says
        return
    if rank_of(folder.parent.name) and rank_of(taken.parent.name) == 0 and _is_of_same_attempt(place, aside, folder):
        place.rename(aside, place.name)
    else:
        place.remove(aside)


def _make_way(place: _LinkPlace, folder: Path) -> None:
    """Remove the link of an attempt that is over. Raises WrongState for anything else in its place."""
    try:
        before = place.target()
    except OSError:
        raise WrongState(
            "something else lies where the checkpoint directory is to be",
            asked=place.shown,
            hint="move it away, or name another path; ACTORGRID_CHECKPOINT_DIR leads there too",
        ) from None
    attempts_dir = folder.parent.parent
    attempt_id = before.parent.name
    if before.name == DIRECTORY and is_id(attempt_id) and job_of(attempt_id) == job_of(folder.parent.name):
        _remove_former(place, folder)  # of an attempt before, also on another host whose files are seen here
        return
    if before.name != DIRECTORY or before.parent.parent != attempts_dir or not is_id(attempt_id):
        raise WrongState(
            "a link lies where the checkpoint directory is to be",
            asked=place.shown,
            found=str(before),
            hint="remove it",
        )
    if AttemptDir(attempts_dir, attempt_id).shim_pid() is not None:
        raise WrongState(
            "a running job has its checkpoint directory in that place",
            asked=place.shown,
            found=attempt_id,
            hint="give each of several jobs in one directory a path of its own: --checkpoint ckpt-1",
        )
    place.remove()
