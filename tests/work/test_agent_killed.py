"""A whole agent process, killed with SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.work.rig import RawClient, Rig, alive, gated, open_gate, wait_for

AGENT = """
import sys
from pathlib import Path
from tests.work.rig import Rig, gated
rig = Rig(Path(sys.argv[1]))
manager = rig.start_manager()
rig.submit("a", command=gated(Path(sys.argv[2]), "echo done"))
attempt_id = rig.grant("a")
rig.running(attempt_id)
rig.node.run_until(lambda: rig.output(attempt_id) == "up\\n")
print(manager.status()["zygote_pid"], flush=True)
rig.node.run_until(lambda: False, 60)
"""


def test_a_killed_agent_leaves_its_attempts_to_the_next(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-c", AGENT, str(tmp_path / "data"), str(tmp_path / "gate")]
    agent = subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, stdout=subprocess.PIPE)
    with agent:
        assert agent.stdout is not None
        zygote = int(agent.stdout.readline())
        assert alive(zygote)
        agent.send_signal(signal.SIGKILL)
    wait_for(lambda: not alive(zygote), what="the zygote's end with its agent")
    rig = Rig(tmp_path / "data")
    try:
        assert rig.marked("a.1")
        rig.start_manager()
        open_gate(tmp_path / "gate")
        job = rig.ended("a.1")
        assert (job["state"], len(job["attempts"])) == ("succeeded", 1)
        assert rig.output("a.1") == "up\ndone\n"
    finally:
        rig.close()


def test_strangers_at_a_shims_door_are_turned_away(rig: Rig, tmp_path: Path) -> None:
    import socket

    rig.submit("a", command=gated(tmp_path / "gate", "echo done"))
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    spec = rig.dir(attempt_id).read_spec()
    assert spec is not None
    from actorgrid.transports.frames import encode_frame

    for opening in (
        b"\xff" * 64,
        encode_frame(["stop", "cancelled", 0]),
        encode_frame(["hello", "guess"]) + encode_frame(["stop", "cancelled", 0]),
        encode_frame(["hello", spec["token"]]) + encode_frame(["stop", 1, []]),
    ):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(60)
            stranger.connect(spec["control_path"])
            stranger.sendall(opening)
            try:
                while stranger.recv(65536):
                    pass
            except ConnectionResetError:
                continue
    open_gate(tmp_path / "gate")
    assert rig.ended(attempt_id)["state"] == "succeeded"
    assert rig.run("b", command=["true"])["state"] == "succeeded"
    with RawClient(rig.lease("L1")) as client:
        client.welcome()
