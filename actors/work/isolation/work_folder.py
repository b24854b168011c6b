"""Looking into folders of work at ``full`` from outside of it, where others may change them at the same time.

What its uid owns it can replace at any moment, by a link to what it may not read. So nothing there is opened by a path
that it can change: the directory in which it runs is held from before it begins, each part below is opened by itself
without following links, and all of that with the rights of the work's uid. What it cannot read by itself is not read
for it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from actorgrid.errors import NotARegularFile

from ..work_records import WorkSpec
from . import calls
from .confine import COVERED, is_reached, lies_in, real_path_of
from .own_folders import is_own_cwd

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def owner_of(spec: WorkSpec | None) -> int | None:
    """The uid that owns the folders of work at ``full``; ``None`` of other work: its agent's user can do as much."""
    apart = None if spec is None else spec.get("apart")
    if apart is None or apart["level"] != "full":
        return None
    return apart["uid"] or os.geteuid()


@contextmanager
def rights_of(owner: int | None) -> Iterator[None]:
    """Reach files with no more rights than *owner* has, for as long as this lasts; ``None``: with ours.

    Of a process with one thread. Only its effective uid is another: what could not signal it before cannot now. The
    kernel forgets who its parent is (``die_with_parent``).
    """
    own = os.geteuid()
    if owner is None or owner == own:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(owner)
    os.seteuid(owner)
    try:
        yield
    finally:
        os.seteuid(own)
        os.setegid(group)
        os.setgroups(groups)
        calls.be_dumpable()  # or our own files of /proc would stay the kernel's


def covered_places(owner: int | None) -> frozenset[tuple[int, int]]:
    """The device and inode of what is for everybody on the host, and of which work with a uid of its own has others."""
    found: set[tuple[int, int]] = set()
    for path in COVERED if owner not in (None, os.geteuid()) else ():
        with suppress(OSError):
            facts = os.stat(path)
            found.add((facts.st_dev, facts.st_ino))
    return frozenset(found)


def _is_agents(path: str, spec: WorkSpec) -> bool:
    """Whether files of the agent lie there, or around it, and its own uid would not keep the work from them."""
    hidden = [] if spec["apart"]["uid"] else spec["apart"]["hidden"]
    return any(lies_in(folder, path) or lies_in(path, folder) for folder in map(os.path.realpath, hidden))


class WorkFolder:
    """The directory in which an attempt runs, for its shim. *attempt*: the attempt's folder."""

    def __init__(self, spec: WorkSpec, attempt: Path) -> None:
        self.owner = owner_of(spec)
        self.path = spec.get("cwd", "/")
        # What lies there is made before the work begins, in a folder in which it can replace nothing.
        self._is_own = is_own_cwd(self.path, str(attempt))
        self._held = -1
        if self.owner is not None and not self._is_own and ("outputs" in spec or "checkpoint" in spec):
            with rights_of(self.owner), suppress(OSError):  # then it cannot begin there either
                held = os.open(self.path, FOLDER)
                if is_reached(held) and not _is_agents(real_path_of(held), spec):
                    self._held = held
                else:
                    os.close(held)

    @property
    def may_be_entered(self) -> bool:
        """Whether its owner may come there, as far as anybody asked."""
        return self.owner is None or self._is_own or self._held >= 0

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of it, for paths below it. Raises NotARegularFile where another lies there by now, OSError."""
        if self.owner is None or self._is_own:
            held = os.open(self.path, FOLDER | (0 if self.owner is None else os.O_NOFOLLOW))
            try:
                yield held
            finally:
                os.close(held)
            return
        if not self.may_be_entered:
            raise PermissionError(errno.EACCES, "the work may not enter that directory")
        with rights_of(self.owner):
            found = os.stat(self.path)
        if not os.path.samestat(found, os.fstat(self._held)):
            raise NotARegularFile(
                "another directory lies where the work began",
                asked=self.path,
                hint="while it ran, the directory was moved away, or a link was put in its place",
            )
        yield self._held

    def close(self) -> None:
        """Hold it no longer."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


@contextmanager
def below(top: int, parts: list[str], owner: int | None, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder below *top* whose path is of these *parts*, none of them a link. To be used with the
    rights of *owner*. *make*: those that are not there are made. Raises OSError."""
    held = [top]
    try:
        with rights_of(owner):
            for part in parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=held[-1])
                held.append(os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=held[-1]))
        yield held[-1]
    finally:
        for fd in held[1:]:
            os.close(fd)
