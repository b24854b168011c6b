"""Shares of a GPU under MPS, of tenants' users on a host that runs as root: each has a daemon of its own uid."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.actors.work.isolation.probes import try_out
from tests.gpu.conftest import stub_library
from tests.gpu.drivers.build import NVML
from tests.gpu.drivers.mps_control import STUB_LOG
from tests.gpu.drivers.mps_stub import MpsStub
from tests.gpu.drivers.stubs import StubDriver
from tests.processes import is_alive, until
from tests.system.agent import closing_all
from tests.system.cluster_host import ClusterHost
from tests.work.hostile_jobs import REFUSED

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that runs as root has other uids for work"),
]

SHARE = {"gpus": 0.2, "cpus": 0.05}
# A client of the daemon that its variables name; waits then, if it is told to.
CLIENT = """
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control")
    connection.sendall(b"client")
    memory = connection.recv(4096).decode()
said = {"uid": os.getuid(), "memory": open(memory).read(), "pipe": os.environ["CUDA_MPS_PIPE_DIRECTORY"]}
said["percentage"] = os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
print(json.dumps(said), flush=True)
if len(sys.argv) > 1:
    signal.pause()
"""
HOSTILE = """
import ctypes, json, os, signal, socket, sys
facts = json.loads(sys.argv[1])
tried = {}
def attempt(name, act):
    try:
        tried[name] = repr(act())[:200]
    except OSError as error:
        tried[name] = type(error).__name__
def connect(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"client")
        return connection.recv(4096)
attempt("their pipe, as they name it", lambda: connect(facts["pipe"] + "/control"))
attempt("their pipe, where it lies", lambda: connect(facts["pipe here"] + "/control"))
attempt("their pipe, through their daemon", lambda: connect(f"/proc/{facts['daemon']}/root{facts['pipe']}/control"))
attempt("their daemon's end", lambda: os.kill(facts["daemon"], signal.SIGKILL))
attempt("their daemon's environment", lambda: open(f"/proc/{facts['daemon']}/environ").read())
attempt("their memory", lambda: os.listdir(facts["memory"]))
attempt("a daemon in their place", lambda: os.mkdir(facts["pipe here"]))
attempt("the token", lambda: open(facts["token"]).read())
attempt("others' logs", lambda: os.listdir(facts["logs"]))
attempt("the agents' own pipes", lambda: os.listdir(facts["data"]))
print(json.dumps(tried))
"""


@pytest.fixture(scope="module")
def host() -> Iterator[ClusterHost]:
    if try_out().best != "full":
        pytest.skip(f"this host cannot keep work apart: {'; '.join(try_out().missing())}")
    around = Path(tempfile.mkdtemp())
    around.chmod(0o755)
    nvml, stub = StubDriver(NVML, stub_library(NVML), around / "nvml.state"), MpsStub(around)
    nvml.set(driver="600.01", cuda=13010, nvml="13.600.01")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**nvml.variables, **stub.variables}.items():
            patch.setenv(name, value)
        nvml.add_gpu(0)
        settings = ("gpus.probe_interval_s=0.5", "gpus.probe_timeout_s=60", "gpus.mps=true")
        made = ClusterHost(around / "host", "nvidia", *settings)
        try:
            with closing_all((made,)):
                made.found()
                yield made
        finally:
            for daemon in daemons(made):
                if is_alive(daemon["pid"]):
                    os.kill(daemon["pid"], signal.SIGKILL)
                shutil.rmtree(f"/dev/shm/actorgrid-{daemon['uid']}", ignore_errors=True)
            stub.close()
    shutil.rmtree(around)


def daemons(host: ClusterHost) -> list[dict[str, Any]]:
    """Those that have a uid of work's, as they say of themselves."""
    logs = host.data_dir.glob(f"mps/*/home/{STUB_LOG}")
    return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


def client_of(host: ClusterHost, user: str, tenant: str) -> actorgrid.Client:
    made = host.cli_json("key", "create", "--user", user, "--role", "user", "--tenant", tenant)
    return actorgrid.connect(made["url"], made["key"], ca_fingerprint=made["ca_fingerprint"])


def said_by(host: ClusterHost, client: actorgrid.Client, program: str, *arguments: str) -> Any:
    job_id = client.submit_job(command=["python3", "-c", program, *arguments], **SHARE)["job_id"]
    ended = client.wait(job_id, 60)
    assert ended["state"] == "succeeded", (ended["error"], host.cli("logs", job_id, check=False))
    return json.loads(host.cli("logs", job_id).stdout)


def waiting(host: ClusterHost, client: actorgrid.Client) -> tuple[str, Any]:
    """A client that stays, and what it has said."""
    job_id = client.submit_job(command=["python3", "-c", CLIENT, "stay"], **SHARE)["job_id"]
    until(lambda: "pipe" in host.cli("logs", job_id).stdout, "it to be a client", within_s=60)
    return job_id, json.loads(host.cli("logs", job_id).stdout)


def own_uid() -> tuple[int, str]:
    import os
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control")
        connection.sendall(b"client")
        with open(connection.recv(4096)) as memory:
            return os.getuid(), memory.read()


def test_each_user_of_a_tenant_has_shares_under_a_daemon_of_its_uid(host: ClusterHost) -> None:
    with client_of(host, "ann", "lab") as ann, client_of(host, "eve", "lab") as eve:
        first, again, other = (said_by(host, client, CLIENT) for client in (ann, ann, eve))
        assert 0 != first["uid"] == again["uid"] != other["uid"] != 0
        assert first["memory"] == "of the server" and first["percentage"] == "20"
        assert first["pipe"] == again["pipe"] != other["pipe"]
        of_uid = {daemon["uid"]: daemon for daemon in daemons(host)}
        assert set(of_uid) == {first["uid"], other["uid"]} and len(daemons(host)) == 2
        assert of_uid[first["uid"]]["CUDA_MPS_PIPE_DIRECTORY"] == first["pipe"]
        assert not any(name.startswith("ACTORGRID") for name in of_uid[first["uid"]]["environ"])
        told = host.cli_json("inspect", "gpu_coordinator")["inspect"]["status"]["mps"]
        assert {one["uid"] for one in told["daemons"]} == set(of_uid) and told["without"] == []
        # A worker of its sessions is under the same one, and an own daemon does not stand for it.
        assert ann.submit(own_uid, **SHARE).result(60) == (first["uid"], "of the server")


def test_a_share_at_full_says_that_kernel_and_driver_hold_it(host: ClusterHost) -> None:
    with client_of(host, "ann", "lab") as ann:
        job_id, _ = waiting(host, ann)
        by = {"files": "kernel", "processes": "kernel", "gpu_compute": "driver"}
        until(
            lambda: ann.http.get(f"/api/jobs/{job_id}")["enforced_by"].items() >= by.items(),
            "the word that they do",
            within_s=60,
        )
        asked = ann.submit_job(command=["true"], min_isolation="kernel", **SHARE)["job_id"]
        assert ann.wait(asked, 60)["state"] == "succeeded"
        ann.cancel(job_id)


def test_nothing_that_a_hostile_share_tries_on_another_tenants_goes_through(host: ClusterHost) -> None:
    with client_of(host, "ann", "lab") as ann, client_of(host, "bob", "works") as bob:
        job_id, victim = waiting(host, bob)
        (daemon,) = [each for each in daemons(host) if each["uid"] == victim["uid"] and is_alive(each["pid"])]
        facts = {
            "pipe": victim["pipe"],
            "pipe here": str(host.data_dir / "users" / str(victim["uid"]) / "sockets" / Path(victim["pipe"]).name),
            "daemon": daemon["pid"],
            "memory": f"/dev/shm/actorgrid-{victim['uid']}",
            "token": str(host.data_dir / "token"),
            "logs": str(host.data_dir / "mps"),
            "data": str(Path(victim["pipe"]).parent / "doors"),
        }
        assert Path(facts["pipe here"], "control").is_socket() and Path(facts["memory"]).is_dir()
        tried = said_by(host, ann, HOSTILE, json.dumps(facts))
        assert {name: said for name, said in tried.items() if said not in REFUSED} == {}
        assert is_alive(daemon["pid"])
        with socket.socket(socket.AF_UNIX) as root:  # which may open it: no client has another uid
            root.connect(f"{facts['pipe here']}/control")
            root.sendall(b"client")
            assert root.recv(4096) == b"User did not send valid credentials"
        assert bob.http.get(f"/api/jobs/{job_id}")["state"] == "running"
        bob.cancel(job_id)


def test_a_variable_of_ones_own_makes_no_work_less_apart(host: ClusterHost) -> None:
    with client_of(host, "ann", "lab") as ann:
        env = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mine"}
        job_id = ann.submit_job(command=["id", "-u"], env=env, cpus=0.05)["job_id"]
        assert ann.wait(job_id, 60)["state"] == "succeeded"
        assert int(host.cli("logs", job_id).stdout) != 0


def test_what_a_daemons_user_says_of_it_is_believed_of_its_own_processes_alone(host: ClusterHost) -> None:
    """Its folder is its user's: a pid there may be anybody's, and is signalled by root."""
    with client_of(host, "mal", "lab") as mal:
        program = """
import json, os, socket
pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
own = pipe + "/nvidia-cuda-mps-control.pid"
os.unlink(own)
os.mkfifo(own)
print(json.dumps(os.getuid()))
"""
        uid = said_by(host, mal, program)
        (daemon,) = [each for each in daemons(host) if each["uid"] == uid]
        os.kill(daemon["pid"], signal.SIGKILL)  # as the user may
        until(lambda: len([one for one in daemons(host) if one["uid"] == uid]) > 1, "another daemon", within_s=60)
        assert host.cli_json("inspect", "gpu_coordinator")["inspect"]["status"]["mps"]["on"]
