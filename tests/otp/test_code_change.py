"""New code for servers in processes of their own: no call is lost; who hangs is as before, or its supervisor's."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actorgrid.errors import ActorGridError, WrongState
from actorgrid.supervisors.child import ChildSpec
from actorgrid.supervisors.code_change import ChangeCode
from tests.otp.conftest import DEADLINE_S, Rig

MakeRig = Callable[..., Rig]
SOURCE = """
import signal, threading
from tests.otp.servers import Hand

class Victim(Hand):
    name = "victim"
    version = "{n}"
    max_handler_s = {limit_s}

    def start(self):
        super().start()
        self.count = 0

    def code_change(self, old_version, state):
        {change}

    def do_count(self):
        self.count += 1
        return self.version, self.count
"""


def source(n: int, change: str = "pass", limit_s: float = 30.0) -> str:
    return SOURCE.format(n=n, change=change, limit_s=limit_s)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    made = tmp_path / "victims_code.py"
    made.write_text(source(1))
    importlib.invalidate_caches()
    yield made
    sys.modules.pop("victims_code", None)


def up(rig: MakeRig) -> tuple[Rig, int]:
    tree = rig()
    victim = ChildSpec("victim", "victims_code:Victim", arguments=(str(tree.notes_path),))
    tree.up(victim, tree.spec("other"))
    return tree, tree.pid("victim")


def test_a_hundred_versions_between_calls_lose_none(rig: MakeRig, file: Path) -> None:
    tree, pid = up(rig)
    for number in range(2, 102):
        for _ in range(10):
            tree.tell("victim", "count")
        file.write_text(source(number))
        assert tree.tree.call("victim", ChangeCode(), DEADLINE_S).new_version == str(number)
    assert tree.ask("victim", "count") == ("101", 1001)
    assert tree.pid("victim") == pid


@pytest.mark.parametrize("hang", ["while True: pass", "threading.Event().wait()"])
def test_one_that_hangs_is_interrupted_and_keeps_its_code_its_state_and_its_process(
    rig: MakeRig, file: Path, hang: str
) -> None:
    tree, pid = up(rig)
    tree.ask("victim", "count")
    file.write_text(
        source(2, f"self.count = -1; {hang}" if "while" not in hang else f"self.count = -1\n        {hang}")
    )
    with pytest.raises(WrongState, match="longer than"):
        tree.tree.call("victim", ChangeCode(0.3), DEADLINE_S)
    assert tree.ask("victim", "count") == ("1", 2)
    assert tree.pid("victim") == pid


def test_one_that_cannot_be_interrupted_is_ended_by_the_watchdog_and_begun_again(rig: MakeRig, file: Path) -> None:
    file.write_text(source(1, limit_s=0.5))
    tree, pid = up(rig)
    others = tree.pid("other")
    tree.watch("victim")
    block = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n        while True: pass"
    file.write_text(source(2, block, limit_s=0.5))
    with pytest.raises(ActorGridError):
        tree.tree.call("victim", ChangeCode(), DEADLINE_S)
    reason = tree.down("victim")
    assert (reason.kind, reason.exit_status) == ("hung", -signal.SIGKILL)
    assert "ChangeCode" in reason.message and "in code_change" in reason.traceback
    assert tree.back("victim", pid) != pid
    assert tree.ask("victim", "count")[1] == 1
    assert tree.pid("other") == others
