"""People in running jobs: what a key to a job's terminal, and a byte to a port of it, take more than without a job."""

from __future__ import annotations

import os
import pty
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from actorgrid.client.client import Client
from actorgrid.client.job_channel import ChannelOutput, JobChannel, channel_address
from actorgrid.client.port_forward import PortForward
from actorgrid.client.relay import Relay
from actorgrid.transports.channel_frames import AttachToTerminal
from tests.system.agent import Agent

from .figures import Figure, registry

TRIPS = 500
CONNECTIONS = 50
BYTES = 32 * 2**20
ECHO = """
import socket, threading
def serve(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
TYPED = "import os, tty; tty.setraw(0); os.write(1, b'up')\nwhile data := os.read(0, 65536): os.write(1, data)"
"""Answers each key with itself."""


@registry.add("people_in_jobs")
def people_in_jobs(runs: int) -> Iterator[Figure]:
    """One host, one job on it each; side by side with the same program without a job."""
    with tempfile.TemporaryDirectory() as folder, closing(Agent(Path(folder) / "h")) as agent:
        agent.start()
        client = agent.client()
        yield from _ports(client, runs)
        yield from _terminals(client, runs)


def _median_ms(trip: Callable[[], object], count: int) -> float:
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        trip()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e3


def _ports(client: Client, runs: int) -> Iterator[Figure]:
    job = client.submit_job(command=[sys.executable, "-c", ECHO], cpus=0.1)["job_id"]
    while not (said := b"".join(client.logs(job))):
        time.sleep(0.05)
    with PortForward(client.http, job, int(said), 0) as forward:
        thread = threading.Thread(target=forward.run)
        thread.start()
        trips, connections, rates = [], [], []
        for _ in range(runs):
            trips.append(_trip_ms(forward.local_port) - _trip_ms(int(said)))
            connections.append(_connection_ms(forward.local_port) - _connection_ms(int(said)))
            rates.append(_both_ways(forward.local_port))
        forward.close()
        thread.join()
    client.cancel(job)
    yield Figure("port of a job: added to a round trip of a byte, p50", "ms", trips, False, must=2.0, stretch=0.3)
    yield Figure("port of a job: added to a connection and a byte, p50", "ms", connections, False)
    yield Figure("port of a job: 32 MiB there and back", "MB/s", rates, True)


def _trip_ms(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def trip() -> None:
            connection.sendall(b"x")
            connection.recv(1)

        trip()
        return _median_ms(trip, TRIPS)


def _connection_ms(port: int) -> float:
    def connect() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"x")
            connection.recv(1)

    return _median_ms(connect, CONNECTIONS)


def _both_ways(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        started, left = time.perf_counter(), BYTES
        sender = threading.Thread(target=connection.sendall, args=(bytes(BYTES),))
        sender.start()
        while left:
            left -= len(connection.recv(262_144))
        sender.join()
        return BYTES / 1e6 / (time.perf_counter() - started)


def _terminals(client: Client, runs: int) -> Iterator[Figure]:
    request = {"task_id": "typed", "command": [sys.executable, "-c", TYPED], "cpus": 0.1, "pty": True}
    client.http.post("/api/jobs", request)
    while client.job("typed")["state"] != "running":
        time.sleep(0.05)
    relay = Relay(client.http)
    with closing(JobChannel(relay, channel_address(client.http, "typed"), AttachToTerminal())) as channel:
        _hear(channel, b"up")

        def key() -> None:
            channel.write(b"x")
            _hear(channel, b"x")

        key()
        with _local_terminal() as plain:
            added = [_median_ms(key, TRIPS) - _median_ms(plain, TRIPS) for _ in range(runs)]
    relay.close()
    client.cancel("typed")
    yield Figure("terminal of a job: added to a key and its echo, p50", "ms", added, False, must=2.0, stretch=0.3)


def _hear(channel: JobChannel, wanted: bytes) -> None:
    heard = b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(channel, selectors.EVENT_READ)
        while wanted not in heard:
            waiting.select()
            heard += b"".join(event.data for event in channel.events() if isinstance(event, ChannelOutput))


@contextmanager
def _local_terminal() -> Iterator[Callable[[], None]]:
    """A key and its echo in a terminal of this machine."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    process = subprocess.Popen([sys.executable, "-c", TYPED], stdin=theirs, stdout=theirs)
    while b"up" not in os.read(ours, 100):
        pass

    def key() -> None:
        os.write(ours, b"x")
        os.read(ours, 1)

    yield key
    process.kill()
    process.wait()
    os.close(ours)
    os.close(theirs)
