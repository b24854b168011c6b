"""Everything of an attempt is paused past its deadline and goes on: what it says then is not taken, and it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.containment import KINDS, choose
from actorgrid.actors.work.linux import BootTimer, boot_seconds
from actorgrid.actors.work.process_tree import descendants, living
from tests.work.rig import RawClient, Rig, alive, wait_for
from tests.work.test_containment import guards

pytestmark = pytest.mark.system  # each waits for more than the least patience that there is

PATIENCE_S = 3.0

# Says what time it is, and again when two seconds have gone by unseen: it was paused, for PATIENCE_S and more.
SAYS_WHEN_IT_WAKES = """
import time
print("up", flush=True)
last = time.monotonic()
while True:
    now = time.monotonic()
    if now - last > 2.0:
        print("woken", flush=True)
    last = now
"""


STOPPED: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_stays_stopped() -> Iterator[None]:
    yield
    for pid in STOPPED:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    STOPPED.clear()


def pause(rig: Rig, work: list[int]) -> list[int]:
    """Stop all there is of it: the work itself first, shim and guard too; and have the agent gone."""
    every = [*work, *guards(rig)]
    STOPPED.extend(every)
    for pid in every:
        os.kill(pid, signal.SIGSTOP)
    rig.kill_manager()
    return every


def wake(pids: list[int]) -> None:
    """The work first: it gets as much of a lead over those who would end it as it can have."""
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def past(deadline: float) -> None:
    timer = BootTimer()
    timer.set(deadline)
    os.set_blocking(timer.fd, True)
    os.read(timer.fd, 8)
    timer.close()


def everything_of(rig: Rig, shim: int) -> list[int]:
    return [*living(descendants(shim)), shim]


@pytest.mark.parametrize("kind", KINDS)
def test_output_of_an_attempt_that_woke_too_late_is_not_taken(make_rig: Any, kind: str) -> None:
    if kind != "none" and not (found := choose(kind)).holds:
        pytest.skip(f"this machine offers no {kind}: {found.why}")
    rig: Rig = make_rig(work__containment=kind)
    rig.start_manager()
    rig.submit("a", command=[sys.executable, "-c", SAYS_WHEN_IT_WAKES], max_isolation_s=PATIENCE_S)
    attempt_id = rig.grant("a")
    rig.node.run_until(lambda: rig.output(attempt_id) == "up\n", what="the command")
    shim = rig.dir(attempt_id).shim_pid()
    assert shim is not None
    pids = everything_of(rig, shim)
    paused = pause(rig, pids)
    past(boot_seconds() + PATIENCE_S + 0.5)
    wake(paused)
    status = wait_for(lambda: rig.dir(attempt_id).read_status(), what="its end")
    assert status["reason"] == "isolated"
    assert rig.output(attempt_id) == "up\n"
    assert not any(map(alive, pids[:-1]))
    rig.start_manager()
    assert rig.ended(attempt_id)["attempts"][0]["state"] == "lost"


def test_a_result_that_came_too_late_is_not_left_for_others(rig: Rig, tmp_path: Path) -> None:
    """A job that depends on it would read the newest result on the host, whatever became of its attempt."""
    flag = tmp_path / "flag"

    def work() -> str:
        import time

        flag.touch()
        last = now = time.monotonic()
        while now - last < 2.0:
            last, now = now, time.monotonic()
        return "late"

    rig.submit_function("f", cloudpickle.loads(cloudpickle.dumps(work)), max_isolation_s=PATIENCE_S)
    attempt_id = rig.grant("f")
    rig.node.run_until(flag.exists, what="the function")
    shim = rig.dir(attempt_id).shim_pid()
    assert shim is not None
    paused = pause(rig, everything_of(rig, shim))
    past(boot_seconds() + PATIENCE_S + 0.5)
    os.kill(paused[0], signal.SIGCONT)
    # The worker alone goes on until it has said all it has to say: whoever would end it is still stopped.
    wait_for(lambda: not alive(paused[0]), what="the worker's end")
    wake(paused[1:])
    status = wait_for(lambda: rig.dir(attempt_id).read_status(), what="its end")
    assert (status["reason"], status["result_bytes"]) == ("isolated", None)
    assert not rig.dir(attempt_id).result.exists()
    rig.start_manager()
    assert rig.ended(attempt_id)["attempts"][0]["state"] == "lost"


def test_a_session_task_that_woke_too_late_answers_nobody(make_rig: Any, tmp_path: Path) -> None:
    rig: Rig = make_rig()
    rig.start_manager()
    flag = tmp_path / "flag"

    def work() -> str:
        import time

        flag.touch()
        last = now = time.monotonic()
        while now - last < 2.0:
            last, now = now, time.monotonic()
        return "late"

    work.__module__ = "__main__"
    grant = rig.lease("L1", max_isolation_s=PATIENCE_S)
    with RawClient(grant) as client:
        pid = client.welcome().pid
        client.send(work)
        rig.node.run_until(flag.exists, what="the task")
        directory = AttemptDir(rig.paths.workers_dir, grant["worker_id"])
        shim = directory.shim_pid()
        assert shim is not None
        paused = pause(rig, everything_of(rig, shim))
        past(boot_seconds() + PATIENCE_S + 0.5)
        os.kill(paused[0], signal.SIGCONT)
        assert client.frame() is None, "the worker hangs up instead of answering"
        wake(paused[1:])
        wait_for(lambda: not alive(pid), what="the worker's end")


def test_the_deadline_is_counted_on_a_clock_that_suspension_does_not_stop() -> None:
    timer = BootTimer()
    timer.set(boot_seconds() + 3600)
    facts = dict(line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{timer.fd}").read_text().splitlines())
    assert int(facts["clockid"]) == 7  # CLOCK_BOOTTIME
    timer.set(boot_seconds() - 1)  # in the past, as after a suspension: readable at once
    os.set_blocking(timer.fd, True)
    timer.read()
    timer.close()
