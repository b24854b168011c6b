"""Hostile jobs under an agent that is not root: they have its uid, and Landlock and a filter of calls keep them in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.work.isolation.probes import SHUT_IN_NEEDS, try_out
from tests.work.disk_floods import check_disk_floods
from tests.work.floods import check_floods
from tests.work.hostile_jobs import HOSTILE, REFUSED
from tests.work.rig import Rig, wait_for
from tests.work.sent_directory import check_sent_directory

pytestmark = pytest.mark.system
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="the tests below run by themselves where we are not root")
is_nobody = pytest.mark.skipif(os.geteuid() == 0, reason="run by the first test, as a user that is not root")

ANN, BOB = "ann@lab", "bob@works"


@is_root
def test_all_of_these_hold_for_a_user_that_is_not_root() -> None:
    missing = [name for name in SHUT_IN_NEEDS if not try_out().has(name)]
    if missing:
        pytest.skip(f"this kernel has no {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "system", __file__]
        launcher = [sys.executable, "-m", "tests.unprivileged", *command, f"--basetemp={folder}/tests"]
        root = Path(__file__).resolve().parents[2]
        environment = {**os.environ, "TMPDIR": folder}
        run = subprocess.run(launcher, env=environment, cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if try_out().best != "full":
        pytest.skip(f"this host cannot keep work apart: {'; '.join(try_out().missing())}")
    made = Rig(tmp_path_factory.mktemp("shut"))
    made.context.paths.token_file.write_text("secret")
    made.start_manager()
    yield made
    made.close()


def run(rig: Rig, name: str, program: str, *arguments: str, user: str = ANN, **fields: Any) -> str:
    job = rig.run(name, command=["python3", "-c", textwrap.dedent(program), *arguments], user_id=user, **fields)
    assert job["state"] == "succeeded", (job["error"], rig.output(f"{name}.1", "stderr"))
    return rig.output(f"{name}.1")


@is_nobody
def test_nothing_that_a_hostile_job_tries_goes_through(rig: Rig) -> None:
    rig.submit("victim", command=["sh", "-c", "echo mine > $HOME/secret; echo up; exec sleep 600"], user_id=ANN)
    rig.running(rig.grant("victim"))
    wait_for(lambda: [rig.node.step(0.05), "up" in rig.output("victim.1")][1], what="the victim to be up")
    (pid,) = [each for each in rig.marked("victim.1") if b"sleep" in Path(f"/proc/{each}/cmdline").read_bytes()]
    paths = rig.context.paths
    facts = {
        "token": str(paths.token_file),
        "data": str(paths.data_dir),
        "sockets": str(paths.work_sockets_dir),
        "secret": str(rig.dir("victim.1").path / "home" / "secret"),
        "other": pid,
        "agent": os.getpid(),
        "mine": str(rig.dir("hostile.1").path),
    }
    tried = json.loads(run(rig, "hostile", HOSTILE, json.dumps(facts)))
    went_through = {name: said for name, said in tried.items() if said not in REFUSED}
    # Its own uid's, and its own: who is what it is already gains nothing.
    assert went_through == {}
    os.kill(pid, signal.SIGKILL)
    rig.ended("victim.1")
    assert run(rig, "next", "print('runs')") == "runs\n"


@is_nobody
def test_floods_and_flights_end_in_a_limit_and_the_next_job_runs(rig: Rig) -> None:
    check_floods(rig, ANN)


@is_nobody
def test_floods_of_the_disk_end_by_name_and_the_next_job_runs(rig: Rig) -> None:
    check_disk_floods(rig, ANN)


@is_nobody
def test_no_socket_of_the_agents_can_be_spoken_to_and_pairs_and_tcp_work(rig: Rig) -> None:
    program = """
    import socket
    def can(act):
        try:
            act()
        except OSError as error:
            return type(error).__name__
        return "yes"
    def listen():
        socket.create_server(("127.0.0.1", 0)).close()
    print(can(lambda: socket.socket(socket.AF_UNIX)), can(socket.socketpair), can(listen))
    """
    assert run(rig, "sockets", program) == "PermissionError yes yes\n"


@is_nobody
def test_what_it_needs_is_there(rig: Rig) -> None:
    program = """
    import multiprocessing, os, tempfile, threading
    open(os.path.join(os.environ["HOME"], "x"), "w").close()
    tempfile.NamedTemporaryFile().close()
    multiprocessing.Semaphore()
    thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
    print(os.getcwd() == os.environ["HOME"], os.path.exists(os.environ["ACTORGRID_CREDENTIAL_FILE"]))
    """
    assert run(rig, "needs", program) == "thread\nTrue True\n"


@is_nobody
def test_a_function_runs_so_and_its_result_is_taken(rig: Rig) -> None:
    def look() -> str:
        import os

        try:
            return str(os.listdir(os.path.dirname(os.path.dirname(os.environ["HOME"]))))
        except OSError as error:
            return type(error).__name__

    rig.submit_function("f", look, user_id=ANN)
    job = rig.run("f")
    assert job["state"] == "succeeded", job["error"]
    assert b"PermissionError" in rig.dir("f.1").result.read_bytes()


@is_nobody
def test_a_directory_of_the_agents_or_around_it_is_refused(rig: Rig) -> None:
    for number, cwd in enumerate((rig.paths.data_dir, rig.paths.data_dir.parent, Path("/"))):
        job = rig.run(f"cwd{number}", command=["true"], user_id=ANN, cwd=str(cwd))
        assert (job["state"], job["error"]["code"]) == ("failed", "IsolationNotGiven")


@is_nobody
def test_the_folder_of_its_attempt_is_no_directory_for_it(rig: Rig) -> None:
    job = rig.run("own", command=["true"], user_id=ANN, cwd=str(rig.dir("own.1").path))
    assert (job["state"], job["error"]["code"]) == ("failed", "IsolationNotGiven")


@is_nobody
def test_a_directory_that_was_sent_is_a_copy_of_its_own(rig: Rig) -> None:
    check_sent_directory(rig, ANN)


@is_nobody
def test_one_tenant_at_a_time_in_the_order_of_their_grants(rig: Rig) -> None:
    rig.submit("first", command=["sleep", "600"], user_id=ANN)
    rig.running(rig.grant("first"))
    rig.submit("second", command=["true"], user_id=BOB)
    rig.grant("second")
    assert rig.manager is not None
    live = rig.manager._attempts.live
    waits = "work of tenant lab to end"
    wait_for(lambda: [rig.node.step(0.05), waits in live["second.1"].waits_for][1], what="the second to wait")
    assert rig.job("second")["state"] == "placed"
    (pid,) = [each for each in rig.marked("first.1") if b"sleep" in Path(f"/proc/{each}/cmdline").read_bytes()]
    os.kill(pid, signal.SIGKILL)
    rig.ended("first.1")
    assert rig.ended("second.1")["state"] == "succeeded"


@is_nobody
def test_a_tenants_container_does_not_get_what_the_agent_may_read(rig: Rig) -> None:
    token = rig.context.paths.token_file
    mount = {"source": str(token.parent), "target": "/in", "read_only": True}
    box = {"image": "localhost/x:1", "mounts": [mount]}
    rig.submit("boxed", command=["cat", f"/in/{token.name}"], container=box, user_id=ANN)
    rig.grant("boxed")
    rig.node.run_until(lambda: rig.job("boxed")["state"] == "failed", what="it to be refused")
    job = rig.job("boxed")
    assert (job["state"], job["error"]["code"]) == ("failed", "IsolationNotGiven")
    assert "may not make" in json.dumps(job["error"])
