from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actorgrid.actors.host.lock import HANDED_DOWN, AgentLock, is_alive
from actorgrid.errors import AlreadyRunning, DataDirUnusable


def test_a_second_taker_is_told_who_holds_it(tmp_path: Path) -> None:
    with AgentLock(tmp_path / "lock"):
        with pytest.raises(AlreadyRunning) as caught, AgentLock(tmp_path / "lock"):
            pass
    assert caught.value.details["pid"] == os.getpid() and str(os.getpid()) in str(caught.value)
    with AgentLock(tmp_path / "lock"):
        pass


def test_a_lock_whose_holder_is_dying_is_waited_for(tmp_path: Path) -> None:
    # A dead holder's child has the lock still, and lets go when its standard input ends.
    script = (
        "import os, sys; from pathlib import Path; from actorgrid.actors.host.lock import AgentLock\n"
        "AgentLock(Path(sys.argv[1])).__enter__()\n"
        "if os.fork(): os._exit(0)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"held\n"
        process.wait()
        holder = int((tmp_path / "lock").read_text())
        assert holder == process.pid and not is_alive(holder)
        process.stdin.close()
        with AgentLock(tmp_path / "lock"):
            assert int((tmp_path / "lock").read_text()) == os.getpid()


def test_a_place_without_a_directory_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(DataDirUnusable), AgentLock(tmp_path / "missing" / "lock"):
        pass


def test_a_zombie_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process.pid)
    assert is_alive(os.getpid())


def test_a_lock_goes_over_to_the_program_that_takes_the_place_of_its_holder(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from actorgrid.actors.host.lock import AgentLock\n"
        "lock = AgentLock(Path(sys.argv[1])); lock.__enter__()\n"
        "print(lock.handed_down, flush=True); sys.stdin.readline()\n"
        "if not lock.handed_down:\n"
        "    lock.hand_down(); os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])"
    )
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        for handed_down in (b"False\n", b"True\n"):
            assert process.stdout.readline() == handed_down
            with pytest.raises(AlreadyRunning), AgentLock(tmp_path / "lock"):
                pass
            process.stdin.write(b"\n")
            process.stdin.flush()
        assert process.wait(60) == 0
    with AgentLock(tmp_path / "lock") as lock:
        assert not lock.handed_down


def test_a_descriptor_of_another_file_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "other").open("w") as other, AgentLock(tmp_path / "lock"):
        for number in (str(other.fileno()), "9999", "x", ""):
            monkeypatch.setenv(HANDED_DOWN, number)
            with pytest.raises(AlreadyRunning), AgentLock(tmp_path / "lock"):
                pass
            assert HANDED_DOWN not in os.environ
