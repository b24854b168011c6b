"""WorkerManager's end of the zygote: start it, ask it for forks, start it again when it dies."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess  # nosec B404 - starts our own interpreter with a fixed command line
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import actorgrid
from actorgrid.errors import WorkerLost
from actorgrid.supervisors.runtime import Runtime, Waiter

from .containment import Containment, containment_from
from .environment import passed_on
from .frame_link import FrameLink
from .isolation.probes import Means, means_from
from .linux import MARK_ATTEMPT, mark_placeholder

RESTART_FIRST_S = 0.05
RESTART_MAX_S = 5.0
MAX_WAITING = 20_000
FORK_PATIENCE_S = 20.0
"""A zygote that has carried nothing out for so long, and was asked to, hangs: it is ended, and another asked again.
Forks take milliseconds, and a second or so on a machine with far too much to do. One that was started again and has not
come up within that has twice as long the next time, up to ``START_PATIENCE_S_MAX``: where a start takes
longer, one that is ended each time would never come up."""
START_PATIENCE_S_MAX = 320.0

# The title of a process is written over its arguments, so these have to be long enough (SPT_NOENV leaves the
# environment, where the marks are, alone).
_ROOM_FOR_TITLE = "." * 160
_BOOT = "import sys; sys.path.append(sys.argv[1]); from actorgrid.actors.work.zygote import main; main(sys.argv[2])"


def command_line(fd: int, parent_pid: int, containment: str = "auto", guard_path: str = "") -> list[str]:
    """How to exec a zygote that talks on descriptor *fd*; *containment*: the setting, or the kind to keep work in."""
    root = str(Path(actorgrid.__file__).resolve().parent.parent)
    return [sys.executable, "-I", "-c", _BOOT, root, f"{fd},{parent_pid},{containment},{guard_path}", _ROOM_FOR_TITLE]


def bare_environment(passed_on: dict[str, str]) -> dict[str, str]:
    """The environment to exec a zygote with."""
    return {**passed_on, "SPT_NOENV": "1", MARK_ATTEMPT: mark_placeholder()}


_TRIED = "\0tried "
"""Begins what is waited for and no folder's name."""


class ZygoteLink:
    """The one zygote of a host. ``fork`` may be called before it is up; requests are carried out in order."""

    def __init__(
        self, runtime: Runtime, warn: Callable[..., None], containment: str = "auto", guard_path: str = ""
    ) -> None:
        self.restarts = 0
        self.containment: Containment | None = None
        self.means: Means | None = None
        self._wanted = containment
        self._guard_path = guard_path
        self._runtime = runtime
        self._warn = warn
        self._process: subprocess.Popen[bytes] | None = None
        self._link = FrameLink(runtime, self._heard, self._died)  # MAX_WAITING bounds what is queued in it
        self._waiting: dict[str, Waiter] = {}
        self._tries = itertools.count()
        self._backoff_s = RESTART_FIRST_S
        self._stopped = False
        self._heard_at = 0.0
        self._patience_s = FORK_PATIENCE_S
        self._starting = True
        self._watching = False
        self.on_ready: Callable[[Containment], None] = lambda _containment: None

    @property
    def pid(self) -> int | None:
        """The zygote's process id, while there is one."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; call from the thread that lives as long as we do (it dies with that thread)."""
        self._starting = True
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # nosec B603 - no shell, our own interpreter
                command_line(theirs.fileno(), os.getpid(), self._wanted, self._guard_path),
                env=bare_environment(passed_on(os.environ)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                close_fds=True,
                cwd="/",
            )
        self._link.attach(ours)

    def fork(self, folder: str, deadline: float) -> Waiter:
        """Await the pid of the shim of *folder*, which lives to *deadline* (CLOCK_BOOTTIME) unless it is told another.

        Raises WorkerLost when it did not start; it starts nothing when that has passed by then.
        """
        waiter, is_new = self._await(folder)
        if is_new:
            self._link.queue(["fork", folder, deadline])
        return waiter

    def tried(self) -> Waiter:
        """Await what this host can keep work apart by, which a zygote tries when it is first asked.

        Raises WorkerLost when it ended before; like one that forks, it is ended when it is silent for too long.
        """
        if self.means is None:
            waiter, is_new = self._await(f"{_TRIED}{next(self._tries)}")  # each its own: a waiter tells one
            if is_new:
                self._link.queue(["try"])
            return waiter
        waiter = Waiter()
        waiter.set(self.means)
        return waiter

    def _await(self, what: str) -> tuple[Waiter, bool]:
        """Who waits for that, and whether that is new: then it is to be asked for."""
        waiter = self._waiting.get(what)
        if waiter is not None:
            return waiter, False
        waiter = Waiter()
        if len(self._waiting) >= MAX_WAITING or self._stopped:
            waiter.fail(WorkerLost("no process can be started now", hint="the host has too many starts waiting"))
            return waiter, False
        # Its silence counts from the first that waits: before, it had nothing to say.
        if not self._waiting:
            self._heard_at = self._runtime.monotonic()
        self._waiting[what] = waiter
        self._watch()
        return waiter, True

    def stop(self, patience_s: float = 2.0) -> None:
        """End the zygote; shims live on."""
        self._stopped = True
        self._link.close()
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._fail_waiting("the host is stopping")

    def _watch(self) -> None:
        """Look whether the zygote hangs, as long as something waits for it."""
        if not self._watching and self._waiting and not self._stopped:
            self._watching = True
            left_s = self._heard_at + self._patience_s - self._runtime.monotonic()
            self._runtime.after(max(0.01, left_s), self._look)

    def _look(self) -> None:
        self._watching = False
        silent_s = self._runtime.monotonic() - self._heard_at
        if self._waiting and self._process is not None and silent_s >= self._patience_s:
            self._warn("the zygote has not answered for %.0f s: ending it", silent_s)
            if self._starting:
                self._patience_s = min(2 * self._patience_s, START_PATIENCE_S_MAX)
            self._heard_at = self._runtime.monotonic()
            self._process.kill()  # its socket closes, which is where its end is dealt with
        self._watch()

    def _heard(self, frames: list[list[Any]]) -> None:
        self._heard_at = self._runtime.monotonic()
        for frame in frames:
            match frame:
                case ["ready", int(), containment]:
                    self._backoff_s = RESTART_FIRST_S
                    self._patience_s, self._starting = FORK_PATIENCE_S, False
                    if self.containment is None:
                        self.containment = containment_from(containment)
                        self.on_ready(self.containment)
                case ["tried", means]:
                    self.means = self.means or means_from(means)
                    for what in [each for each in self._waiting if each.startswith(_TRIED)]:
                        self._waiting.pop(what).set(self.means)
                case ["forked", str(folder), int(pid)]:
                    self._settle(folder, pid, "")
                case ["failed", str(folder), str(why)]:
                    self._settle(folder, 0, why)

    def _settle(self, folder: str, pid: int, why: str) -> None:
        waiter = self._waiting.pop(folder, None)
        if waiter is not None:
            if why:
                waiter.fail(WorkerLost(f"no shim for {os.path.basename(folder)}: {why}"))
            else:
                waiter.set(pid)

    def _died(self) -> None:
        self._link.close()
        # It may live on without its socket: it is killed, or the wait for its end would not end, and there would be
        # two.
        if self._process is not None:
            self._process.kill()
            self._warn("the zygote ended with status %s; starting another", self._process.wait())
            self._process = None
        self._fail_waiting("the zygote died")
        if not self._stopped:
            self.restarts += 1
            self._runtime.after(self._backoff_s, self._restart)
            self._backoff_s = min(2 * self._backoff_s, RESTART_MAX_S)

    def _restart(self) -> None:
        if not self._stopped:
            self.start()

    def _fail_waiting(self, why: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            waiter.fail(WorkerLost(why))
