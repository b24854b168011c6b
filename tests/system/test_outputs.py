"""Jobs keep what they are asked to, each attempt its own, and it is fetched from any host."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import actorgrid
from actorgrid.errors import BadRequest, NotFound, WrongState
from tests.processes import until
from tests.system.agent import Agent

WRITE = """
import os, pathlib, sys
out = pathlib.Path("results"); out.mkdir()
(out / "deep").mkdir()
(out / "deep" / "model.bin").write_bytes(os.urandom(3_000_000))
(out / "name.txt").write_text(sys.argv[1])
print(pathlib.Path("text.txt").read_text())
"""


def test_jobs_of_one_directory_keep_outputs_of_their_own(shared_agent: Agent, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "text.txt").write_text("was sent")
    (project / "write.py").write_text(WRITE)
    with actorgrid.connect(data_dir=shared_agent.data_dir, working_dir=project) as client:
        ran = [
            client.run([sys.executable, "write.py", name], outputs=["results/", "absent.txt"], check=True)
            for name in ("first", "second")
        ]
        for name, result in zip(("first", "second"), ran, strict=True):
            assert result.stdout == b"was sent\n" and b"'absent.txt' was not there" in result.stderr
            files = client.files(result.job_id)
            assert [each.path for each in files] == ["results/deep/model.bin", "results/name.txt"]
            written = client.fetch(result.job_id, to=tmp_path / name)
            assert (tmp_path / name / "results" / "name.txt").read_text() == name
            assert written[0].stat().st_size == 3_000_000
        # A folder within is written by its own name, as cp does it.
        assert client.fetch(ran[0].job_id, "results/deep", tmp_path / "one") == [
            tmp_path / "one" / "deep" / "model.bin"
        ]
        with pytest.raises(NotFound, match="no such file"):
            client.fetch(ran[0].job_id, "results/none")
        plain = client.run(["true"])
        with pytest.raises(NotFound, match="not asked to keep"):
            client.files(plain.job_id)
        failed = client.run([sys.executable, "-c", "open('log','w').write('why'); 1/0"], outputs=["log"])
        assert failed.state == "failed" and [each.path for each in client.files(failed.job_id)] == ["log"]
        kept = client.submit(lambda: Path("made").write_text("by a function"), durable=True, outputs=["made"])
        assert kept.result(60) and client.fetch(kept.job_id, to=tmp_path / "f")[0].read_text() == "by a function"
        running = client.submit_job(command=["sleep", "60"], outputs=["x"])["job_id"]
        with pytest.raises(WrongState, match="no outputs yet"):
            client.files(running)
        client.cancel(running)
        with pytest.raises(BadRequest):
            client.run(["true"], outputs=["../up"])
    left = shared_agent.data_dir / "working_dirs"
    assert not any(path.name == "results" for path in left.glob("*/results")), "what was sent is as it was"
    assert not list((shared_agent.data_dir / "attempts").glob("*/cwd"))


def test_run_brings_them_here_and_get_brings_them_again(shared_agent: Agent, tmp_path: Path) -> None:
    project, here = tmp_path / "project", tmp_path / "here"
    project.mkdir()
    here.mkdir()
    (project / "text.txt").write_text("was sent")
    (project / "write.py").write_text(WRITE)
    before = os.getcwd()
    os.chdir(here)
    try:
        words = [
            "run",
            "--json",
            "--working-dir",
            str(project),
            "--out",
            "results",
            "--",
            sys.executable,
            "write.py",
            "x",
        ]
        done = json.loads(shared_agent.cli(*words).stdout)
        assert (here / "results" / "name.txt").read_text() == "x" and done["missing"] == [] and not done["problem"]
        job = done["job_id"]
        listed = shared_agent.cli("get", job, "--list").stdout
        assert "results/deep/model.bin" in listed
        fetched = shared_agent.cli("get", f"{job[:10]}:results/name.txt", "again").stdout
        assert fetched == "again/name.txt\n" and Path("again/name.txt").read_text() == "x"
        assert shared_agent.cli("get", f"{job}:nothing", check=False).returncode == 4
        words[words.index("--") :] = ["--", "true"]
        missing = shared_agent.cli(*[word for word in words if word != "--json"], check=False)
        assert missing.returncode == 1 and "results was not there" in missing.stderr
        # Where the job ran in this very directory, it is here already.
        ran = shared_agent.cli("run", "--out", "made", "--", "sh", "-c", "echo it > made")
        assert Path("made").read_text() == "it\n" and not ran.stderr
    finally:
        os.chdir(before)


def test_a_large_file_comes_whole_and_small_bounds_hold(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "host", "work.outputs_bytes_max=30MiB").start()
    try:
        client = agent.client()
        large = "head -c 20000000 /dev/urandom > big; cksum < big"
        ran = client.run(["sh", "-c", large], outputs=["big"], cwd=tmp_path, check=True)
        (path,) = client.fetch(ran.job_id, to=tmp_path / "there")
        there = client.run(["sh", "-c", f"cksum < {path}"], check=True)
        assert there.stdout == ran.stdout
        more = client.run(["sh", "-c", "head -c 40000000 /dev/zero > big"], outputs=["big"], cwd=tmp_path, check=True)
        assert b"outputs are not whole" in more.stderr
        again = client.run(["sh", "-c", large], outputs=["big"], cwd=tmp_path, check=True)
        kept = agent.data_dir / "attempts"
        until(lambda: not (kept / f"{ran.job_id}.1" / "outputs").exists(), "the older one gave way to the newer", 90)
        assert client.files(again.job_id)[0].size_bytes == 20_000_000
    finally:
        agent.close()
