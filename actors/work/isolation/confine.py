"""What the child of a shim does to itself before it becomes users' work, so that it is kept from what is not its own.

At ``basic``, the agent's keys and records are covered by empty mounts, and nothing that is executed gains privileges: a
job does not come across them, and one that runs as root can uncover them on purpose. At ``full``, it becomes another
uid that has nothing on the host, in mount, ipc and uts namespaces of its own, without capabilities, and behind a filter
of system calls. The order matters: mounts need root, a filter would refuse them, and a change of uid forgets who our
parent is.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..apart_records import ApartSpec
from ..linux import (
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWUTS,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SLAVE,
    die_with_parent,
    mount,
    unshare,
)
from . import calls
from .own_folders import SECRETS, TMP, is_own_cwd
from .own_sockets import DOORS

_COVER = MS_NOSUID | MS_NODEV | MS_NOEXEC
_COVER_OPTIONS = "mode=0711,size=256k"
_OWN_CODE = (sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[3]))
_SHARED_MEMORY = "/dev/shm"  # nosec B108 - where it is on Linux
_TEMPORARY = ("/tmp", "/var/tmp")  # nosec B108 - covered, not used
COVERED = (*_TEMPORARY, _SHARED_MEMORY, "/proc")
"""Of these work at ``full`` has its own, unless its directory is one of them."""
_SHARED_FILES_MAX = 262_144
"""In ``/dev/shm`` of its own: each takes a KiB of the kernel's memory, which nobody counts where there is no cgroup."""


def hide(paths: list[str]) -> None:
    """Have nothing at *paths*, in a mount namespace of our own. Raises OSError."""
    unshare(CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_SLAVE)
    for path in paths:
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(mode):
            mount("actorgrid", path, "tmpfs", _COVER, _COVER_OPTIONS)
        elif stat.S_ISREG(mode):
            mount(os.devnull, path, None, MS_BIND)


def confine_a_little(spec: ApartSpec) -> None:
    """At ``basic``. What cannot be had here is left out: the host has said so already (probes.py)."""
    if spec["hidden"]:
        with suppress(OSError):
            hide(spec["hidden"])
    if spec["no_new_privs"]:
        with suppress(OSError):
            calls.gain_no_privileges()


def enter_own_namespaces(spec: ApartSpec, cwd: str) -> None:
    """Have mounts, System V's shared memory and host name of our own. Raises OSError.

    Of the data directory there is the attempt's own folder, its user's environments and what it is to read, and of the
    runtime directory its own sockets and the agent's doors. /tmp, /var/tmp and /dev/shm are its own. *cwd* is there,
    wherever it lies, if its uid may enter it.
    """
    attempt = spec["attempt"]
    # Members of a gang on one host speak over shared memory.
    unshare(CLONE_NEWNS | CLONE_NEWUTS | (0 if spec["gang"] else CLONE_NEWIPC))
    mount("none", "/", None, MS_REC | MS_SLAVE)
    # From here on: what is opened in another mount namespace cannot be mounted in this one.
    tmp = os.open(os.path.join(attempt, TMP), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    shared = [spec["environments"]] if "environments" in spec else []
    paths = dict.fromkeys((attempt, *spec["read"], *shared, *_OWN_CODE))
    kept = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in paths}
    sockets: list[tuple[str, int]] = []
    if "sockets" in spec:
        at, folder = spec["sockets"]["at"], spec["sockets"]["own"]
        for place, source in ((at, folder), (os.path.join(at, DOORS), os.path.join(at, DOORS))):
            sockets.append((place, os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)))
    memory = -1
    if "shared_memory" in spec and not spec["gang"]:
        memory = os.open(spec["shared_memory"], os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    secrets = os.open(spec["secrets"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if "secrets" in spec else -1
    above: dict[str, int] = {}
    # Its home is the usual case, and ours alone until it begins: nothing there has to be followed.
    if not is_own_cwd(cwd, attempt):
        # One that lies around what is hidden comes before it: over it, it would uncover it, and cover our own folder.
        hides_it = any(is_below(cwd, folder) for folder in spec["hidden"])
        (kept if hides_it else above)[cwd] = _opened_as(cwd, spec["uid"])
    shut = _shut_around((*kept, *spec["hidden"]))
    for folder in _TEMPORARY:
        if os.path.isdir(folder):
            mount(f"/proc/self/fd/{tmp}", folder, None, MS_BIND)
    if memory >= 0:
        mount(f"/proc/self/fd/{memory}", _SHARED_MEMORY, None, MS_BIND)
        os.close(memory)
    elif not spec["gang"] and os.path.isdir(_SHARED_MEMORY):
        size = spec.get("shared_memory_bytes") or "50%"
        options = f"mode=1777,nr_inodes={_SHARED_FILES_MAX},size={size}"
        mount("actorgrid", _SHARED_MEMORY, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for folder in shut:
        # Our own lies in a folder that others may not enter, root's home maybe: there is nothing but our own in it now.
        if os.path.isdir(folder):  # not below one of those
            mount("actorgrid", folder, "tmpfs", _COVER, _COVER_OPTIONS)
    for path, held in above.items():
        _uncover(path, held)
    for folder in spec["hidden"]:
        os.makedirs(folder, mode=0o711, exist_ok=True)  # where it lay below one of those, there is none now
        mount("actorgrid", folder, "tmpfs", _COVER, _COVER_OPTIONS)
    for path, held in kept.items():
        _uncover(path, held)
    for path, held in sockets:
        os.makedirs(path, mode=0o711, exist_ok=True)
        mount(f"/proc/self/fd/{held}", path, None, MS_BIND)
    if secrets >= 0:
        place = os.path.join(attempt, SECRETS)
        mount(f"/proc/self/fd/{secrets}", place, None, MS_BIND)
        mount("none", place, None, MS_BIND | MS_REMOUNT | MS_RDONLY | _COVER)  # in memory of the host's: not to fill
        os.close(secrets)
    for held in (tmp, *above.values(), *kept.values(), *(held for _, held in sockets)):
        os.close(held)
    with suppress(OSError):  # in a container, where parts of /proc are covered
        mount("proc", "/proc", "proc", _COVER, "hidepid=2")


def become(spec: ApartSpec, parent_pid: int) -> None:
    """Be the uid of the work, for good and with nothing beyond. Raises OSError."""
    uid = spec["uid"]
    calls.drop_bounding_set()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    die_with_parent(parent_pid)  # the kernel forgot it with the change of uid
    calls.be_dumpable()  # or our own files of /proc would be root's
    calls.gain_no_privileges()
    calls.refuse_calls()


def is_below(path: str, folder: str) -> bool:
    """Whether *path* is *folder*, or lies in it."""
    return lies_in(os.path.realpath(path), os.path.realpath(folder))


def lies_in(path: str, folder: str) -> bool:
    """The same of two absolute paths that are resolved already."""
    return os.path.commonpath([path, folder]) == folder


def real_path_of(held: int) -> str:
    """The path of what is opened."""
    return os.readlink(f"/proc/self/fd/{held}")


def is_reached(held: int) -> bool:
    """Whether what is opened can be come to by its own path with the rights that we have now: links in /proc lead to
    what is open, past folders that would not let one in."""
    with suppress(OSError):
        return os.path.samestat(os.stat(real_path_of(held)), os.fstat(held))
    return False


def _opened_as(path: str, uid: int) -> int:
    """A directory, opened with the rights of *uid*: what it may not enter, it does not get by naming it as its own."""
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)
    try:
        held = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if not os.access(f"/proc/self/fd/{held}", os.X_OK, effective_ids=True) or not is_reached(held):
            raise PermissionError(13, "Permission denied")
        return held
    finally:
        os.seteuid(0)
        os.setegid(0)


def _shut_around(paths: Iterable[str]) -> list[str]:
    """The topmost folder around each of *paths* that not everybody may enter, where there is one; in order."""
    entered, shut = set(), set()
    for path in paths:
        folder = ""
        for part in path.split(os.sep)[1:-1]:
            folder = f"{folder}{os.sep}{part}"
            if folder in shut:
                break
            if folder not in entered:
                if os.path.isdir(folder) and not os.stat(folder).st_mode & stat.S_IXOTH:
                    shut.add(folder)
                    break
                entered.add(folder)
    return sorted(shut)


def _uncover(path: str, held: int) -> None:
    """Have what is opened as *held* at *path*, where it is covered now."""
    with suppress(OSError):
        if os.path.samestat(os.stat(path), os.fstat(held)):
            return
    if stat.S_ISDIR(os.fstat(held).st_mode):
        os.makedirs(path, mode=0o711, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), mode=0o711, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    mount(f"/proc/self/fd/{held}", path, None, MS_BIND | MS_REC)
