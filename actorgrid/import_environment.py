"""Where a program imports from, and in which directory it runs: what a client tells the workers that run its functions.

A worker on the client's own machine runs in the client's working directory and imports from where the client does, so
what the client can import by name, it can, too. On another machine these paths would mean something else, or nothing:
there it changes nothing.
"""

from __future__ import annotations

import importlib
import os
import site
import struct
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import msgpack

PATHS_MAX = 256
PATHS_BYTES_MAX = 32 * 1024
SITE_FOLDERS = ("site-packages", "dist-packages")
"""What folders of distributions are called."""
SETTLED_NS = 2 * 10**9
_OF_INTERPRETER = tuple(
    {
        path + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(name)) is not None
    }
)
_IN_SITE_FOLDER = tuple(f"{os.sep}{name}{os.sep}" for name in SITE_FOLDERS)
_FOOTER_MAGIC = b"AGplace1"
_FOOTER = struct.Struct("!I8s")


class ImportEnvironment(NamedTuple):
    """The working directory and ``sys.path`` of a process."""

    machine: str
    """What only processes that see the same files have in common: the boot of the kernel, and its root directory."""
    directory: str
    """Empty where it was removed, or is not to be taken over."""
    before: tuple[str, ...]
    """The entries of ``sys.path`` before the standard library: the script's folder, PYTHONPATH. Absolute."""
    after: tuple[str, ...]
    """Those behind it: where distributions are installed, and what ``.pth`` files add."""

    def to_plain(self) -> dict[str, Any]:
        """The fields, as they are sent. At most ``PATHS_MAX`` entries and ``PATHS_BYTES_MAX`` bytes: the first."""
        before = _bounded(self.before, PATHS_MAX, PATHS_BYTES_MAX)
        used = sum(len(entry.encode("utf-8", "surrogateescape")) for entry in before)
        after = _bounded(self.after, PATHS_MAX - len(before), PATHS_BYTES_MAX - used)
        return {"machine": self.machine, "directory": self.directory, "before": before, "after": after}


def of_plain(fields: Any) -> ImportEnvironment | None:
    """The environment that :meth:`ImportEnvironment.to_plain` gave; ``None`` where *fields* are something else."""
    match fields:
        case {"machine": str(machine), "directory": str(directory), "before": list(before), "after": list(after)}:
            entries = [*before, *after]
            right = all(isinstance(entry, str) and "\0" not in entry for entry in entries)
            if right and len(entries) <= PATHS_MAX and "\0" not in directory:
                return ImportEnvironment(machine, directory, tuple(before), tuple(after))
    return None


def _bounded(entries: Iterable[str], count: int, size_bytes: int) -> list[str]:
    taken: list[str] = []
    for entry in entries:
        size_bytes -= len(entry.encode("utf-8", "surrogateescape"))
        if len(taken) >= count or size_bytes < 0:
            break
        taken.append(entry)
    return taken


def in_site_folder(file: str) -> bool:
    """Whether a file is the interpreter's own, or lies in a folder of distributions of any interpreter."""
    return file.startswith(_OF_INTERPRETER) or any(part in file for part in _IN_SITE_FOLDER)


@cache
def machine() -> str:
    """What tells whether another process sees the files that we see; empty when that is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        root = os.stat("/")
    except OSError:
        return ""
    return f"{boot}:{root.st_dev}:{root.st_ino}"


@cache
def _of_standard_library() -> frozenset[str]:
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib") if name in paths}
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    return frozenset(
        {
            *found,
            *(os.path.join(path, "lib-dynload") for path in found),
            *(os.path.join(os.path.dirname(path), archive) for path in found),
        }
    )


def of_this_process(directory: bool = True, installed: bool = True) -> ImportEnvironment:
    """Where this process is and imports from; without *directory*, only the latter.

    Without *installed*, for a Python that has its own distributions, none of what is behind the standard library.
    """
    try:
        here = os.getcwd()
    except OSError:
        here = ""  # it was removed
    library = _of_standard_library()
    before: dict[str, None] = {}
    after: dict[str, None] = {}
    passed = False
    for entry in sys.path:
        if entry in library:
            passed = True
            continue
        if not isinstance(entry, str) or not (here or os.path.isabs(entry)):
            continue
        path = os.path.normpath(os.path.join(here, entry))
        if _can_be_sent(path):
            (after if passed else before).setdefault(path)
    sent = here if directory and _can_be_sent(here) else ""
    return ImportEnvironment(machine(), sent, tuple(before), tuple(after) if installed else ())


def _can_be_sent(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False  # bytes that are no UTF-8: frames hold text only
    return True


def take(environment: ImportEnvironment) -> bool:
    """Go on from here as *environment* says, if it is of this machine: in its directory, with its entries of sys.path.

    What this process has before the standard library (a PYTHONPATH that was asked for) stays first. The ``.pth`` files
    of folders of distributions are read, so that what was installed as editable meanwhile is found. A directory that
    this process may not enter is not entered. ``False``: it is of another machine, and nothing was changed.
    """
    if not environment.machine or environment.machine != machine():
        return False
    if environment.directory:
        with suppress(OSError):
            os.chdir(environment.directory)
    library = _of_standard_library()
    first = next((number for number, entry in enumerate(sys.path) if entry in library), len(sys.path))
    own = [entry for entry in sys.path if entry in library]
    rest = [entry for entry in sys.path[first:] if entry not in library]
    wanted = [*sys.path[:first], *environment.before, *own, *environment.after, *rest]
    sys.path[:] = dict.fromkeys(wanted)
    for entry in environment.after:
        if os.path.basename(entry) in SITE_FOLDERS:
            _add_site_folder(entry)
    importlib.invalidate_caches()
    return True


class _ReadFolder(NamedTuple):
    """What the ``.pth`` files of a folder of distributions gave when they were read last."""

    facts: tuple[_FileFacts, ...]
    entries: tuple[str, ...]
    """Of sys.path: what the files name, and the folder."""


class _FileFacts(NamedTuple):
    """A ``.pth`` file as it was; the first is the folder itself, with an empty name."""

    name: str
    changed_ns: int
    size: int


_read_folders: dict[str, _ReadFolder] = {}


def _add_site_folder(folder: str) -> None:
    """As ``site.addsitedir``, whose files are read once for as long as nothing in the folder has changed.

    A process that serves many calls does this for each, and reading them took longer than most of the calls.
    """
    read = _read_folders.get(folder)
    if read is not None and all(fact == _facts_of(folder, fact.name) for fact in read.facts):
        sys.path.extend(entry for entry in read.entries if entry not in sys.path)
        return
    _read_folders.pop(folder, None)
    try:
        names = ["", *(name for name in os.listdir(folder) if name.endswith(".pth"))]
    except OSError:
        return  # it is not there
    facts = [_facts_of(folder, name) for name in names]
    before = list(sys.path)
    site.addsitedir(folder, set())  # all that it names is added, whether it is there or not
    entries, kept = sys.path[len(before) :], sys.path[: len(before)] == before
    sys.path[:] = dict.fromkeys(sys.path)
    # What has just changed may change again in the same tick of the file system's clock.
    settled = all(fact is not None and time.time_ns() - fact.changed_ns > SETTLED_NS for fact in facts)
    if settled and kept and not any(_names_what_is_missing(folder, name) for name in names if name):
        if len(_read_folders) >= PATHS_MAX:
            _read_folders.clear()
        _read_folders[folder] = _ReadFolder(tuple(fact for fact in facts if fact is not None), tuple(entries))


def _facts_of(folder: str, name: str) -> _FileFacts | None:
    try:
        found = os.stat(os.path.join(folder, name) if name else folder)
    except OSError:
        return None
    return _FileFacts(name, found.st_mtime_ns, found.st_size)


def _names_what_is_missing(folder: str, name: str) -> bool:
    """Whether a ``.pth`` file cannot be read, or names a folder that may yet come to be."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, ValueError):
        return True
    named = [line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
    return not all(os.path.exists(os.path.join(folder, line)) for line in named)


# -- behind a payload


def with_environment(payload: bytes, environment: ImportEnvironment) -> bytes:
    """*payload* with the environment behind it. Unpickling it gives what it gave before: a pickle ends by itself."""
    packed: bytes = msgpack.packb(environment.to_plain())
    return b"".join([payload, packed, _FOOTER.pack(len(packed), _FOOTER_MAGIC)])


def environment_of(payload: bytes) -> ImportEnvironment | None:
    """The environment behind a payload, if there is one."""
    if len(payload) < _FOOTER.size:
        return None
    size, magic = _FOOTER.unpack(payload[-_FOOTER.size :])
    if magic != _FOOTER_MAGIC or size > len(payload) - _FOOTER.size:
        return None
    try:
        fields = msgpack.unpackb(payload[-_FOOTER.size - size : -_FOOTER.size])
    except (ValueError, msgpack.UnpackException):
        return None
    return of_plain(fields)


def entries_of(variable: str, directory: str) -> Sequence[str]:
    """The entries of a variable like PYTHONPATH, absolute, as they are read in *directory*."""
    return [os.path.normpath(os.path.join(directory, entry)) for entry in variable.split(os.pathsep) if entry]
