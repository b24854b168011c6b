"""Packing the directory whose content follows a job: what lies there as one archive, or nothing.

Work may write into it at the same time, and what it wrote may be anything. So nothing is opened through a link or
waited for, what is neither file, folder nor link inside of the directory stays behind, and what has changed between a
first look and the last byte is no checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from actorgrid.actors.files.untrusted_files import open_below
from actorgrid.checkpoints import CHECKPOINT_BYTES_MAX, FILES_MAX, READY_MARK, UNFINISHED
from actorgrid.errors import BodyTooLarge, MalformedBody, NotARegularFile
from actorgrid.working_dir import PATH_BYTES_MAX, leads_out

from .archives import ArchiveKind

PACKED = ArchiveKind("checkpoint", FILES_MAX, CHECKPOINT_BYTES_MAX)
DEPTH_MAX = 64
HOPS_MAX = 40
"""Links on one way, as the kernel follows."""
PIECE_BYTES = 1 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ChangedMeanwhile(Exception):
    """A file of the directory changed while it was packed."""


class PackedEntry(NamedTuple):
    """A file, folder or link that goes along."""

    path: str
    mode: int
    inode: int
    size_bytes: int
    modified_ns: int
    target: str
    """Of a link, where it leads."""


class DirectoryListing(NamedTuple):
    """What lies in a directory."""

    entries: tuple[PackedEntry, ...]
    left_out: tuple[str, ...]
    """The paths of what never goes along: devices, FIFOs, sockets, links that lead out. The first few."""

    @property
    def newest_ns(self) -> int:
        """When a file of it was last modified, in nanoseconds since the epoch."""
        return max((entry.modified_ns for entry in self.entries), default=0)

    @property
    def digest(self) -> str:
        """The same for the same files, unchanged."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest()


def list_directory(folder: Path | int, owner: int | None = None) -> DirectoryListing:
    """Look at what lies in *folder*, a path or a descriptor, without what is not finished and without the mark.

    *owner*: files of other uids are left out, which are there by another name. Raises BodyTooLarge, MalformedBody for a
    name that is no UTF-8 or too long, NotADirectoryError, OSError.
    """
    entries: list[PackedEntry] = []
    left_out: list[str] = []
    size_bytes = 0
    top = os.dup(folder) if isinstance(folder, int) else os.open(folder, _FOLDER)
    try:
        for entry in _walk(top, "", 0, owner):
            kind = stat.S_IFMT(entry.mode)
            is_out = kind == stat.S_IFLNK and not _is_taken(entry)
            if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK) or is_out:
                left_out.append(entry.path)
            else:
                entries.append(entry)
                size_bytes += entry.size_bytes
            if len(entries) + len(left_out) > FILES_MAX or size_bytes > CHECKPOINT_BYTES_MAX:
                raise BodyTooLarge(
                    "the directory is too large for a checkpoint",
                    asked=f"at most {FILES_MAX} files and {CHECKPOINT_BYTES_MAX} bytes",
                    found=f"{len(entries) + len(left_out)} files and {size_bytes} bytes up to {entry.path[:200]}",
                    hint="remove old files there once newer ones are whole; a sparse file counts with its length",
                )
    finally:
        os.close(top)
    # What cannot be unpacked must not be packed: it would be what every later attempt fails with.
    links = {entry.path: entry.target for entry in entries if stat.S_ISLNK(entry.mode)}
    out = {path for path in links if _escapes(path, links)}
    left_out += sorted(out)
    return DirectoryListing(tuple(sorted(each for each in entries if each.path not in out)), tuple(left_out[:5]))


def _is_taken(link: PackedEntry) -> bool:
    """Whether whoever unpacks takes a link, going by its text."""
    try:
        return len(link.target.encode()) <= PATH_BYTES_MAX and not leads_out(link.path, link.target)
    except UnicodeEncodeError:
        return False


def _escapes(path: str, links: Mapping[str, str]) -> bool:
    """Whether following a link leads out by way of other links, or to no end."""
    at: list[str] = []
    ahead = path.split("/")[::-1]
    hops = 0
    while ahead:
        part = ahead.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                return True
            at.pop()
            continue
        at.append(part)
        target = links.get("/".join(at))
        if target is not None:
            hops += 1
            if hops > HOPS_MAX:
                return True
            at.pop()
            ahead += target.split("/")[::-1]
    return False


def _walk(within: int, under: str, depth: int, owner: int | None) -> Iterator[PackedEntry]:
    with os.scandir(within) as found:  # one after another: there may be millions
        yield from _walk_names((each.name for each in found), within, under, depth, owner)


def _walk_names(names: Iterator[str], within: int, under: str, depth: int, owner: int | None) -> Iterator[PackedEntry]:
    for name in names:
        path = f"{under}/{name}" if under else name
        if name.endswith(UNFINISHED) or path == READY_MARK:
            continue
        try:
            length = len(path.encode())
        except UnicodeEncodeError:
            raise MalformedBody("a name in the directory is no UTF-8", asked=ascii(path)[:200]) from None
        if length > PATH_BYTES_MAX or "\\" in path or depth > DEPTH_MAX:
            raise MalformedBody(
                "a path of the directory cannot go along",
                asked=ascii(path)[:200],
                found=f"at most {PATH_BYTES_MAX} bytes, {DEPTH_MAX} folders deep, no backslash",
            )
        try:
            facts = os.lstat(name, dir_fd=within)
            target = os.readlink(name, dir_fd=within) if stat.S_ISLNK(facts.st_mode) else ""
        except FileNotFoundError:
            continue  # removed meanwhile
        is_file = stat.S_ISREG(facts.st_mode)
        size_bytes, modified_ns = (facts.st_size, facts.st_mtime_ns) if is_file else (0, 0)
        mode = 0 if is_file and owner is not None and facts.st_uid != owner else facts.st_mode  # of no kind that goes
        yield PackedEntry(path, mode, facts.st_ino, size_bytes, modified_ns, target)
        if stat.S_ISDIR(facts.st_mode):
            try:
                inner = os.open(name, _FOLDER, dir_fd=within)
            except (FileNotFoundError, NotADirectoryError):
                continue  # replaced meanwhile, which the second look finds
            try:
                yield from _walk(inner, path, depth + 1, owner)
            finally:
                os.close(inner)


def pack(folder: Path | int, listing: DirectoryListing, target: BinaryIO, owner: int | None = None) -> None:
    """Write the archive of what was listed, of the same *owner*. Raises ChangedMeanwhile, OSError."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for entry in listing.entries:
            is_folder = stat.S_ISDIR(entry.mode)
            info = zipfile.ZipInfo(f"{entry.path}/" if is_folder else entry.path, _EPOCH)
            info.create_system = 3  # Unix: the mode counts
            if is_folder:
                info.external_attr = (stat.S_IFDIR | 0o755) << 16
                archive.writestr(info, b"")
            elif stat.S_ISLNK(entry.mode):
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
                archive.writestr(info, entry.target.encode("utf-8", "surrogateescape"))
            else:
                info.external_attr = (stat.S_IFREG | (0o755 if entry.mode & 0o100 else 0o644)) << 16
                _pack_file(folder, entry, info, archive)
    try:
        after = list_directory(folder, owner)
    except FileNotFoundError:
        raise _changed(str(folder)) from None
    if after.entries != listing.entries:
        changed = sorted({entry.path for entry in {*after.entries} ^ {*listing.entries}})
        raise _changed(", ".join(changed[:3]))


def _pack_file(folder: Path | int, entry: PackedEntry, info: zipfile.ZipInfo, archive: zipfile.ZipFile) -> None:
    info.file_size = entry.size_bytes
    try:
        with open_below(folder, entry.path.split("/")) as descriptor, archive.open(info, "w") as packed:
            left = entry.size_bytes
            while left and (piece := os.read(descriptor, min(left, PIECE_BYTES))):
                packed.write(piece)
                left -= len(piece)
            facts = os.fstat(descriptor)
    except (FileNotFoundError, NotADirectoryError, NotARegularFile):
        raise _changed(entry.path) from None
    if left or (facts.st_ino, facts.st_size, facts.st_mtime_ns) != (entry.inode, entry.size_bytes, entry.modified_ns):
        raise _changed(entry.path)


def _changed(path: str) -> ChangedMeanwhile:
    return ChangedMeanwhile(f"it changed while it was packed: {path[:200]}")
