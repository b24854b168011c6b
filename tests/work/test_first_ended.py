"""How the work ended is what its init told, also where the init left before its shim looked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.containment import choose
from actorgrid.actors.work.linux import adopt_orphans, boot_seconds, failure_in_child
from actorgrid.actors.work.shim import Shim
from actorgrid.actors.work.shim_sockets import listen
from actorgrid.actors.work.work_records import lost_spec
from actorgrid.actors.work.worker_process import worker_body
from tests.work.rig import gated, open_gate


class PausedShim(Shim):
    """The kernel takes the processor from it between what it polls and what it reaps, until its init has left."""

    gate: Path
    has_paused = False

    def _wait_ms(self, now: float) -> int:
        return super()._wait_ms(now) if self.has_paused else 0

    def _look_at_clock(self) -> None:
        if not self.has_paused:
            self.has_paused = True
            open_gate(self.gate)
            assert self._init is not None
            os.waitid(os.P_PID, self._init.pid, os.WEXITED | os.WNOWAIT)
        super()._look_at_clock()


@pytest.mark.parametrize(("then", "ended"), [("exit 6", (6, None)), ("kill -9 $$", (None, 9)), ("true", (0, None))])
def test_an_init_that_left_before_its_shim_looked_has_told_how_the_work_ended(
    tmp_path: Path, then: str, ended: tuple[int | None, int | None]
) -> None:
    containment = choose("pid_namespace")
    if not containment.holds:
        pytest.skip(f"this machine offers no pid namespace: {containment.why}")
    directory = AttemptDir(tmp_path, "a.1")
    spec = lost_spec("a.1")
    spec["command"], spec["env"] = gated(tmp_path / "gate", then), dict(os.environ)
    spec["max_output_bytes"] = 1000
    directory.create(spec)

    def run() -> None:
        adopt_orphans()
        shim = PausedShim(directory, spec, listen(str(tmp_path / "s")), boot_seconds() + 600, containment)
        shim.gate = tmp_path / "gate"
        shim.run(worker_body, [])

    assert failure_in_child(run) == 0
    status = directory.read_status()
    assert status is not None
    assert (status["reason"], status["exit_code"], status["signal"]) == ("exited", *ended)
    assert directory.read_output("stdout") == b"up\n"
