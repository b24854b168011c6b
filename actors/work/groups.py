"""Cgroups that hold the processes of one attempt: v2 with ``cgroup.kill``, and the freezer of v1."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from .limits import mount_points, own_group, writable_cgroup
from .linux import die_with_parent, read_kernel_file
from .process_tree import living, send

PREFIX = "actorgrid-"
PROBE = f"{PREFIX}probe-"
"""What trials are called, before the number of the process that makes them."""
FREEZE_PATIENCE_S = 0.2  # for v1 to say FROZEN; what sleeps in a driver may take for ever, and is killed all the same
FREEZE_LOOK_S = 0.002
_TRY_S = 2.0
_ABANDONED_S = 60.0  # so old is no trial under way, of a pid that only another pid namespace sees


def group_name(host_tag: str, work_id: str) -> str:
    """The name of one attempt's group, which tells whose it is when everything else is gone."""
    return f"{PREFIX}{host_tag}-{work_id}"


class _Group:
    """What groups of both kinds have in common."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def enter(self) -> None:
        """Move this process in; its children follow. Raises OSError."""
        _write(self.path / "cgroup.procs", "0")

    def members(self) -> list[int]:
        """The processes inside, also of groups below."""
        found: list[int] = []
        for folder, _folders, _files in os.walk(self.path):
            try:
                found += map(int, read_kernel_file(os.path.join(folder, "cgroup.procs")).split())
            except OSError:
                continue  # gone meanwhile, or a threaded group, whose processes the one above lists
        return found

    def remove(self) -> None:
        """Take the empty group away, and those made below it; a busy one stays for the next start to find."""
        for folder, _folders, _files in os.walk(self.path, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                return


class KillGroup(_Group):
    """A cgroup v2. Whatever is forked inside is inside, and one write kills it, forks under way included."""

    def make(self, memory_bytes: int = 0) -> bool:
        """Make the group; whether it holds the memory to the limit. Raises OSError."""
        self.path.mkdir(exist_ok=True)
        return bool(memory_bytes) and self.limit_memory(memory_bytes)

    def limit_memory(self, memory_bytes: int) -> bool:
        """Set a hard memory limit, where the memory controller is handed down; ``False`` where it is not."""
        try:
            (self.path / "memory.max").write_text(str(memory_bytes))
            swap = self.path / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
        except OSError:
            return False
        return True

    def populated(self) -> bool:
        """Whether anything lives inside or below."""
        try:
            return "populated 1" in (self.path / "cgroup.events").read_text()
        except OSError:
            return False  # gone, and only an empty one can go

    def was_exceeded(self) -> bool:
        """Whether the kernel killed anything here for its memory."""
        try:
            events = (self.path / "memory.events").read_text().split()
        except OSError:
            return False
        counts = dict(zip(events[::2], events[1::2], strict=False))
        return int(counts.get("oom_kill", "0")) > 0

    def kill(self) -> None:
        """Kill everything inside and below with SIGKILL."""
        try:
            _write(self.path / "cgroup.kill", "1")
        except OSError:
            return


class FreezerGroup(_Group):
    """A cgroup of v1's freezer. What is frozen does not fork, so the list of what is inside is complete."""

    def make(self, memory_bytes: int = 0) -> bool:
        """Make the group, which limits no memory. Raises OSError."""
        self.path.mkdir(exist_ok=True)
        return False

    def populated(self) -> bool:
        """Whether anything lives inside or below."""
        return bool(living(self.members()))

    def was_exceeded(self) -> bool:
        """Never: this kind of group limits no memory."""
        return False

    def kill(self) -> None:
        """Freeze, SIGKILL, thaw: SIGKILL reaches what is frozen when it is thawed."""
        try:
            _write(self.path / "freezer.state", "FROZEN")
            until = time.monotonic() + FREEZE_PATIENCE_S
            while (self.path / "freezer.state").read_text().strip() != "FROZEN" and time.monotonic() < until:
                time.sleep(FREEZE_LOOK_S)
            for pid in self.members():
                send(pid, signal.SIGKILL)
            _write(self.path / "freezer.state", "THAWED")
        except OSError:
            return


def kill_folder() -> Path:
    """The folder where cgroups with ``cgroup.kill`` can be made, tried out. Raises OSError, of the last place tried.

    First where memory can be limited as well, then below our own group, then beside it.
    """
    mine = own_group("cgroup2")
    if mine is None:
        raise FileNotFoundError(errno.ENOENT, "no cgroup v2 is mounted")
    limiting = writable_cgroup()
    places = [*([limiting] if limiting is not None else []), mine, *([mine.parent] if own_is_below(mine) else [])]
    return _first_that_works(places, KillGroup)


def freezer_folder() -> Path:
    """The folder where groups of v1's freezer can be made, tried out. Raises OSError."""
    mine = own_group("cgroup", "freezer")
    if mine is None:
        raise FileNotFoundError(errno.ENOENT, "no freezer of cgroup v1 is mounted")
    return _first_that_works([mine], FreezerGroup)


def own_is_below(mine: Path) -> bool:
    """Whether our group has one above it that is a cgroup as well."""
    return mine not in map(Path, mount_points("cgroup2"))


def groups_of(folder: Path, host_tag: str) -> list[tuple[str, KillGroup | FreezerGroup]]:
    """The groups in *folder* that are of the work of that data directory: work id and group."""
    prefix = group_name(host_tag, "")
    try:
        names = [name for name in os.listdir(folder) if name.startswith(prefix)]
    except OSError:
        return []
    kind = KillGroup if (folder / "cgroup.controllers").exists() else FreezerGroup
    return [(name[len(prefix) :], kind(folder / name)) for name in names]


def _first_that_works(places: list[Path], kind: type[KillGroup] | type[FreezerGroup]) -> Path:
    failure: OSError | None = None
    for place in places:
        _remove_abandoned(place, kind)
        try:
            _try_out(kind(place / f"{PROBE}{os.getpid()}"))
            return place
        except OSError as error:
            failure = error
    raise failure or OSError(errno.EACCES, "no place for a cgroup")


def _try_out(group: KillGroup | FreezerGroup) -> None:
    """Try a kind of group: make one, put a process in, and see it killed. Raises OSError."""
    group.make()
    child = 0
    try:
        entered_read, entered_write = os.pipe2(os.O_CLOEXEC)
        maker = os.getpid()
        child = os.fork()
        if child == 0:
            _be_member(group, maker, entered_write)
        os.close(entered_write)
        with open(entered_read, "rb", buffering=0) as pipe:
            code = (pipe.read(1) or b"\1")[0]
        if code:
            raise OSError(code, os.strerror(code))
        group.kill()
        until = time.monotonic() + _TRY_S
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                raise OSError(errno.ENOTSUP, "its members cannot be killed")
            time.sleep(FREEZE_LOOK_S)
        child = 0
    finally:
        if child:
            send(child, signal.SIGKILL)
            os.waitpid(child, 0)
        group.remove()


def _be_member(group: KillGroup | FreezerGroup, maker: int, entered: int) -> NoReturn:
    """Be the process that a trial puts in and sees killed. It ends with its maker, which may die at any moment."""
    try:
        die_with_parent(maker)
        code = 0
        try:
            group.enter()
        except OSError as error:
            code = error.errno or 1
        os.write(entered, bytes([min(code, 255)]))
        while not code:
            signal.pause()
    finally:
        os._exit(1)  # nothing of the maker's own goes on here


def _remove_abandoned(place: Path, kind: type[KillGroup] | type[FreezerGroup]) -> None:
    """Take away what trials left that were killed: empty groups, and a frozen member, which nothing else ends."""
    try:
        names = [name for name in os.listdir(place) if name.startswith(PROBE)]
    except OSError:
        return
    for name in names:
        group = kind(place / name)
        try:
            age_s = time.time() - os.stat(group.path).st_mtime
        except OSError:
            continue  # gone meanwhile
        if age_s > _ABANDONED_S and not os.path.exists(f"/proc/{name.removeprefix(PROBE)}"):
            group.kill()
            group.remove()


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
