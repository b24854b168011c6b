"""What is kept on disk of ended work, and what is cleared away."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Collection
from pathlib import Path

from actorgrid.supervisors.server import Server

from .attempt_dir import AttemptDir, is_id
from .process_tree import find_marked, living, send

SAY_AGAIN_S = 5.0
LOOK_AGAIN_S = 0.02
SOCKET_AGE_S = 60.0
BLOB_AGE_S = 600.0  # a blob is written before the job that names it is accepted: young ones are left alone
MAX_REMOVED = 200  # per round: a large clearing must not hold up the server
KEPT_WORKERS = 32


async def end_marked(server: Server, host_tag: str, work_id: str) -> None:
    """End what a killed shim left behind, wherever it hides by now; returns when nothing of it lives.

    It waits as long as that takes: a process that hangs in a driver still holds its device, which must not be
    given to anybody else.
    """
    say_at_s = server.runtime.monotonic() + SAY_AGAIN_S
    while True:
        found = living([pid for pid, marked in find_marked(host_tag).items() if marked == work_id])
        if not found:
            return
        for pid in found:
            send(pid, signal.SIGKILL)
        if server.runtime.monotonic() > say_at_s:
            server.log.error("processes %s of %s do not die; what they hold stays allocated", found, work_id)
            say_at_s += SAY_AGAIN_S
        await server.sleep(LOOK_AGAIN_S)


def remove_dead_sockets(folder: Path, now: float | None = None) -> int:
    """Remove sockets nobody listens on: a shim that was killed could not. Young ones may not listen yet."""
    now = time.time() if now is None else now
    removed = 0
    for path in folder.iterdir():
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


def remove_old_attempts(attempts_dir: Path, keep: int, needed_jobs: Collection[str]) -> int:
    """Remove reported attempts beyond the *keep* newest, but none whose job is needed as an input; gives how many."""
    reported: list[tuple[float, Path]] = []
    for folder in attempts_dir.iterdir():
        try:
            reported.append(((folder / "reported").stat().st_mtime, folder))
        except OSError:
            continue  # not reported yet
    reported.sort(reverse=True)
    removed = 0
    for _, folder in reported[keep:]:
        if folder.name.rpartition(".")[0] in needed_jobs:
            continue
        AttemptDir(folder.parent, folder.name).remove()
        removed += 1
        if removed >= MAX_REMOVED:
            break
    return removed


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


def remove_unnamed_blobs(blobs_dir: Path, named: Collection[str], now: float | None = None) -> int:
    """Remove blobs no live job names, unless they are young; gives how many."""
    now = time.time() if now is None else now
    removed = 0
    with os.scandir(blobs_dir) as entries:
        for entry in entries:
            if entry.name in named or removed >= MAX_REMOVED:
                continue
            try:
                if entry.is_file(follow_symlinks=False) and now - entry.stat().st_mtime > BLOB_AGE_S:
                    os.unlink(entry.path)
                    removed += 1
            except FileNotFoundError:
                continue
    return removed


def kill_escaped(host_tag: str, attempts_dir: Path, workers_dir: Path) -> list[int]:
    """SIGKILL processes marked as this host's work whose shim is gone; gives their pids."""
    killed = []
    alive: dict[str, bool] = {}
    for pid, work_id in find_marked(host_tag).items():
        if not is_id(work_id):
            continue
        if work_id not in alive:
            folders = (attempts_dir, workers_dir)
            alive[work_id] = any(AttemptDir(folder, work_id).shim_pid() is not None for folder in folders)
        if not alive[work_id] and living([pid]):
            send(pid, signal.SIGKILL)
            killed.append(pid)
    return killed
