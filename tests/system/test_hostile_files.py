"""Jobs that put something else where their output belongs cost themselves their output, and nobody else anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from actorgrid import errors
from tests.processes import until
from tests.system.agent import Agent

# Each waits until it is told, so that it is read while it runs, too.
REPLACED = {
    "a FIFO": 'rm "$d/stdout"; mkfifo "$d/stdout"',
    "a symbolic link": 'ln -sf /dev/zero "$d/stdout"',
    "a directory": 'rm "$d/stdout"; mkdir "$d/stdout"',
}


@pytest.mark.parametrize("found", REPLACED)
def test_a_job_that_replaces_its_output_hangs_nothing(shared_agent: Agent, tmp_path: Path, found: str) -> None:
    client = shared_agent.client()
    attempts = shared_agent.data_dir / "attempts"
    line = f"d=$(ls -d {attempts}/$ACTORGRID_JOB_ID.*); {REPLACED[found]}; touch {tmp_path}/done; "
    line += f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    job_id = client.submit_job(command=["sh", "-c", line], cpus=0.1)["job_id"]
    until((tmp_path / "done").exists, "it has replaced its output")
    # More than there are threads that read files.
    for _ in range(12):
        with pytest.raises(errors.NotARegularFile) as refused:
            list(client.logs(job_id))
        assert refused.value.found == found
    shown = shared_agent.cli("logs", job_id, check=False)
    assert shown.returncode == errors.NotARegularFile.exit_code
    assert found in shown.stderr
    follower = subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "logs", "--follow", "--data-dir", str(shared_agent.data_dir), job_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # What needs the gateway's threads as well goes on.
    assert client.run(["echo", "fine"], cpus=0.1).stdout == b"fine\n"
    assert json.loads(shared_agent.cli("inspect", "--json").stdout)
    (tmp_path / "go").touch()
    assert client.job(job_id, wait_s=30)["state"] == "succeeded"
    told, said = follower.communicate(timeout=60)
    assert (told, follower.returncode, said.count(found)) == ("", 0, 1)


def test_a_replaced_error_output_does_not_hold_up_the_end_of_a_failed_job(shared_agent: Agent) -> None:
    client = shared_agent.client()
    attempts = shared_agent.data_dir / "attempts"
    line = (
        f'd=$(ls -d {attempts}/$ACTORGRID_JOB_ID.*); rm "$d/stderr"; mkfifo "$d/stderr"; mkfifo "$d/reported"; exit 3'
    )
    job_id = client.submit_job(command=["sh", "-c", line], cpus=0.1)["job_id"]
    job = client.job(job_id, wait_s=30)
    assert job["state"] == "failed"
    assert job["attempts"][-1]["exit_code"] == 3
    assert client.run(["echo", "fine"], cpus=0.1).stdout == b"fine\n"
