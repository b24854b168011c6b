"""Work runs in the Python environment that it asks for: tasks, durable functions, commands, through every door."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.server
import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import actorgrid
from actorgrid.actors.work.python_switch import own_folder
from actorgrid.errors import EnvironmentFailed, PythonMismatch
from tests import versions
from tests.processes import until
from tests.system.agent import Agent
from tests.wheels import make_wheel

OTHER = next((each for each in versions.interpreters() if each.version != sys.version_info[:2]), None)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    make_wheel(folder, "of_folder", "1.5", "VALUE = 42\n")
    make_wheel(folder, "of_folder", "2.0", "VALUE = 43\n")
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
    import importlib.util

    import of_folder  # type: ignore[import-not-found]

    return {
        "value": of_folder.VALUE,
        "prefix": sys.prefix,
        "venv": os.environ["VIRTUAL_ENV"],
        "first": os.environ["PATH"].split(":")[0],
        "others": [name for name in ("pytest", "pydantic", "aiohttp") if importlib.util.find_spec(name)],
        "nested": actorgrid.current_task().id != "",
    }


def packages(index: Path, *more: str) -> list[str]:
    return ["--no-index", f"--find-links {index}", *more]


def test_tasks_jobs_and_commands_run_in_the_environment_of_their_client(
    connect: Callable[..., actorgrid.Client], shared_agent: Agent, index: Path, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("\n".join(packages(index, "of_folder<2")))
    client = connect(env=tmp_path / "requirements.txt", stream_output=False)
    found = [client.submit(look).result(100), client.submit(look, durable=True).result(100)]
    # Served by a process that has served another, and in one of its own.
    found += [
        client.submit(look, durable=True).result(100),
        client.submit(look, durable=True, memory="1GiB").result(100),
    ]
    place = found[0]["prefix"]
    assert str(place).startswith(str(shared_agent.data_dir / "environments"))
    for each in found:
        assert each == {
            "value": 42,
            "prefix": place,
            "venv": place,
            "first": f"{place}/bin",
            "others": [],
            "nested": True,
        }
    ran = client.run(["python", "-c", "import of_folder, sys; print(of_folder.VALUE, sys.prefix)"], check=True)
    assert ran.stdout.decode().split()[0] == "42"
    # Another task of the same client asks for another environment, and gets workers of its own.
    assert client.submit(look, env=packages(index, "of_folder>=2")).result(100)["value"] == 43
    assert client.submit(look).result(100)["value"] == 42


def generate() -> Iterator[int]:
    import of_folder

    yield from range(of_folder.VALUE, of_folder.VALUE + 3)


async def later() -> int:
    import of_folder

    return int(of_folder.VALUE)


class Holder:
    def __init__(self) -> None:
        import of_folder

        self.value = of_folder.VALUE

    def get(self) -> int:
        return int(self.value)


def test_streams_coroutines_maps_and_actors_are_of_the_environment_too(
    connect: Callable[..., actorgrid.Client], index: Path
) -> None:
    client = connect(env=packages(index, "of_folder<2"), stream_output=False)
    with client:
        assert list(client.stream(generate)) == [42, 43, 44]
        assert client.submit(later).result(100) == 42
        assert list(client.map(lambda x: x + __import__("of_folder").VALUE, range(3))) == [42, 43, 44]
        holder = actorgrid.actor(Holder).create()
        assert holder.get().result(100) == 42


def test_the_command_line_builds_shows_and_removes(shared_agent: Agent, index: Path, tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("\n".join(packages(index)))
    (tmp_path / "show.py").write_text("import of_folder, sys\nprint(of_folder.VALUE, *sys.argv[1:])\n")
    flags = ["-r", str(tmp_path / "r.txt"), "--with", "of_folder==2.0"]
    ran = shared_agent.cli("run", *flags, "--", "python", str(tmp_path / "show.py"), "a")
    assert ran.stdout == "43 a\n" and "building environment" in ran.stderr
    again = shared_agent.cli("run", *flags, "--", "python", str(tmp_path / "show.py"))
    assert again.stdout == "43\n" and "building" not in again.stderr
    job = shared_agent.cli("submit", *flags, str(tmp_path / "show.py"), "b").stdout.strip()
    assert shared_agent.client().wait(job, 100)["state"] == "succeeded"
    assert shared_agent.cli("logs", job).stdout == "43 b\n"
    rows = json.loads(shared_agent.cli("environments", "--json").stdout)["environments"]
    (mine,) = [row for row in rows if row["packages"] == ["of_folder==2.0"] and row["size_bytes"]][:1]
    assert mine["state"] == "ready" and mine["digest"][:12] in shared_agent.cli("environments").stdout
    assert shared_agent.cli("environments", "show", mine["digest"][:10]).stdout == "of_folder==2.0\n"
    assert shared_agent.cli("environments", "remove", "zz", check=False).returncode == 4


def test_an_environment_that_cannot_be_built_fails_by_name_wherever_it_is_asked_for(
    connect: Callable[..., actorgrid.Client], shared_agent: Agent, index: Path
) -> None:
    client = connect(env=packages(index, "of_folder>=3"), stream_output=False)
    with pytest.raises(EnvironmentFailed, match=r"of.folder"):
        client.submit(look).result(100)
    with pytest.raises(Exception, match=r"of.folder"):
        client.submit(look, durable=True).result(100)
    ran = client.run(["python", "-V"])
    assert ran.state == "failed" and "make the Python environment" in json.dumps(ran.job)
    assert connect().submit(sum, [1, 2]).result(100) == 3, "the host goes on"


@pytest.mark.skipif(OTHER is None, reason="there is one Python on this machine")
def test_commands_take_another_python_and_functions_that_of_their_client(
    connect: Callable[..., actorgrid.Client], index: Path
) -> None:
    assert OTHER is not None
    client = connect(stream_output=False)
    code = f"import of_folder, sys; print(sys.version_info[:2] == {OTHER.version!r}, of_folder.VALUE)"
    ran = client.run(["python", "-c", code], env=packages(index, "of_folder"), python=OTHER.name, check=True)
    assert ran.stdout == b"True 43\n"
    with pytest.raises(PythonMismatch):
        client.submit(look, env=packages(index, "of_folder"), python=OTHER.name).result(100)
    with pytest.raises(PythonMismatch):
        client.submit(look, env=packages(index, "of_folder"), python=OTHER.name, durable=True).result(100)


CLIENT_OF_ANOTHER_PYTHON = """
import sys, actorgrid
client = actorgrid.connect(data_dir=sys.argv[1], env=["--no-index", "--find-links " + sys.argv[2], "of_folder"],
                           stream_output=False)
def look():
    import of_folder, sys
    return sys.version_info[:2] == VERSION, of_folder.VALUE
VERSION = sys.version_info[:2]
print(client.submit(look).result(100), client.submit(look, durable=True).result(100))
client.close()
"""


@pytest.mark.skipif(OTHER is None, reason="there is one Python on this machine")
def test_a_client_of_another_python_than_the_hosts_sends_functions_to_an_environment_of_its_own(
    shared_agent: Agent, index: Path, tmp_path: Path
) -> None:
    assert OTHER is not None
    own = own_folder(tmp_path, OTHER.name)
    code = f"import sys; sys.path.insert(0, {str(own)!r})\n{CLIENT_OF_ANOTHER_PYTHON}"
    (tmp_path / "client.py").write_text(code)
    done = subprocess.run(
        [OTHER.path, "-I", tmp_path / "client.py", shared_agent.data_dir, index],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stdout.strip() == "(True, 43) (True, 43)", done.stderr


class SlowIndex(http.server.SimpleHTTPRequestHandler):
    asked = threading.Event()
    go_on = threading.Event()

    def do_GET(self) -> None:
        self.asked.set()
        self.go_on.wait(100)
        with contextlib.suppress(BrokenPipeError):
            super().do_GET()

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def slow_index(index: Path) -> Iterator[str]:
    class Here(SlowIndex):
        asked, go_on = threading.Event(), threading.Event()

        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(index))  # type: ignore[arg-type]

    SlowIndex.current = Here  # type: ignore[attr-defined]
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Here) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        Here.go_on.set()
        server.shutdown()


def test_a_builds_time_is_not_the_works_and_a_cancel_ends_it(
    connect: Callable[..., actorgrid.Client], shared_agent: Agent, slow_index: str
) -> None:
    held = SlowIndex.current  # type: ignore[attr-defined]
    client = connect(env=["--no-index", f"--find-links {slow_index}", "of_folder<2"], stream_output=False)
    waits = client.submit(look, timeout=4.0, durable=True, cpus=0.25)
    assert held.asked.wait(100)

    def rows(state: str) -> list[dict[str, object]]:
        return [row for row in client.http.get("/api/environments")["environments"] if row["state"] == state]

    building = until(lambda: rows("building"), "it is shown as being built")
    assert building[0]["last_line"]
    task = client.submit(look, cpus=0.25)  # waits for the same build
    threading.Event().wait(5.0)  # longer than the job may run
    assert not waits.done()
    assert connect().submit(sum, [1], cpus=0.25).result(100) == 1  # the host is not held up by it
    held.go_on.set()
    assert waits.result(100)["value"] == 42 and task.result(100)["value"] == 42
    # And one whose build is cancelled leaves none.
    held.go_on.clear()
    held.asked.clear()
    asked = actorgrid.Environment(["--no-index", f"--find-links {slow_index}", "of_folder", "--pre"])
    other, digest = connect(env=asked, stream_output=False), asked.spec().digest
    job = other.submit(look, durable=True)
    assert held.asked.wait(100)
    assert other.cancel(job.job_id)
    assert client.wait(job.job_id, 100)["state"] == "cancelled"
    held.asked.clear()
    task = other.submit(look)
    assert held.asked.wait(100)
    other.close()
    with pytest.raises(concurrent.futures.CancelledError):
        task.result(100)
    assert digest not in {row["digest"] for row in rows("ready")}
