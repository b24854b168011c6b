from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from actorgrid.errors import ActorDown, NoSuchActor
from actorgrid.supervisors.child import ChildSpec, SupervisorFlags
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.signals import Down
from actorgrid.supervisors.supervisor import WhichChildren
from actorgrid.supervisors.tree import Tree, TreeEvent, TreeFailed, TreeGone, TreeSaid
from actorgrid.supervisors.wire import TreeSettings
from tests.otp.servers import Do, Told
from tests.patience import Patience
from tests.processes import is_alive

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
BRISK = TreeSettings(beat_interval_s=0.2, hang_margin_s=0.4)


def descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class Rig:
    """A tree of real processes below a root called ``root``, and what a test does to it.

    The server ``watcher`` is always there, first under the root: it monitors, and what it hears is kept in ``heard``.
    """

    def __init__(self, folder: Path, settings: TreeSettings) -> None:
        self.folder = folder
        self.notes_path = folder / "notes"
        self.tree = Tree(settings=settings)
        self.events: list[TreeEvent] = []
        self.heard: list[Told] = []
        self.seen: set[int] = {self.tree.admin_pid}

    # -- the tree

    def spec(self, id: str, kind: str = "Hand", *arguments: Any, **fields: Any) -> ChildSpec:
        return ChildSpec(id, f"tests.otp.servers:{kind}", arguments=(str(self.notes_path), *arguments), **fields)

    def team(self, id: str, *children: ChildSpec, flags: SupervisorFlags | None = None, **fields: Any) -> ChildSpec:
        arguments = (flags or SupervisorFlags(), children)
        return ChildSpec(id, "tests.otp.servers:Team", type="supervisor", arguments=arguments, **fields)

    def up(self, *children: ChildSpec, **flags: Any) -> Rig:
        """The root with *children*. Its watcher is temporary: whatever the strategy, it stays."""
        watcher = self.spec("watcher", restart="temporary")
        self.tree.up("tests.otp.servers:Team", None, SupervisorFlags(**flags), (watcher, *children))
        self.note_pids()
        return self

    def note_pids(self) -> set[int]:
        """All processes of the tree now."""
        now = {self.tree.admin_pid, *descendants(self.tree.admin_pid)}
        self.seen |= now
        return now

    def end(self) -> None:
        """Stop the tree in order and see that nothing is left."""
        try:
            if not self.tree.gone:
                self.note_pids()
                self.tree.stop("the test is over")
                self.wait_for(lambda: self.tree.gone, "the end of the tree")
        finally:
            self.tree.close()
        self.wait_for(self.all_gone, "the end of all processes")

    def all_gone(self) -> bool:
        return not any(is_alive(pid) for pid in self.seen)

    # -- asking

    def ask(self, to: str | Ref, what: str, *args: Any, timeout_s: float = DEADLINE_S) -> Any:
        return self.tree.call(to, Do(what, args), timeout_s)

    def tell(self, to: str | Ref, what: str, *args: Any) -> None:
        assert self.tree.cast(to, Do(what, args))

    def children(self, supervisor: str | Ref = "root") -> dict[str, dict[str, Any]]:
        return {child["name"]: child for child in self.tree.call(supervisor, WhichChildren(), DEADLINE_S)}

    def pids(self, supervisor: str | Ref = "root") -> dict[str, int]:
        """Of all servers below *supervisor*, at any depth, that are up."""
        found = {}
        for name, child in self.children(supervisor).items():
            if child["pid"] is not None:
                found[name] = child["pid"]
                self.seen.add(child["pid"])
            if child["type"] == "supervisor" and child["state"] == "up":
                found |= self.pids(child["ref"])
        return found

    def pid(self, name: str) -> int:
        return int(self.pids()[name])

    def notes(self) -> list[str]:
        return self.notes_path.read_text().splitlines() if self.notes_path.exists() else []

    def notes_after(self, count: int) -> list[str]:
        return self.notes()[count:]

    # -- waiting

    def wait_for(self, condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
        """Its value once it is true; meanwhile the tree's news are taken, and its root is judged."""
        patience = Patience(deadline_s)
        while True:
            value = condition()
            if value:
                return value
            if patience.is_over:
                raise AssertionError(f"{what}: not within {deadline_s:g} s; {self.events}, {self.notes()}")
            self.take_news(0.005)
            if self.tree.gone:  # it says so at once, each time
                select.select([], [], [], 0.005)

    def take_news(self, timeout_s: float) -> None:
        event = self.tree.next_event(timeout_s)
        while event is not None:
            if isinstance(event, TreeSaid) and isinstance(event.message, Told):
                self.heard.append(event.message)
            elif not isinstance(event, TreeGone):
                self.events.append(event)
            else:
                self.events = [each for each in self.events if each != event] + [event]
                return
            event = self.tree.next_event(0.0)

    def told(self, by: str, deadline_s: float = DEADLINE_S) -> Any:
        """The next news of *by*, which are then forgotten."""
        told = self.wait_for(lambda: next((t for t in self.heard if t.by == by), None), f"news of {by}", deadline_s)
        self.heard.remove(told)
        return told.news

    def watch(self, *names: str | Ref) -> None:
        self.ask("watcher", "monitor", *names)

    def down(self, name: str | None = None, deadline_s: float = DEADLINE_S) -> ExitReason:
        """Why the next one that the watcher watches has ended; it is *name*."""
        news = self.told("watcher", deadline_s)
        assert isinstance(news, Down), news
        assert name is None or news.ref.name == name, news
        return news.reason

    def back(self, name: str, old_pid: int, supervisor: str = "root") -> int:
        """Wait until *name* is up as another process; gives its pid."""

        def pid() -> int | None:
            try:
                child = self.children(supervisor)[name]
            except (NoSuchActor, ActorDown):
                return None
            return child["pid"] if child["state"] == "up" and child["pid"] != old_pid else None

        new = int(self.wait_for(pid, f"{name} up again"))
        self.seen.add(new)
        return new

    def gone(self) -> None:
        """Wait until the tree says that it is gone, and see that it is."""
        self.wait_for(lambda: TreeGone() in self.events, "TreeGone")
        self.wait_for(self.all_gone, "the end of all processes")

    def failure(self) -> TreeFailed:
        return next(event for event in self.events if isinstance(event, TreeFailed))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Make a tree: ``rig()``, then ``up``."""
    made: list[Rig] = []

    def make(settings: TreeSettings = BRISK) -> Rig:
        made.append(Rig(tmp_path, settings))
        return made[-1]

    yield make
    for each in made:
        each.end()


class Front:
    """A process that runs a tree (``in_front.py``), as the process in front of a host does."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.otp.in_front"],
            cwd=ROOT,
            env=dict(os.environ, PYTHONPATH=str(ROOT)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seen: set[int] = {self.process.pid}
        self.first: dict[str, Any] = {}

    def up(self) -> Front:
        self.first = self.read()
        return self

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert ready, "the process in front said nothing"
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, dict)
        return answer

    def ask(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("how are they?\n")
        self.process.stdin.flush()
        return self.read()

    def all_pids(self) -> list[int]:
        """Parents before their children."""
        found = [self.process.pid, *descendants(self.process.pid)]
        self.seen |= set(found)
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            for pid in self.all_pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        assert self.process.stdin is not None and self.process.stdout is not None
        with self.process.stdout:
            self.process.stdin.close()
            try:
                self.process.wait(DEADLINE_S)
            finally:
                self.process.kill()
                self.process.wait()


@pytest.fixture
def front() -> Iterator[Front]:
    made = Front()
    try:
        yield made.up()
    finally:
        made.end()


EPOLL_WAIT_CALLS = {"x86_64": {232, 281, 441}, "aarch64": {22, 441}}
"""The numbers of epoll_wait, epoll_pwait and epoll_pwait2 (the kernel's ``syscall_64.tbl`` and ``unistd.h``)."""


def stop_between_handlers(pid: int) -> None:
    """Stop the process while its loop waits: stopped amid a handler, it would be judged by that handler's limit."""
    waits = EPOLL_WAIT_CALLS.get(os.uname().machine)

    def stopped() -> bool:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, f"{pid} stopped")
        if waits is None or int(Path(f"/proc/{pid}/syscall").read_text().split()[0]) in waits:
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until(stopped, f"{pid} stopped between two handlers")


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> None:
    patience = Patience(deadline_s)
    while not condition():
        assert not patience.is_over, f"{what}: not within {deadline_s:g} s"
        patience.pause()
