"""A client whose connection breaks asks for its lock again: what it is told then holds, whatever its host cleans up."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.client.local_cluster import LocalCluster
from actorgrid.client.locks import Lock
from tests.processes import server_below, until

ROUNDS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(gpus=1) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with actorgrid.connect(cluster.url, cluster.token) as client:
        yield client


@contextmanager
def ledger_stopped(cluster: LocalCluster) -> Iterator[None]:
    pid = server_below(cluster.pid, "consensus")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Asking:
    """One request about a lock, on a connection of its own."""

    def __init__(self, cluster: LocalCluster, name: str, owner: str, verb: str = "acquire", **body: Any) -> None:
        address = cluster.url.removeprefix("http://")
        self.connection = http.client.HTTPConnection(address, timeout=30)
        headers = {"Authorization": f"Bearer {cluster.token}", "Content-Type": "application/json"}
        numbered = {name: value for name, value in body.items() if name != "request" or value}
        self.connection.request("POST", f"/api/locks/{name}/{verb}", json.dumps({"owner": owner, **numbered}), headers)

    def answer(self) -> Any:
        answer = json.loads(self.connection.getresponse().read())
        self.connection.close()
        return answer

    def cut(self) -> None:
        self.connection.close()


def door_has_seen_all(client: Client) -> None:
    """What was sent to the host before this call is being worked on there."""
    client.http.get("/healthz")


def clean_up_is_over(client: Client) -> None:
    """A command that was proposed after those of the requests is committed after them."""
    body = {"owner": "barrier", "ttl_s": 60}
    assert client.http.post("/api/locks/barrier/acquire", body)["held"]
    assert client.http.post("/api/locks/barrier/release", {"owner": "barrier"})["released"]


def holders(client: Client, name: str) -> list[str]:
    return [each["owner"] for lock in client.locks(name) if lock["name"] == name for each in lock["holders"]]


@pytest.mark.parametrize("numbers", [(1, 2), (0, 0)], ids=["numbered", "not numbered"])
@pytest.mark.parametrize("slots", [1, 2])
def test_who_asks_again_while_the_first_request_is_not_committed_keeps_what_it_is_told(
    cluster: LocalCluster, client: Client, numbers: tuple[int, int], slots: int
) -> None:
    for number in range(ROUNDS):
        name, owner = f"uncommitted{number}.{slots}.{numbers[0]}", "me"
        with ledger_stopped(cluster):
            first = Asking(cluster, name, owner, ttl_s=60, slots=slots, request=numbers[0])
            door_has_seen_all(client)
            first.cut()
            again = Asking(cluster, name, owner, ttl_s=60, slots=slots, request=numbers[1])
            door_has_seen_all(client)
        answer = again.answer()
        assert answer["held"], answer
        clean_up_is_over(client)
        assert holders(client, name) == [owner]
        renewed = client.http.post(f"/api/locks/{name}/renew", {"owner": owner, "token": answer["token"]})
        assert renewed["token"] == answer["token"]


def test_who_asks_again_while_it_waits_keeps_its_place_and_is_granted_once(
    cluster: LocalCluster, client: Client
) -> None:
    client.http.post("/api/locks/waited/acquire", {"owner": "before", "ttl_s": 60})
    first = Asking(cluster, "waited", "me", ttl_s=60, wait_s=60, request=1)
    until(lambda: client.locks("waited")[0]["waiters"], "it to wait")
    with ledger_stopped(cluster):
        # In the ledger's mailbox: the release that grants it, and the second question; then the first one breaks off.
        release = Asking(cluster, "waited", "before", "release")
        again = Asking(cluster, "waited", "me", ttl_s=60, wait_s=60, request=2)
        door_has_seen_all(client)
        first.cut()
        door_has_seen_all(client)
    assert release.answer()["released"]
    assert again.answer()["held"]
    clean_up_is_over(client)
    assert holders(client, "waited") == ["me"]


def test_what_is_asked_for_once_over_a_connection_that_breaks_is_given_back(
    cluster: LocalCluster, client: Client
) -> None:
    with ledger_stopped(cluster):
        only = Asking(cluster, "gone", "me", ttl_s=60, request=1)
        door_has_seen_all(client)
        only.cut()
        door_has_seen_all(client)
    # Its lease would end after a minute.
    assert client.http.post("/api/locks/gone/acquire", {"owner": "next", "wait_s": 20})["held"]


class Way:
    """A TCP port that leads to the cluster's, until all that goes through it is cut; new connections pass again."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._to = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(self._to)
            self._pairs.append((near, far))
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(a, b), daemon=True).start()

    @staticmethod
    def _carry(a: socket.socket, b: socket.socket) -> None:
        try:
            while data := a.recv(65_536):
                b.sendall(data)
        except OSError:
            pass
        for end in (a, b):
            _shut(end)

    def cut(self) -> None:
        for pair in self._pairs:
            for end in pair:
                _shut(end)

    def close(self) -> None:
        self._listening.close()
        self.cut()
        for pair in self._pairs:
            for end in pair:
                end.close()


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was cut already


def test_the_client_keeps_its_lock_over_a_connection_that_breaks_while_it_asks(
    cluster: LocalCluster, client: Client
) -> None:
    way = Way(cluster.url)
    try:
        with actorgrid.connect(way.url, cluster.token) as asking:
            for number in range(ROUNDS):
                lock = asking.lock(f"library{number}", ttl_s=60)
                kept: list[Lock] = []
                done = threading.Event()

                def hold(lock: Lock = lock, kept: list[Lock] = kept, done: threading.Event = done) -> None:
                    with lock:
                        kept.append(lock)
                        done.wait(30)

                thread = threading.Thread(target=hold)
                with ledger_stopped(cluster):
                    before = len(way._pairs)
                    thread.start()
                    door_has_seen_all(client)
                    way.cut()
                    until(lambda before=before: len(way._pairs) > before, "the second question")
                    door_has_seen_all(client)
                until(lambda kept=kept: kept, "the lock")
                clean_up_is_over(client)
                assert len(holders(client, lock.name)) == 1 and client.locks(lock.name)[0]["holders"][0]["ttl_s"] == 60
                done.set()
                thread.join(30)
                assert not thread.is_alive()
    finally:
        way.close()
