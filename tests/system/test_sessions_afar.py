"""Session tasks of clients that have no socket of a worker: through a host's door, over connections that break."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.errors import (
    TaskCancelled,
    TaskFailed,
    TaskTimedOut,
    WorkerLost,
    WrongToken,
)
from actorgrid.transports.peer.relay_end import UPGRADE
from tests.processes import until
from tests.system.afar_work import (
    count_to,
    die_once,
    echo,
    leave_mark,
    marked_sleep,
    plus_one,
    until_cancelled,
    wait_for,
)
from tests.system.cluster_host import ClusterHost, Two
from tests.system.cut_wire import CutWire

PLENTY_S = 120.0


def marks(folder: Path) -> Counter[int]:
    return Counter(int(line) for line in (folder / "marks").read_text().split())


THERE = {"gpus": 1, "gpu_models": ["A100-40GB"], "cpus": 0.1}
"""What only the second host has."""


@pytest.fixture
def key(two: Two) -> dict[str, Any]:
    made: dict[str, Any] = two[0].cli_json("key", "create", "--user", "ann")
    return made


def afar(key: dict[str, Any], wire: CutWire | None = None, **options: Any) -> actorgrid.Client:
    """A client that has a key, and no socket."""
    url = key["url"] if wire is None else f"https://127.0.0.1:{wire.port}"
    return actorgrid.connect(url, key["key"], ca_fingerprint=key["ca_fingerprint"], relayed=True, **options)


def wire_to(host: ClusterHost) -> CutWire:
    return CutWire("127.0.0.1", host.base_port + 4)


def test_all_that_tasks_can_do_they_can_do_from_afar(two: Two, key: dict[str, Any], tmp_path: Path) -> None:
    with afar(key) as client:
        assert client.submit(pow, 7, 2).result(PLENTY_S) == 49
        assert list(client.map(abs, range(-300, 0))) == list(range(300, 0, -1))
        with pytest.raises(ZeroDivisionError) as failed:
            client.submit(divmod, 1, 0).result(PLENTY_S)
        assert isinstance(failed.value, TaskFailed)
        with pytest.raises(TaskTimedOut):
            client.submit(time.sleep, 60, timeout=0.2).result(PLENTY_S)
        chain = client.submit(int, 0)
        for _ in range(20):
            chain = client.submit(plus_one, chain)
        assert chain.result(PLENTY_S) == 20
        big = os.urandom(9_000_000)
        assert client.submit(echo, big).result(PLENTY_S) == big[::-1]
        assert client.submit(echo, big, **THERE).result(PLENTY_S) == big[::-1]
        assert list(client.stream(count_to, 200)) == list(range(200))
        with client.stream(count_to, 10**9, window=4) as values:
            assert next(values) == 0
        # A task that runs is told to stop, and one that does not listen is killed.
        asked = client.submit(until_cancelled, str(tmp_path / "begun"))
        until((tmp_path / "begun").exists, "it runs")
        assert asked.cancel(cooperative=True) and asked.result(PLENTY_S) == "stopped"
        deaf = client.submit(time.sleep, 600)
        until(deaf.running, "it runs")
        assert deaf.cancel(force=True)
        with pytest.raises(TaskCancelled):
            deaf.result(PLENTY_S)
    until(lambda: two[0].client().allocations() == [], "all leases are returned")


@pytest.mark.parametrize("where", [{"cpus": 0.1}, THERE], ids=["on the door's host", "on another host"])
def test_broken_connections_lose_nothing_and_double_nothing(
    two: Two, key: dict[str, Any], tmp_path: Path, where: dict[str, Any]
) -> None:
    with wire_to(two[0]) as wire, afar(key, wire) as client:
        futures = []
        for number in range(400):
            futures.append(client.submit(leave_mark, str(tmp_path), number, **where))
            if number % 40 == 20:
                futures[-1].result(PLENTY_S)
                wire.cut()
        assert [future.result(PLENTY_S) for future in futures] == list(range(400))
        assert wire.cuts == 10
    assert marks(tmp_path) == Counter(range(400)), "each ran once"


def test_a_stream_and_large_values_go_on_over_the_next_connection(two: Two, key: dict[str, Any]) -> None:
    big = os.urandom(6_000_000)
    with wire_to(two[0]) as wire, afar(key, wire) as client:
        taken = []
        for value in client.stream(count_to, 100, window=8):
            taken.append(value)
            if value % 30 == 10:
                wire.cut()
        assert taken == list(range(100))
        cutter = threading.Timer(0.05, wire.cut)
        cutter.start()
        assert client.submit(echo, big).result(PLENTY_S) == big[::-1]
        cutter.join()


def test_a_client_cut_off_for_a_while_finds_its_tasks_done(two: Two, key: dict[str, Any], tmp_path: Path) -> None:
    with wire_to(two[0]) as wire, afar(key, wire) as client:
        client.submit(pow, 2, 2).result(PLENTY_S)
        slow = client.submit(marked_sleep, str(tmp_path), 1)
        until((tmp_path / "marks").exists, "it runs")
        wire.shut()
        until((tmp_path / "done").exists, "it ends, with nobody to tell")
        wire.open()
        assert slow.result(PLENTY_S) == 1
    assert marks(tmp_path) == Counter([1])


@pytest.mark.parametrize("server", ["gateway", "links"])
def test_servers_that_die_under_way_cost_no_task(two: Two, key: dict[str, Any], tmp_path: Path, server: str) -> None:
    first, second = two
    with afar(key) as client:
        client.submit(pow, 2, 2, **THERE).result(PLENTY_S)
        futures = [client.submit(leave_mark, str(tmp_path), number, **THERE) for number in range(50)]
        held = client.submit(wait_for, str(tmp_path / "go"), **{**THERE, "gpus": 2})
        until(held.running, "one runs")
        for host in (first, second) if server == "links" else (first,):
            pid = host.pid_of(server)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda host=host, pid=pid: host.pid_of(server) not in (None, pid), "it is started again")  # type: ignore[misc]
        futures += [client.submit(leave_mark, str(tmp_path), number, **THERE) for number in range(50, 100)]
        (tmp_path / "go").touch()
        assert held.result(PLENTY_S) == 1, "it was begun once"
        assert [future.result(PLENTY_S) for future in futures] == list(range(100))
    assert marks(tmp_path) == Counter(range(100)), "each ran once"


def test_a_session_goes_on_through_another_host_while_its_own_restarts(
    two: Two, key: dict[str, Any], tmp_path: Path
) -> None:
    """The client follows to the other host, which asks the session's own for it; nothing is begun again."""
    first, second = two
    urls = [f"https://127.0.0.1:{host.base_port + 4}" for host in (second, first)]
    with actorgrid.connect(urls, key["key"], ca_fingerprint=key["ca_fingerprint"], relayed=True) as client:
        held = client.submit(wait_for, str(tmp_path / "go"), gpus=1, gpu_models=["H100-80GB"], cpus=0.1)
        until(held.running, "it runs on the first host, of a session of the second")
        second.cli("restart", "2")
        futures = [client.submit(leave_mark, str(tmp_path), number, cpus=0.1) for number in range(20)]
        (tmp_path / "go").touch()
        assert held.result(PLENTY_S) == 1
        assert [future.result(PLENTY_S) for future in futures] == list(range(20))
    assert marks(tmp_path) == Counter(range(20))


def test_a_worker_that_dies_is_named_and_its_task_tried_again(two: Two, key: dict[str, Any], tmp_path: Path) -> None:
    with afar(key) as client:
        with pytest.raises(WorkerLost) as lost:
            client.submit(os._exit, 7, retries=0).result(PLENTY_S)
        assert lost.value.details["exit_code"] == 7
        assert client.submit(die_once, str(tmp_path / "died"), retries=1).result(PLENTY_S) == 2


def test_a_revoked_key_ends_the_relay_too(two: Two) -> None:
    key = two[0].cli_json("key", "create", "--user", "eve")
    with afar(key) as client:
        assert client.submit(pow, 2, 3).result(PLENTY_S) == 8
        running = client.submit(time.sleep, 600)
        until(running.running, "it runs")
        two[0].cli("key", "revoke", key["key"].split(".")[1])
        with pytest.raises((WorkerLost, WrongToken)):
            running.result(PLENTY_S)
        client.close()


def test_work_reaches_its_own_workers_only(two: Two, key: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A task asks the door of its host for the worker of another user's lease."""
    with afar(key) as client:
        with monkeypatch.context() as patch:
            patch.setattr("actorgrid.client.session.user_name", lambda: "ann")
            busy = client.submit(time.sleep, 600)
            until(busy.running, "it runs")
        assert client._session is not None
        own_session = client._session.figures()["session_id"]
        (lease,) = [each for each in client.leases() if each["session_id"] == own_session]
        outside = two[0].client()
        refused = outside.submit(_open_relay, lease["lease_id"]).result(PLENTY_S)
        own = outside.submit(_use_own, 3).result(PLENTY_S)
        assert busy.cancel(force=True)
    assert refused == "UnknownAllocation" and own == 9


def _open_relay(lease_id: str) -> str:
    from actorgrid.client.relay import Relay

    with actorgrid.connect() as client:
        relay = Relay(client.http)
        route = relay.open_worker(lease_id, "secret")
        assert route.sock.recv(100) == b""
        relay.close()
        return "" if route.failure is None else type(route.failure).__name__


def _use_own(n: int) -> int:
    with actorgrid.connect(relayed=True) as client:
        return client.submit(pow, n, 2, cpus=0.1).result(PLENTY_S)


def _talk(host: ClusterHost, key: dict[str, Any], head: str, then: bytes) -> bytes:
    """What the door answers to somebody who upgrades and then sends *then*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", host.base_port + 4), 20) as plain:
        with context.wrap_socket(plain) as secured:
            secured.sendall(head.format(key=key["key"], upgrade=UPGRADE).encode())
            answer = secured.recv(65536)
            if then:
                secured.sendall(then)
                while data := secured.recv(65536):
                    answer += data
            return answer


HEAD = (
    "GET /api/relay HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nConnection: Upgrade\r\n"
    "Upgrade: {upgrade}\r\n\r\n"
)


def test_who_speaks_something_else_is_refused_and_does_no_harm(two: Two, key: dict[str, Any]) -> None:
    host = two[0]
    assert b" 400 " in _talk(host, key, HEAD.replace("{upgrade}", "websocket"), b"").splitlines()[0]
    assert b" 401 " in _talk(host, key, HEAD.replace("{key}", "agk1.nobody"), b"").splitlines()[0]
    for junk in (b"\xff" * 100, os.urandom(5000), b"\x00\x00\x00\x05\x00hello", (2**31).to_bytes(4, "big") + b"\x02"):
        answer = _talk(host, key, HEAD, junk)
        assert answer.startswith(b"HTTP/1.1 101 ")
    with afar(key) as client:
        assert client.submit(pow, 3, 3).result(PLENTY_S) == 27


def test_asyncio_clients_do_it_too(two: Two, key: dict[str, Any]) -> None:
    import asyncio

    async def use() -> list[int]:
        async with actorgrid.AsyncClient(afar(key)) as client:
            values = [await client.submit(pow, 2, 5)]
            async for value in client.map(abs, [-1, -2]):
                values.append(value)
            async for value in client.stream(count_to, 3):
                values.append(value)
            return values

    assert asyncio.run(use()) == [32, 1, 2, 0, 1, 2]


def test_tasks_of_a_python_environment_run_over_broken_connections_too(two: Two, key: dict[str, Any]) -> None:
    """A worker that goes on in another Python takes its client's stream along."""
    with wire_to(two[0]) as wire, afar(key, wire) as client:
        own = client.options(env=["--no-index"])
        futures = []
        for number in range(10):
            futures.append(own.submit(plus_one, number))
            wire.cut()
        assert [future.result(PLENTY_S) for future in futures] == list(range(1, 11))
