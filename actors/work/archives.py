"""Archives of directories, which are hostile until they are unpacked: no name leads out, no link either, and what comes
out is counted while it does."""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

from actorgrid.errors import MalformedBody
from actorgrid.working_dir import PATH_BYTES_MAX, leads_out

PIECE_BYTES = 1 << 20


class ArchiveKind(NamedTuple):
    """What is in an archive, and how much of it at most."""

    words: str
    files_max: int
    """Files, links and folders together."""
    bytes_max: int
    """Of all files together."""


def checked_bytes(source: BinaryIO, kind: ArchiveKind) -> int:
    """The bytes that an archive says it holds. Raises MalformedBody for one that may not be unpacked."""
    try:
        with zipfile.ZipFile(source) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise MalformedBody(f"the {kind.words} is no archive: {error}") from error
    if len(infos) > kind.files_max:
        raise MalformedBody(f"the {kind.words} holds too many files", found=str(len(infos)), asked=str(kind.files_max))
    names: set[str] = set()
    links: set[str] = set()
    for info in infos:
        name = info.filename.rstrip("/")
        parts = name.split("/")
        wrong = name.startswith("/") or "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts)
        if wrong or name in names or len(name.encode("utf-8", "replace")) > PATH_BYTES_MAX:
            raise MalformedBody(f"the {kind.words} holds a path that is not taken", asked=ascii(name)[:200])
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise MalformedBody(f"the {kind.words} holds what is no file, folder or link", asked=ascii(name)[:200])
        names.add(name)
        if stat.S_ISLNK(info.external_attr >> 16):
            links.add(name)
    for name in names if links else ():
        # By its text a link below a link may stay inside and yet lead out.
        if _parents(name) & links:
            raise MalformedBody(f"the {kind.words} holds a path through a link", asked=ascii(name)[:200])
    size = sum(info.file_size for info in infos)
    if size > kind.bytes_max:
        raise MalformedBody(f"the {kind.words} is too large", found=f"{size} bytes", asked=str(kind.bytes_max))
    return size


def _parents(name: str) -> set[str]:
    parts = name.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}


def unpack(source: BinaryIO, folder: Path, kind: ArchiveKind, *, writable: bool = False) -> None:
    """Unpack an archive that was checked into *folder*, which is made. Raises MalformedBody, OSError.

    Links come last, so that nothing is written through one. Files are read-only unless *writable*: what several share
    is not changed.
    """
    folder.mkdir(mode=0o700)
    links: list[tuple[str, str]] = []
    left_bytes = kind.bytes_max
    write = 0o222 if writable else 0
    try:
        with zipfile.ZipFile(source) as archive:
            for info in archive.infolist():
                mode, name = info.external_attr >> 16, info.filename.rstrip("/")
                if info.is_dir() or stat.S_ISDIR(mode):
                    (folder / name).mkdir(mode=0o755, parents=True, exist_ok=True)
                    continue
                if stat.S_ISLNK(mode):
                    links.append((name, _link_target(archive, info, kind)))
                    continue
                (folder / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                allowed = (0o555 if mode & 0o100 else 0o444) | write
                left_bytes -= _write(archive, info, folder / name, left_bytes, allowed, kind)
    except (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise MalformedBody(f"the {kind.words} cannot be unpacked: {error}") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise MalformedBody(f"the {kind.words} holds a file and a folder of one name") from error
    for name, target in links:
        (folder / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        os.symlink(target, folder / name)
    inside = os.path.realpath(folder)
    for name, _ in links:
        # A link to a link: each text stays inside, and together they may not.
        if os.path.commonpath([os.path.realpath(folder / name), inside]) != inside:
            raise MalformedBody(f"a link leads out of the {kind.words}", asked=ascii(name)[:200])


def _link_target(archive: zipfile.ZipFile, info: zipfile.ZipInfo, kind: ArchiveKind) -> str:
    if info.file_size > PATH_BYTES_MAX:
        raise MalformedBody(f"a link of the {kind.words} is too long", asked=ascii(info.filename)[:200])
    with archive.open(info) as file:
        target = file.read(PATH_BYTES_MAX + 1).decode("utf-8")
    if leads_out(info.filename, target):
        raise MalformedBody(f"a link leads out of the {kind.words}", asked=ascii(info.filename)[:200])
    return target


def _write(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, bytes_max: int, mode: int, kind: ArchiveKind
) -> int:
    written = 0
    with (
        archive.open(info) as source,
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file,
    ):
        while piece := source.read(PIECE_BYTES):
            written += len(piece)
            if written > bytes_max:
                raise MalformedBody(f"the {kind.words} holds more than it says", asked=ascii(info.filename)[:200])
            file.write(piece)
    return written
