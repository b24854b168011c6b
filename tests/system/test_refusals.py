"""Bad input and a bad world get a named error that says what to try; the agent goes on."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import actorgrid
from actorgrid import errors
from actorgrid.configs.paths import HostPaths
from tests.processes import until
from tests.system.agent import SERVERS, Agent, is_root

MakeAgent = Callable[..., Agent]


def post(agent: Agent, path: str, body: bytes, token: str | None = None, kind: str = "application/json") -> Any:
    """A raw request, as a program without our client would send it: (status, parsed body)."""
    token = token if token is not None else (agent.data_dir / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    request = urllib.request.Request(agent.ready["url"] + path, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def refusal(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    status, body = answer
    assert body["error"]["hint"], body
    return status, body["error"]["code"]


def test_an_unknown_gpu_model_is_refused_at_once_with_what_exists(shared_agent: Agent) -> None:
    client = shared_agent.client()
    with pytest.raises(errors.UnknownGpuModel) as caught:
        client.submit_job(command=["true"], gpus=1, gpu_models=["H1OO"])
    assert "H100" in caught.value.found + caught.value.hint
    assert client.jobs() == []


def test_more_gpus_than_exist_are_refused_at_once_with_what_exists(shared_agent: Agent) -> None:
    client = shared_agent.client()
    with pytest.raises(errors.TooManyGpus, match="4 x H100"):
        client.submit_job(command=["true"], gpus=5)
    with pytest.raises(errors.TooManyGpus):
        client.submit_job(command=["true"], gpus=1, gpu_memory_bytes="81GiB")
    done = shared_agent.cli("run", "--gpus", "5", "--", "true", check=False)
    assert done.returncode == errors.TooManyGpus.exit_code
    assert "try:" in done.stderr


def test_malformed_and_wrong_bodies_are_refused_with_what_is_wrong(shared_agent: Agent) -> None:
    assert refusal(post(shared_agent, "/api/jobs", b'{"command": ["true"')) == (400, "MalformedBody")
    status, body = post(shared_agent, "/api/jobs", b'{"comand": ["true"]}')
    assert (status, body["error"]["code"]) == (400, "MalformedBody")
    assert "command" in json.dumps(body["error"])
    assert refusal(post(shared_agent, "/api/jobs", b"\xc1", kind="application/msgpack")) == (400, "MalformedBody")


def test_an_oversized_body_is_refused(shared_agent: Agent) -> None:
    shared_agent.cli("config", "set", "security.max_body_bytes", "10000")
    body = json.dumps({"command": ["true", "x" * 20_000]}).encode()
    until(lambda: refusal(post(shared_agent, "/api/jobs", body)) == (413, "BodyTooLarge"), "the bound holds")
    shared_agent.cli("config", "set", "security.max_body_bytes", "64MiB")
    until(lambda: post(shared_agent, "/api/jobs", body)[0] == 201, "the bound is gone")


def test_a_wrong_or_missing_token_is_refused(shared_agent: Agent) -> None:
    assert refusal(post(shared_agent, "/api/jobs", b"{}", token="wrong"))[0] == 401
    assert refusal(post(shared_agent, "/api/jobs", b"{}", token=""))[1] == "WrongToken"
    with pytest.raises(errors.WrongToken, match=r"admin\.token"):
        actorgrid.connect(url=shared_agent.ready["url"], token="wrong").cluster()


def test_functions_and_results_that_cannot_be_pickled_are_named(shared_agent: Agent) -> None:
    client = shared_agent.client()
    with socket.socket() as connection:
        with pytest.raises(errors.UnpicklableFunction, match="connection"):
            client.submit(lambda: connection.fileno())

    def give_socket() -> object:
        import socket

        return socket.socket()

    with pytest.raises(errors.UnpicklableResult, match="socket"):
        client.submit(give_socket, cpus=0.1).result(30)
    with pytest.raises(errors.UnpicklableResult):
        client.submit(give_socket, cpus=0.1, durable=True).result(30)


def test_a_client_of_another_python_is_refused_before_anything_is_sent(shared_agent: Agent) -> None:
    assert refusal(post(shared_agent, "/api/sessions", b'{"user_id": "u", "python": "3.8"}'))[1] == "PythonMismatch"
    job = json.dumps({"kind": "function", "payload": "AAAA", "python": "3.8"}).encode()
    status, body = post(shared_agent, "/api/jobs", job)
    assert (status, body["error"]["code"]) == (errors.PythonMismatch.http_status, "PythonMismatch")


def test_a_second_agent_on_the_same_data_directory_is_refused(shared_agent: Agent) -> None:
    done = subprocess.run(shared_agent.command(), capture_output=True, text=True, timeout=60)
    assert done.returncode == errors.AlreadyRunning.exit_code
    assert "AlreadyRunning" in done.stdout + done.stderr
    assert str(shared_agent.ready["pid"]) in done.stdout + done.stderr


def test_a_taken_port_is_refused_with_who_has_it(make_agent: MakeAgent) -> None:
    agent = make_agent()
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = subprocess.run([*agent.command(), "--port", str(port)], capture_output=True, text=True, timeout=60)
    assert done.returncode == errors.PortInUse.exit_code
    assert "PortInUse" in done.stdout + done.stderr
    assert str(port) in done.stdout + done.stderr


def test_a_malformed_configuration_file_is_refused_with_its_line(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent()
    (tmp_path / "cluster.yaml").write_text("work:\n  max_isolatoin_s: 5\n")
    done = subprocess.run([*agent.command(), "--config", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == errors.UnknownSetting.exit_code
    said = done.stdout + done.stderr
    assert "UnknownSetting" in said
    assert "max_isolation_s" in said
    assert "cluster.yaml" in said
    assert "2" in said
    (tmp_path / "cluster.yaml").write_text("work: [\n")
    done = subprocess.run([*agent.command(), "--config", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "MalformedConfig" in done.stdout + done.stderr


def test_a_disk_below_its_floor_stops_new_work_and_keeps_what_was_accepted(make_agent: MakeAgent) -> None:
    agent = make_agent().start()
    client = agent.client()
    kept = client.submit_job(command=["true"])["job_id"]
    agent.cli("config", "set", "performance.min_free_bytes", str(2**59))
    caught = until(lambda: refused_disk(client), "new work is refused")
    assert "free" in caught.found
    assert client.job(kept, wait_s=10)["state"] == "succeeded"
    assert "free" in " ".join(until(lambda: client.cluster()["problems"], "the health says so"))
    agent.cli("config", "set", "performance.min_free_bytes", "1MiB")
    until(lambda: refused_disk(client) is None, "new work is taken again")


def refused_disk(client: actorgrid.Client) -> errors.DiskFull | None:
    try:
        client.submit_job(command=["true"])
    except errors.DiskFull as error:
        return error
    return None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if not is_root():
        pytest.skip("mounting a small disk needs root (its twin above always runs)")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()} (its twin above always runs)")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
def test_a_really_full_disk_stops_new_work_and_keeps_what_was_accepted(small_disk: Path) -> None:
    agent = Agent(
        small_disk / "host", "performance.min_free_bytes=1MiB", "performance.ledger_segment_bytes=1MiB"
    ).start()
    try:
        client = agent.client()
        kept = [client.submit_job(command=["echo", "kept"])["job_id"] for _ in range(3)]
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 65536)
            except OSError:
                pass
        assert refused_disk(client) is not None
        states = {client.job(name)["state"] for name in kept}
        assert states <= {"queued", "placed", "running", "succeeded"}
        filler.unlink()
        until(lambda: refused_disk(client) is None, "new work is taken again")
        for name in kept:
            assert client.job(name, wait_s=20)["state"] == "succeeded"
            assert b"".join(client.logs(name)) == b"kept\n"
    finally:
        agent.close()


def test_a_flipped_bit_in_the_log_is_found_and_the_host_stays_down(make_agent: MakeAgent) -> None:
    agent = make_agent().start()
    client = agent.client()
    names = [client.submit_job(command=["true"], name=f"job {n}")["job_id"] for n in range(5)]
    for name in names:
        assert client.job(name, wait_s=10)["state"] == "succeeded"
    client.close()
    agent.kill()  # an orderly stop would leave a snapshot, and the log would hold less
    segments = sorted((agent.data_dir / "ledger").rglob("*.log"))
    data = bytearray(segments[-1].read_bytes())
    where = data.index(b"job 2")
    data[where] ^= 0x10
    segments[-1].write_bytes(data)
    for _ in range(2):
        done = subprocess.run(agent.command(), capture_output=True, text=True, timeout=60)
        assert done.returncode == errors.LogCorrupted.exit_code
        said = done.stdout + done.stderr
        assert "LogCorrupted" in said
        assert segments[-1].name in said


def test_nothing_listens_beyond_loopback(shared_agent: Agent) -> None:
    shared_agent.client().submit(os.getpid, cpus=0.1).result(30)
    seen = set()
    for process in shared_agent.processes():
        try:
            connections = process.net_connections("inet")
        except psutil.NoSuchProcess:  # one that only forked another
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN or not connection.raddr:
                seen.add(connection.laddr.ip)
    assert seen == {"127.0.0.1"}


class Witness:
    """Its unpickling leaves the pid of whoever did it."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"import os; open({self.folder!r} + '/' + str(os.getpid()), 'w').close()",)


def test_only_workers_ever_unpickle_what_users_send(shared_agent: Agent, tmp_path: Path) -> None:
    client = shared_agent.client()
    witness = Witness(tmp_path)

    def echo(value: object) -> int:
        import os

        return os.getpid()

    workers = {client.submit(echo, witness, cpus=0.1).result(30)}
    future = client.submit(echo, witness, cpus=0.1, durable=True)
    workers.add(future.result(30))
    agents = {process.pid for process in shared_agent.processes()}
    readers = {int(path.name) for path in tmp_path.iterdir()}
    assert readers == workers
    assert not readers & agents


def test_a_hostile_pickle_on_the_socket_of_any_live_actor_has_no_effect(shared_agent: Agent, tmp_path: Path) -> None:
    hostile = pickle.dumps(Witness(tmp_path))
    frame = struct.pack(">IB", len(hostile), 0) + hostile
    before = {process.pid for process in shared_agent.processes()}
    paths = HostPaths(shared_agent.data_dir)
    answering = 0
    for actor in sorted(paths.boot_dir(shared_agent.ready["boot_id"]).iterdir()):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(60)
            try:
                connection.connect(str(actor))
            except ConnectionRefusedError:
                continue  # a process that has ended
            assert connection.recv(100)  # its greeting: somebody reads
            answering += 1
            with suppress(ConnectionResetError, BrokenPipeError):  # closed with our bytes unread
                connection.sendall(frame * 3)
                assert connection.recv(100) == b"", f"{actor.name} answered a stranger"
    assert answering > len(SERVERS)
    assert shared_agent.client().cluster()["ready"]
    assert before <= {process.pid for process in shared_agent.processes()}
    assert list(tmp_path.iterdir()) == []


def test_commands_say_what_to_do_when_no_agent_is_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "actorgrid", "status", "--data-dir", str(tmp_path / "nowhere")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == errors.HostUnreachable.exit_code
    assert "actorgrid up" in done.stderr
