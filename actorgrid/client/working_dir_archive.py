"""The archive of a working directory that goes to other hosts: named by its content, the same for the same content.

It is a ZIP file with sorted names and without times. What is generated, or fetched from elsewhere, stays here unless it
is asked for: version control, caches, virtual environments.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from actorgrid.errors import BadRequest, BodyTooLarge
from actorgrid.working_dir import ARCHIVE_BYTES_MAX, CONTENT_BYTES_MAX, FILES_MAX, PATH_BYTES_MAX, leads_out

LEFT_OUT = (
    *(".git", ".hg", ".svn", ".bzr", ".jj"),
    *("__pycache__", "*.pyc", "*.pyo", ".ipynb_checkpoints"),
    *(".venv", "venv", ".tox", ".nox", "node_modules", ".eggs"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".cache", ".coverage", ".DS_Store"),
)
"""Left out whatever is said."""
SHOWN = 5
EPOCH = (1980, 1, 1, 0, 0, 0)


class WorkingDirArchive(NamedTuple):
    """A packed working directory."""

    digest: str
    """SHA-256 of the archive."""
    archive: bytes


class _Entry(NamedTuple):
    path: str
    """Relative, with ``/``."""
    mode: int
    size_bytes: int


def pack(folder: str | os.PathLike[str], exclude: Sequence[str] = ()) -> WorkingDirArchive:
    """Pack *folder* without what matches *exclude* or ``LEFT_OUT``.

    Patterns are those of a shell: one without a slash is held against each name, one with a slash against the path
    from *folder* on; with one at its end it is about folders only. Raises BadRequest for what is no readable folder
    and for a link that leads out of it, BodyTooLarge with the largest files beyond 20,000 files, 512 MiB, or 60 MiB
    when packed.
    """
    root = Path(folder).absolute()
    if not root.is_dir():
        raise BadRequest("the working directory is no directory", asked=str(root), hint="working_dir='.' is this one")
    if isinstance(exclude, str):
        raise BadRequest("exclude is a list of patterns", asked=repr(exclude)[:80], hint=f"exclude=[{exclude!r}]")
    entries = _entries(root, (*LEFT_OUT, *exclude))
    if len(entries) > FILES_MAX or sum(entry.size_bytes for entry in entries) > CONTENT_BYTES_MAX:
        raise _too_large(root, entries, f"{FILES_MAX} files and {CONTENT_BYTES_MAX} bytes")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for entry in entries:
            info = zipfile.ZipInfo(entry.path, EPOCH)
            info.create_system = 3  # Unix: the mode counts
            info.external_attr = entry.mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, _content(root, entry))
            if buffer.tell() > ARCHIVE_BYTES_MAX:
                raise _too_large(root, entries, f"{ARCHIVE_BYTES_MAX} bytes when packed")
    data = buffer.getvalue()
    if len(data) > ARCHIVE_BYTES_MAX:
        raise _too_large(root, entries, f"{ARCHIVE_BYTES_MAX} bytes when packed")
    return WorkingDirArchive(hashlib.sha256(data).hexdigest(), data)


def _entries(root: Path, patterns: Iterable[str]) -> list[_Entry]:
    """What goes along, in the order of its paths; at most a few more than the bounds allow."""
    rules = [_Rule(pattern) for pattern in patterns if pattern.strip("/")]
    found: list[_Entry] = []
    for entry in _walk(root, "", rules):
        if len(entry.path.encode("utf-8", "surrogateescape")) > PATH_BYTES_MAX:
            raise BadRequest("a path of the working directory is too long", asked=entry.path[:200])
        found.append(entry)
        if len(found) > 2 * FILES_MAX:
            break  # refused anyway; what is shown is the largest of these
    return sorted(found)


class _Rule:
    def __init__(self, pattern: str) -> None:
        self._only_folders = pattern.endswith("/")
        self._whole = "/" in pattern.rstrip("/")
        self._pattern = pattern.strip("/")

    def matches(self, path: str, is_folder: bool) -> bool:
        name = path if self._whole else path.rpartition("/")[2]
        return (is_folder or not self._only_folders) and fnmatch.fnmatchcase(name, self._pattern)


def _walk(root: Path, under: str, rules: list[_Rule]) -> Iterator[_Entry]:
    try:
        with os.scandir(root / under) as listed:
            children = list(listed)
    except OSError as error:
        raise _unreadable(under or str(root), error) from error
    for child in children:
        path = f"{under}/{child.name}" if under else child.name
        is_folder = child.is_dir(follow_symlinks=False)
        if any(rule.matches(path, is_folder) for rule in rules):
            continue
        try:
            path.encode()
            mode = child.stat(follow_symlinks=False).st_mode
            size_bytes = child.stat(follow_symlinks=False).st_size
        except UnicodeEncodeError:
            raise BadRequest("a name in the working directory is no UTF-8", asked=ascii(path)[:200]) from None
        except FileNotFoundError:
            continue  # removed meanwhile
        if is_folder:
            yield _Entry(f"{path}/", stat.S_IFDIR | 0o755, 0)
            yield from _walk(root, path, rules)
        elif stat.S_ISLNK(mode):
            if leads_out(path, os.readlink(root / path)):
                raise BadRequest(
                    "a link leads out of the working directory",
                    asked=path,
                    found=f"it leads to {os.readlink(root / path)[:200]}",
                    hint=f"exclude=[{path!r}] leaves it here (--exclude {path})",
                )
            yield _Entry(path, stat.S_IFLNK | 0o777, 0)
        elif stat.S_ISREG(mode):
            yield _Entry(path, stat.S_IFREG | (0o755 if mode & 0o100 else 0o644), size_bytes)


def _content(root: Path, entry: _Entry) -> bytes:
    path = root / entry.path
    try:
        if stat.S_ISDIR(entry.mode):
            return b""
        if stat.S_ISLNK(entry.mode):
            return os.readlink(path).encode()
        with path.open("rb") as file:
            content = file.read(CONTENT_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(entry.path, error) from error
    if len(content) > CONTENT_BYTES_MAX:
        raise BodyTooLarge("a file of the working directory grew while it was read", asked=entry.path)
    return content


def _unreadable(path: str, error: OSError) -> BadRequest:
    return BadRequest(
        f"a part of the working directory cannot be read: {error.strerror}",
        asked=path,
        hint=f"exclude=[{path!r}] leaves it out",
    )


def _too_large(root: Path, entries: list[_Entry], bound: str) -> BodyTooLarge:
    largest = sorted(entries, key=lambda entry: -entry.size_bytes)[:SHOWN]
    shown = ", ".join(f"{entry.path} ({entry.size_bytes} bytes)" for entry in largest)
    return BodyTooLarge(
        "the working directory is too large to travel",
        asked=f"{root}, at most {bound}",
        found=f"{len(entries)} files, {sum(entry.size_bytes for entry in entries)} bytes; the largest: {shown}",
        hint="leave out what the hosts have, or do not need: exclude=['data/', '*.ckpt'] (--exclude)",
        largest=[entry.path for entry in largest],
    )
