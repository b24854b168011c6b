"""The trials that a start makes, and the makers of namespaces: whoever is killed in the middle leaves nothing behind.

Each is run in a process of its own that waits at one call into the kernel (or what it forked does), so that it can be
killed exactly there; a mark in the environment finds whatever it forked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from actorgrid.actors.work import groups
from actorgrid.actors.work.containment import KINDS, choose
from tests.processes import until

# Waits before the N-th call of those that a process of the trial makes: the maker itself or, "below" it, each that it
# forked. Says so by a file, and goes on once the one that holds it is gone.
PROGRAM = """
import os, signal, sys, time
from actorgrid.actors.work import containment, groups, linux, pid_namespace

kind, where, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
maker, count = os.getpid(), 0

def stopping(call):
    def stop_and_call(*arguments, **options):
        global count
        if (os.getpid() == maker) == (where == "maker"):
            count += 1
            if count == number:
                with open(sys.argv[5], "w"):
                    pass
                while os.path.exists(sys.argv[4]):
                    time.sleep(0.001)
        return call(*arguments, **options)
    return stop_and_call

linux._prctl = stopping(linux._prctl)
for module in (os, signal):
    for name in ("fork", "waitpid", "read", "write", "close", "pipe2", "pause"):
        if hasattr(module, name):
            setattr(module, name, stopping(getattr(module, name)))
assert containment.choose(kind).holds
"""


def marked(mark: str) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(int(pid))
    return found


@pytest.fixture
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    yield mark
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def killed_at(kind: str, where: str, number: int, mark: str, folder: Path) -> int | None:
    """The pid of a maker that was killed at that step; ``None`` when its trial ended before."""
    hold, reached = folder / f"hold-{number}", folder / f"reached-{number}"
    hold.touch()
    command = [sys.executable, "-c", PROGRAM, kind, where, str(number), str(hold), str(reached)]
    maker = subprocess.Popen(command, env={**os.environ, "ACTORGRID_TEST_MARK": mark})
    try:
        until(lambda: maker.poll() is not None or reached.exists(), "the step or the end")
        ended = maker.poll()
        assert not ended, "the last trial was not disturbed"
        return maker.pid if ended is None else None
    finally:
        maker.kill()
        maker.wait()
        hold.unlink()  # what is below goes on, without its maker


@pytest.mark.parametrize("where", ["maker", "below"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_a_trial_whose_maker_is_killed_leaves_no_process(kind: str, where: str, mark: str, tmp_path: Path) -> None:
    if not (found := choose(kind)).holds:
        pytest.skip(f"this machine offers no {kind}: {found.why}")
    reached = 0
    while (maker := killed_at(kind, where, reached + 1, mark, tmp_path)) is not None:
        reached += 1
        left = Path(found.folder) / f"{groups.PREFIX}probe-{maker}"
        if kind == "freezer":
            next_start(kind, left)  # what was frozen by then can neither run nor end before that
        until(lambda: not marked(mark), f"the end of all that was forked, killed at step {reached}")
        if kind == "cgroup":
            next_start(kind, left)
    assert reached >= 3


def next_start(kind: str, left: Path) -> None:
    """One that finds *left* old enough to be nobody's trial any more; twice, as what is killed takes a moment to go."""
    if left.exists():
        os.utime(left, (0, 0))
        until(lambda: choose(kind).holds and not left.exists(), "its removal")


def test_a_group_that_a_killed_trial_left_is_removed_by_the_next(tmp_path: Path) -> None:
    found = next((each for kind in ("cgroup", "freezer") if (each := choose(kind)).holds), None)
    if found is None:
        pytest.skip("this machine offers no cgroup")
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    left = Path(found.folder) / f"{groups.PREFIX}probe-{gone.pid}"
    left.mkdir()
    member = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    try:
        (left / "cgroup.procs").write_text(str(member.pid))
        if found.kind == "freezer":
            (left / "freezer.state").write_text("FROZEN")  # as one is left that is killed between freeze and thaw
        os.utime(left, (0, 0))
        assert choose(found.kind).holds
        assert member.wait(30) == -signal.SIGKILL
        until(lambda: choose(found.kind).holds and not left.exists(), "its removal")
    finally:
        member.kill()
        member.wait()
        with suppress(OSError):
            left.rmdir()
