"""Commands run in containers of a real Podman, where this machine can run one; nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import actorgrid
from actorgrid.actors.work.container_endings import failure_of_runtime
from actorgrid.errors import ContainerFailed
from tests.processes import until
from tests.system.agent import Agent
from tests.system.podman_store import IMAGE, podman, podman_store


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables by which Podman finds a store with a small image. Skips where it cannot run it."""
    with podman_store(tmp_path_factory.mktemp("podman")) as found:
        yield found


def test_a_command_runs_in_a_container_with_its_directory_and_mounts(
    shared_agent: Agent, env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "text.txt").write_text("was sent")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in.txt").write_text("mounted")
    script = "cat text.txt /in/in.txt; echo $NAME; echo made > made.txt; (echo > /in/no) 2>/dev/null || echo read-only"
    with actorgrid.connect(data_dir=shared_agent.data_dir, working_dir=tmp_path / "project") as client:
        ran = client.run(
            ["sh", "-c", script],
            container=IMAGE,
            mounts=[f"{tmp_path}/data:/in:ro"],
            env={**env, "NAME": "a b"},
            outputs=["made.txt"],
            check=True,
        )
        assert ran.stdout == b"was sentmounteda b\nread-only\n"
        assert client.fetch(ran.job_id, to=tmp_path / "back")[0].read_text() == "made\n"
        assert client.run(["sh", "-c", "exit 7"], container=IMAGE, env=env).exit_code == 7
        with pytest.raises(ContainerFailed, match="image"):
            client.run(["true"], container="localhost/no-such-image:1", env=env, check=True)
        with pytest.raises(ContainerFailed, match="not on this host"):
            client.run(["true"], container=IMAGE, mounts=[f"{tmp_path}/none"], env=env, check=True)
        with pytest.raises(ContainerFailed, match="no container runtime"):
            client.run(["true"], container=IMAGE, container_runtime="apptainer", env={"PATH": "/none"}, check=True)
    flags = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    done = shared_agent.cli("run", "--container", IMAGE, *flags, "--cwd", str(tmp_path), "--", "pwd")
    assert done.stdout == f"{tmp_path}\n"


def test_nothing_of_a_container_lives_after_its_end(shared_agent: Agent, env: dict[str, str], tmp_path: Path) -> None:
    client = shared_agent.client()
    ignores = "trap '' TERM; echo begun; sleep 987"

    def sleeping() -> list[int]:
        return [each.pid for each in psutil.process_iter(["cmdline"]) if (each.info["cmdline"] or [])[-1:] == ["987"]]

    def begin(**options: object) -> str:
        job_id = client.submit_job(
            command=["sh", "-c", ignores], container={"image": IMAGE}, env=env, cwd=str(tmp_path), **options
        )["job_id"]
        until(lambda: b"begun" in b"".join(client.logs(job_id)), "it runs", 60)
        assert sleeping()
        return str(job_id)

    cancelled = begin()
    client.cancel(cancelled)
    assert client.wait(cancelled, 60)["state"] == "cancelled" and not sleeping()
    killed = begin()
    titles = {each.pid: " ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])}
    shims = [pid for pid, title in titles.items() if f"shim {killed}" in title]
    os.kill(shims[0], signal.SIGKILL)
    assert client.wait(killed, 60)["state"] in ("failed", "lost")
    until(lambda: not sleeping(), "what its shim left is ended", 60)
    left = json.loads(podman(env, "ps", "--all", "--format", "json").stdout or "[]")
    assert left == []


def test_another_command_is_inside_of_the_container(shared_agent: Agent, env: dict[str, str], tmp_path: Path) -> None:
    client = shared_agent.client()
    (tmp_path / "here.txt").write_text("its directory\n")
    job_id = client.submit_job(
        command=["sh", "-c", "echo begun; sleep 986"],
        container={"image": IMAGE},
        env={**env, "NAME": "a b"},
        cwd=str(tmp_path),
    )["job_id"]
    until(lambda: b"begun" in b"".join(client.logs(job_id)), "it runs", 60)
    # Of the image there is one program; its directory, its variables and its status are the job's.
    script = "test ! -e /usr/bin/env && echo inside; cat here.txt; echo $NAME; cat; exit 7"
    done = shared_agent.cli("exec", "--no-pty", job_id, "--", "sh", "-c", script, input="said\n", check=False)
    assert (done.returncode, done.stdout) == (7, "inside\nits directory\na b\nsaid\n"), done.stderr
    none = shared_agent.cli("exec", "--no-pty", job_id, "--", "no-such-program", check=False)
    assert none.returncode == 127
    client.cancel(job_id)
    assert client.wait(job_id, 60)["state"] == "cancelled"


def test_a_checkpoint_follows_a_container(shared_agent: Agent, env: dict[str, str], tmp_path: Path) -> None:
    client = shared_agent.client()
    script = (
        "cd $ACTORGRID_CHECKPOINT_DIR; test -e n && { echo from $(cat n); exit 0; };"
        " echo 1 > n; echo > .checkpoint-ready; exit 3"
    )
    job_id = client.submit_job(
        command=["sh", "-c", script],
        container={"image": IMAGE},
        checkpoint={"path": "ckpt"},
        env=env,
        cwd=str(tmp_path),
        retries=1,
    )["job_id"]
    assert client.wait(job_id, 120)["state"] == "succeeded"
    assert b"".join(client.logs(job_id)) == b"from 1\n"


@pytest.mark.parametrize("device", ["nvidia.com/gpu=GPU-0", "/dev/kfd", "/dev/dri"])
def test_podmans_own_words_for_a_gpu_that_it_cannot_hand_on_are_known(env: dict[str, str], device: str) -> None:
    if device.startswith("/dev") and os.path.exists(device):
        pytest.skip(f"{device} is here")
    done = podman(env, "run", "--rm", "--network", "host", "--device", device, IMAGE, "sh", "-c", "echo ran")
    assert done.stdout == ""
    spec: Any = {"container": {"wish": {"image": IMAGE}}}
    found = failure_of_runtime(spec, done.returncode, done.stderr)
    assert found is not None and "its GPU cannot be handed on" in found.message, done.stderr
