"""A working directory goes along to wherever work runs: to the worker of a session, with a job, by the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import actorgrid
from actorgrid import errors, import_environment
from tests.system.agent import Agent

SHARED = """
import threading
LOCK = threading.Lock()
def text():
    with LOCK, open("data/text.txt") as file:
        return file.read()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref")
    (folder / "data" / "text.txt").write_text("what was sent")
    (folder / "data" / "large.log").write_text("left out")
    (folder / "of_project.py").write_text(SHARED)
    return folder


@pytest.fixture
def connect(shared_agent: Agent) -> Iterator[Callable[..., actorgrid.Client]]:
    made: list[actorgrid.Client] = []

    def make(**options: object) -> actorgrid.Client:
        made.append(actorgrid.connect(data_dir=shared_agent.data_dir, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


def look() -> dict[str, object]:
    import of_project  # type: ignore[import-not-found]

    files = sorted(os.path.join(at, name) for at, _, names in os.walk(".") for name in names if "pyc" not in name)
    return {"text": of_project.text(), "in": os.getcwd(), "files": files}


FILES = ["./data/text.txt", "./of_project.py"]


def test_a_session_elsewhere_and_a_job_run_in_what_was_sent(
    shared_agent: Agent,
    connect: Callable[..., actorgrid.Client],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = connect(working_dir=project, exclude=["*.log"])
    assert here.submit(look).result(60)["in"] == str(project)
    # Our client says that it is on another machine, as one on another host of a cluster is.
    monkeypatch.setattr(import_environment, "machine", lambda: "another")
    afar = connect(working_dir=project, exclude=["*.log"])
    found = [afar.submit(look, durable=durable).result(60) for durable in (False, True)]
    kept = shared_agent.data_dir / "working_dirs"
    assert [each["text"] for each in found] == ["what was sent"] * 2
    assert [each["files"] for each in found] == [FILES] * 2
    assert found[0]["in"] == found[1]["in"] and str(found[0]["in"]).startswith(str(kept))
    # By content: a client of tomorrow finds it there, and what was edited since is another.
    (project / "data" / "text.txt").write_text("edited")
    (edited,) = [client.submit(look).result(60) for client in [connect(working_dir=project, exclude=["*.log"])]]
    assert edited["text"] == "edited" and edited["in"] != found[0]["in"]
    assert afar.submit(look).result(60)["text"] == "what was sent"


def test_commands_run_in_what_the_client_or_the_command_line_sent(
    shared_agent: Agent, connect: Callable[..., actorgrid.Client], project: Path
) -> None:
    done = connect(working_dir=project).run(["cat", "data/text.txt"], check=True)
    assert done.stdout == b"what was sent"
    program = project / "main.py"
    program.write_text("import of_project, os; print(of_project.text(), os.environ['ACTORGRID_WORKING_DIR'])")
    words = ("--working-dir", str(project), "--exclude", "*.log")
    ran = shared_agent.cli("run", *words, "--", "sh", "-c", "cat data/text.txt; pwd; ls data")
    text, where, listed = ran.stdout.replace("sent/", "sent\n/").split()[-3:]
    assert (text, listed) == ("sent", "text.txt") and where.startswith(str(shared_agent.data_dir))
    job_id = json.loads(shared_agent.cli("submit", "--json", *words, str(program)).stdout)["job_id"]
    client = connect()
    assert client.wait(job_id, 60)["state"] == "succeeded"
    assert b"".join(client.logs(job_id)).startswith(b"what was sent " + str(shared_agent.data_dir).encode())


def test_what_cannot_be_is_refused_by_name(shared_agent: Agent, project: Path) -> None:
    client = shared_agent.client()
    with pytest.raises(errors.BadRequest, match="archive of the working directory is not here"):
        client.submit_job(command=["true"], working_dir="0" * 64)
    with pytest.raises(errors.BadRequest, match="not of that digest"):
        client.http.post("/api/working-dirs", {"digest": "0" * 64, "archive": b"x"})
    with pytest.raises(errors.MalformedBody):
        client.http.post("/api/working-dirs", {"digest": "../../x"})
    both = shared_agent.cli("run", "--working-dir", str(project), "--cwd", "/", "--", "true", check=False)
    assert both.returncode == 2 and "--working-dir" in both.stderr


def test_a_hostile_archive_fails_its_job_and_writes_nowhere(shared_agent: Agent, tmp_path: Path) -> None:
    import hashlib
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../escaped", "x")
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    client = shared_agent.client()
    client.http.post("/api/working-dirs", {"digest": digest, "archive": buffer.getvalue()})
    job = client.wait(client.submit_job(command=["true"], working_dir=digest)["job_id"], 60)
    assert job["state"] == "failed"
    said = job["attempts"][-1]["error"]["message"]
    assert "cannot unpack the working directory" in said and "escaped" in said
    assert "cannot unpack the working directory" in shared_agent.cli("why", job["job_id"]).stdout
    assert not list(shared_agent.data_dir.parent.rglob("escaped"))
