"""What is kept on disk of ended work, and what is cleared away."""

from __future__ import annotations

import os
import socket
import stat
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from actorgrid.supervisors.server import Server
from actorgrid.transports.user_actor_frames import FOLDER_PREFIX, OWNER_FILE, is_locked

from ..files.untrusted_files import remove_tree
from ..ledger.attempt_ids import job_of
from .attempt_dir import AttemptDir, is_id
from .containers import REMOVE_S, ContainerRemoval
from .containment import RECORD, end_left, read_record, remove_record, unrecorded
from .groups import groups_of
from .isolation.own_sockets import DOORS
from .process_tree import find_marked
from .work_records import WorkStatus

SAY_AGAIN_S = 5.0
LOOK_AGAIN_S = 0.02
SOCKET_AGE_S = 60.0
BLOB_AGE_S = 600.0  # a blob is written before the job that names it is accepted: young ones are left alone
MAX_REMOVED = 200  # per round: a large clearing must not hold up the server
KEPT_WORKERS = 32


async def end_marked(server: Server, host_tag: str, directory: AttemptDir) -> None:
    """End what a killed shim left behind, wherever it hides by now; returns when nothing of it lives.

    It waits as long as that takes: a process that hangs in a driver still holds its device, which must not be
    given to anybody else.
    """
    say_at_s = server.runtime.monotonic() + SAY_AGAIN_S
    while True:
        found = end_left(read_record(directory.path) or unrecorded(host_tag, directory.attempt_id))
        if not found:
            remove_record(directory.path)
            break
        if server.runtime.monotonic() > say_at_s:
            name = directory.attempt_id
            server.log.error("processes %s of %s do not die; what they hold stays allocated", found, name)
            say_at_s += SAY_AGAIN_S
        await server.sleep(LOOK_AGAIN_S)
    spec = directory.read_spec()
    removal = None if spec is None else ContainerRemoval(spec)
    until_s = server.runtime.monotonic() + REMOVE_S
    while removal is not None and not removal.is_over():
        if server.runtime.monotonic() >= until_s:
            removal.give_up()
        await server.sleep(LOOK_AGAIN_S)


def remove_dead_sockets(folder: Path, now: float | None = None) -> int:
    """Remove sockets nobody listens on: a shim that was killed could not. Young ones may not listen yet."""
    now = time.time() if now is None else now
    removed = 0
    for path in folder.iterdir():
        if path.name == DOORS:
            removed += remove_dead_sockets(path, now)
            continue
        if path.is_dir():
            removed += _remove_dead_actors(path, now)
            continue
        if path.is_symlink():
            if not path.exists():  # of a door that is there no more
                path.unlink(missing_ok=True)
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            try:
                if now - path.stat().st_mtime < SOCKET_AGE_S:
                    continue
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                removed += 1
            except OSError:
                continue  # gone, or busy: somebody listens
    return removed


def remove_dead_actors_of_users(users_dir: Path) -> int:
    """The same of the folders that work with uids of its own has made for its actors."""
    now, removed = time.time(), 0
    for sockets in users_dir.glob("*/sockets"):
        with os.scandir(sockets) as listed:
            removed += sum(
                _remove_dead_actors(Path(entry.path), now) for entry in listed if entry.is_dir(follow_symlinks=False)
            )
    return removed


def clear_own_sockets(folder: Path) -> None:
    """Remove what is no socket from the folder of a uid's sockets, which outlives the work that filled it; what actors
    of that uid that live have there stays."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == DOORS or entry.is_symlink():
                continue
            if not entry.is_dir(follow_symlinks=False):
                if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                    os.unlink(entry.path)
            elif not entry.name.startswith(FOLDER_PREFIX) or not _is_in_use(Path(entry.path)):
                remove_tree(Path(entry.path))
            else:
                _remove_all_but_sockets(Path(entry.path))


def _remove_all_but_sockets(folder: Path) -> None:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove_tree(Path(entry.path))
            elif entry.name != OWNER_FILE and entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)


def _remove_dead_actors(folder: Path, now: float) -> bool:
    """Remove the folder of a creator of actors that was killed, or in which no actor of another host's is left."""
    if not folder.name.startswith(FOLDER_PREFIX):
        return False
    try:
        if now - folder.stat().st_mtime < SOCKET_AGE_S or _is_in_use(folder):
            return False
    except OSError:  # its creator has just removed it, or somebody lets nobody in: no reason not to start
        return False
    remove_tree(folder)
    return True


def _is_in_use(folder: Path) -> bool:
    try:
        owner = os.open(folder / OWNER_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return any(_listens(path) for path in folder.iterdir() if path.is_socket())
    try:
        return is_locked(owner)
    finally:
        os.close(owner)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # busy
    return True


def old_attempts(attempts_dir: Path, keep: int) -> list[Path]:
    """The folders of reported attempts beyond the *keep* newest, the newest first."""
    reported: list[tuple[float, Path]] = []
    for folder in attempts_dir.iterdir():
        try:
            reported.append(((folder / "reported").stat().st_mtime, folder))
        except OSError:
            continue  # not reported yet
    reported.sort(reverse=True)
    return [folder for _, folder in reported[keep:]]


def remove_attempts(folders: Iterable[Path], needed_jobs: Collection[str]) -> int:
    """Remove the attempts whose job is not needed as an input; gives how many."""
    found = [folder for folder in folders if job_of(folder.name) not in needed_jobs][:MAX_REMOVED]
    for folder in found:
        AttemptDir(folder.parent, folder.name).remove()
    return len(found)


def sizes_of_outputs(attempts_dir: Path) -> dict[str, int]:
    """The bytes of the outputs of ended attempts that have some, in the order of their ends."""
    ended: list[tuple[float, str, int]] = []
    for folder in attempts_dir.iterdir():
        try:
            at = (folder / "status.msgpack").stat().st_mtime
            kept = (folder / "outputs").is_dir()
        except OSError:
            continue
        if kept:
            status = AttemptDir(attempts_dir, folder.name).read_status() or WorkStatus()
            ended.append((at, folder.name, status["outputs"]["bytes"] if "outputs" in status else 0))
    return {name: size for _, name, size in sorted(ended)}


def remove_old_workers(workers_dir: Path, alive: Collection[str]) -> int:
    """Remove the folders of ended workers beyond the newest few; gives how many."""
    ended = []
    for folder in workers_dir.iterdir():
        if (
            is_id(folder.name)
            and folder.name not in alive
            and AttemptDir(folder.parent, folder.name).shim_pid() is None
        ):
            try:
                ended.append((folder.stat().st_mtime, folder))
            except OSError:
                continue
    ended.sort(reverse=True)
    for _, folder in ended[KEPT_WORKERS : KEPT_WORKERS + MAX_REMOVED]:
        AttemptDir(folder.parent, folder.name).remove()
    return min(MAX_REMOVED, max(0, len(ended) - KEPT_WORKERS))


def old_blobs(blobs_dir: Path, now: float | None = None) -> list[str]:
    """The names of blobs that are not young, in order."""
    now = time.time() if now is None else now
    with os.scandir(blobs_dir) as entries:
        return sorted(entry.name for entry in entries if _is_old(entry, now))


def remove_blobs(blobs_dir: Path, names: Iterable[str], now: float | None = None) -> int:
    """Remove these blobs, unless they are young, as one is that a new job has named again; gives how many."""
    now = time.time() if now is None else now
    removed = 0
    for name in names:
        if removed < MAX_REMOVED and _is_old(blobs_dir / name, now):
            (blobs_dir / name).unlink(missing_ok=True)
            removed += 1
    return removed


def _is_old(file: Path | os.DirEntry[str], now: float) -> bool:
    try:
        found = os.lstat(file)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and now - found.st_mtime > BLOB_AGE_S


class RoundRobin:
    """Takes names in turn, so many at a time, each as often as any other, however they come and go. Keeps none."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._last = ""

    def next(self, names: Iterable[str]) -> list[str]:
        """The *names* whose turn it is."""
        ordered = sorted(set(names))
        first = bisect_right(ordered, self._last)
        found = (ordered[first:] + ordered[:first])[: self._at_once]
        self._last = found[-1] if found else ""
        return found


def kill_escaped(host_tag: str, attempts_dir: Path, workers_dir: Path, groups_dir: Path | None) -> list[int]:
    """Kill what is left of this host's work whose shim is gone; gives the pids that were found alive.

    It is found by what its shim noted, by the names of cgroups in *groups_dir*, and by marks. One call may not be
    enough for a crowd that keeps forking where nothing holds it.
    """
    killed: list[int] = []
    alive: dict[str, bool] = {}

    def orphaned(work_id: str) -> bool:
        if work_id not in alive:
            folders = (attempts_dir, workers_dir)
            alive[work_id] = any(AttemptDir(folder, work_id).shim_pid() is not None for folder in folders)
        return not alive[work_id]

    for record_file in (*attempts_dir.glob(f"*/{RECORD}"), *workers_dir.glob(f"*/{RECORD}")):
        folder = record_file.parent
        record = read_record(folder)
        if record is not None and is_id(folder.name) and orphaned(folder.name):
            left = end_left(record)
            killed += left
            if not left:
                remove_record(folder)
    for work_id, group in groups_of(groups_dir, host_tag) if groups_dir is not None else ():
        if is_id(work_id) and orphaned(work_id):
            if group.populated():
                killed += group.members()
                group.kill()
            else:
                group.remove()
    for work_id in {work_id for work_id in find_marked(host_tag).values() if is_id(work_id) and orphaned(work_id)}:
        killed += end_left(unrecorded(host_tag, work_id))
    return sorted({pid for pid in killed if pid})
