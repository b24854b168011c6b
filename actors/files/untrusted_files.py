"""Files in folders that users' work can write: opened so that nothing put in their place keeps us or leads elsewhere.

Work that runs as the agent's user can replace whatever lies in its attempt's folder: by a FIFO (opening it waits for
the other end), by a symbolic link (it leads to other files, or to a device), by a folder. So each part of the path that
work can replace is opened by itself, without following links and without waiting, and what was opened has to be a
regular file. Only then it is read or written: what the name stands for afterwards does not matter any more.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actorgrid.errors import NotARegularFile

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)
_PASSES_MAX = 10_000
"""Rounds over one folder that is being removed, while somebody goes on filling it."""


@contextmanager
def open_to_read(folder: Path, name: str) -> Iterator[int]:
    """The descriptor of the regular file *name* in *folder*. Raises NotARegularFile, FileNotFoundError or OSError."""
    with _opened_folder(folder) as within:
        descriptor = _open(folder, within, name, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(fd: int, data: bytes) -> None:
    """Write all of *data*, however many calls that takes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextmanager
def open_with_folder(folder: Path, name: str) -> Iterator[tuple[int, int]]:
    """The descriptors of *folder* and of the regular file *name* in it, to read. Raises as ``open_to_read``."""
    with _opened_folder(folder) as within:
        descriptor = _open(folder, within, name, os.O_RDONLY)
        try:
            yield within, descriptor
        finally:
            os.close(descriptor)


@contextmanager
def open_below(top: Path | int, parts: list[str]) -> Iterator[int]:
    """The descriptor of a regular file below the folder *top*, whose path is of these *parts*: none of them a link.

    *top* is a path, or a descriptor. Raises NotARegularFile, FileNotFoundError, NotADirectoryError or OSError.
    """
    within = os.dup(top) if isinstance(top, int) else os.open(top, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
    folder = Path() if isinstance(top, int) else top
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _SAFE, dir_fd=within)
            os.close(within)
            within = inner
        descriptor = _open(folder.joinpath(*parts[:-1]), within, parts[-1], os.O_RDONLY)
    finally:
        os.close(within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_whole(folder: Path, name: str, bytes_max: int) -> bytes | None:
    """All of the regular file *name* in *folder*; ``None`` when it is larger than *bytes_max*.

    Raises as ``open_to_read``. A sparse file counts with its length, not with its blocks.
    """
    with open_to_read(folder, name) as descriptor:
        if os.fstat(descriptor).st_size > bytes_max:
            return None
        parts, left = [], bytes_max + 1
        while left > 0 and (part := os.read(descriptor, min(left, 2**20))):  # it may grow while it is read
            parts.append(part)
            left -= len(part)
        return b"".join(parts) if left > 0 else None


def size_of(folder: Path, name: str) -> int | None:
    """The length of the regular file *name* in *folder*; ``None`` when there is none."""
    try:
        found = os.lstat(folder / name)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def open_to_write(folder: Path, name: str, flags: int = 0) -> int:
    """A descriptor to write the regular file *name* in *folder*: the one that is there, or a new one of mode 0600.

    A FIFO, a link or a socket in its place is removed first. *flags* are added to those of the opening. Raises
    NotARegularFile for a directory or a device there, or where *folder* is none, and OSError.
    """
    with _opened_folder(folder) as within:
        wanted = os.O_WRONLY | os.O_CREAT | flags
        try:
            return _open(folder, within, name, wanted)
        except NotARegularFile:
            # Nothing else: a device node or a directory that a wrong path leads to is not ours to remove.
            mode = os.lstat(name, dir_fd=within).st_mode
            if not (stat.S_ISFIFO(mode) or stat.S_ISLNK(mode) or stat.S_ISSOCK(mode)):
                raise
            os.unlink(name, dir_fd=within)
        return _open(folder, within, name, wanted | os.O_EXCL)


def remove_tree(folder: Path) -> None:
    """Remove *folder* with all that is in it, as far as we may; links are removed, not followed.

    Folders within folders are brought up before they are emptied, so that neither a path nor the stack grows with how
    deep somebody made them.
    """
    try:
        with _opened_folder(folder) as top:
            for _ in range(_PASSES_MAX):
                names = os.listdir(top)
                if not any([_removed(top, name) for name in names]):
                    break
    except NotARegularFile:
        os.unlink(folder)
    except OSError:
        return  # it is gone already
    try:
        os.rmdir(folder)
    except OSError:
        return


def _removed(top: int, name: str) -> bool:
    """Whether something changed: *name* is gone, or what it held was brought up."""
    try:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
            os.unlink(name, dir_fd=top)
            return True
        try:
            os.rmdir(name, dir_fd=top)
            return True
        except OSError:
            within = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _SAFE, dir_fd=top)
    except OSError:
        return False
    changed = False
    try:
        for inner in os.listdir(within):
            try:
                if stat.S_ISDIR(os.lstat(inner, dir_fd=within).st_mode):
                    os.rename(inner, f"{secrets.token_hex(8)}.up", src_dir_fd=within, dst_dir_fd=top)
                else:
                    os.unlink(inner, dir_fd=within)
                changed = True
            except OSError:
                continue
    finally:
        os.close(within)
    return changed


@contextmanager
def _opened_folder(folder: Path) -> Iterator[int]:
    try:
        within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
    except NotADirectoryError:
        raise _replaced(folder, _kind_of(os.lstat(folder).st_mode), "a directory") from None
    try:
        yield within
    finally:
        os.close(within)


def _open(folder: Path, within: int, name: str, flags: int) -> int:
    try:
        descriptor = os.open(name, flags | _SAFE, 0o600, dir_fd=within)
    except FileNotFoundError:
        raise
    except OSError:
        # A link (ELOOP), a directory that is to be written (EISDIR), a FIFO nobody reads or a socket (ENXIO).
        mode = os.lstat(name, dir_fd=within).st_mode
        if stat.S_ISREG(mode):
            raise
        raise _replaced(folder / name, _kind_of(mode)) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _replaced(folder / name, _kind_of(mode))
    return descriptor


def _kind_of(mode: int) -> str:
    return next((words for test, words in _KINDS if test(mode)), "something else")


def _replaced(path: Path, found: str, wanted: str = "a regular file") -> NotARegularFile:
    return NotARegularFile(
        f"{path.name} of {path.parent.name} was replaced by something that is not read",
        asked=wanted,
        found=found,
        hint="the work itself must have put it there; have it write what is to be kept to standard output",
    )
