"""The working directories that came to this host: each unpacked once, and kept while there is room.

    FOLDER/DIGEST/, DIGEST.lock    what the archive of that SHA-256 holds, and its lock (held_folders.py)
    FOLDER/.build                  held while one is unpacked: one at a time

The processes of users' work unpack what their owner sent, contained as all their doings are; an archive is hostile
until it is unpacked: no name leads out, no link either, and what comes out is counted while it does.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import secrets
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from actorgrid.errors import DiskFull, MalformedBody
from actorgrid.working_dir import CONTENT_BYTES_MAX, FILES_MAX, PATH_BYTES_MAX, leads_out

from .held_folders import DRAFT, HeldFolders

KEPT_MAX = 64
KEPT_BYTES_MAX = 8 * 2**30
PIECE_BYTES = 1 << 20


class WorkingDirs(HeldFolders):
    """The unpacked working directories in *folder*: at most ``KEPT_MAX``, and ``KEPT_BYTES_MAX`` bytes in all."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "working directory", KEPT_MAX, KEPT_BYTES_MAX)

    def has(self, digest: str) -> bool:
        """Whether it is there, whole."""
        return self.path(digest).is_dir()

    def add(self, digest: str, archive: Callable[[], bytes]) -> Path:
        """Have it there, unpacked from *archive* if it is not yet. To be held before.

        Raises MalformedBody for an archive that breaks a bound or leads out, DiskFull when there is no room.
        """
        with self._building():
            path = self.path(digest)
            if path.is_dir():
                return path
            self._clear_drafts()
            draft = self._folder / f"{DRAFT}{secrets.token_hex(8)}"
            try:
                data = archive()
                size_bytes = checked_bytes(data)
                self._make_room(size_bytes)
                unpack(data, draft)
                self._note_size(digest, size_bytes)
                draft.rename(path)
            except OSError as error:
                shutil.rmtree(draft, ignore_errors=True)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskFull("the disk is too full for the working directory", found=str(error)) from error
                raise
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            return path

    @contextmanager
    def _building(self) -> Iterator[None]:
        lock = os.open(self._folder / ".build", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _clear_drafts(self) -> None:
        for left in self._folder.glob(f"{DRAFT}*"):  # of who was killed: nobody else builds now
            shutil.rmtree(left, ignore_errors=True)


# -- archives


def checked_bytes(data: bytes) -> int:
    """The bytes that an archive says it holds. Raises MalformedBody for one that may not be unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise MalformedBody(f"the working directory is no archive: {error}") from error
    if len(infos) > FILES_MAX:
        raise MalformedBody("the working directory holds too many files", found=str(len(infos)), asked=str(FILES_MAX))
    names: set[str] = set()
    links: set[str] = set()
    for info in infos:
        name = info.filename.rstrip("/")
        parts = name.split("/")
        wrong = name.startswith("/") or "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts)
        if wrong or name in names or len(info.filename.encode("utf-8", "replace")) > PATH_BYTES_MAX:
            raise MalformedBody("the working directory holds a path that is not taken", asked=ascii(name)[:200])
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise MalformedBody("the working directory holds what is no file, folder or link", asked=ascii(name)[:200])
        names.add(name)
        if stat.S_ISLNK(info.external_attr >> 16):
            links.add(name)
    for name in names if links else ():
        # By its text a link below a link may stay inside and yet lead out.
        if _parents(name) & links:
            raise MalformedBody("the working directory holds a path through a link", asked=ascii(name)[:200])
    size = sum(info.file_size for info in infos)
    if size > CONTENT_BYTES_MAX:
        raise MalformedBody("the working directory is too large", found=f"{size} bytes", asked=str(CONTENT_BYTES_MAX))
    return size


def _parents(name: str) -> set[str]:
    parts = name.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}


def unpack(data: bytes, folder: Path) -> None:
    """Unpack an archive that was checked into *folder*, which is made. Raises MalformedBody, OSError.

    Links come last, so that nothing is written through one. Files are read-only: what several share is not changed.
    """
    folder.mkdir(mode=0o700)
    links: list[tuple[str, str]] = []
    left_bytes = CONTENT_BYTES_MAX
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                mode, name = info.external_attr >> 16, info.filename.rstrip("/")
                if info.is_dir() or stat.S_ISDIR(mode):
                    (folder / name).mkdir(mode=0o755, parents=True, exist_ok=True)
                    continue
                if stat.S_ISLNK(mode):
                    links.append((name, _link_target(archive, info)))
                    continue
                (folder / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                left_bytes -= _write(archive, info, folder / name, left_bytes, 0o555 if mode & 0o100 else 0o444)
    except (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise MalformedBody(f"the working directory cannot be unpacked: {error}") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise MalformedBody("the working directory holds a file and a folder of one name") from error
    for name, target in links:
        (folder / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        os.symlink(target, folder / name)
    inside = os.path.realpath(folder)
    for name, _ in links:
        # A link to a link: each text stays inside, and together they may not.
        if os.path.commonpath([os.path.realpath(folder / name), inside]) != inside:
            raise MalformedBody("a link leads out of the working directory", asked=ascii(name)[:200])


def _link_target(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    if info.file_size > PATH_BYTES_MAX:
        raise MalformedBody("a link of the working directory is too long", asked=ascii(info.filename)[:200])
    with archive.open(info) as file:
        target = file.read(PATH_BYTES_MAX + 1).decode("utf-8")
    if leads_out(info.filename, target):
        raise MalformedBody("a link leads out of the working directory", asked=ascii(info.filename)[:200])
    return target


def _write(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, bytes_max: int, mode: int) -> int:
    written = 0
    with (
        archive.open(info) as source,
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file,
    ):
        while piece := source.read(PIECE_BYTES):
            written += len(piece)
            if written > bytes_max:
                raise MalformedBody("the working directory holds more than it says", asked=ascii(info.filename)[:200])
            file.write(piece)
    return written
