"""The object store of a real host: ends of clients, agents and stores, bounds, and what people see of it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from actorgrid.client.client import Client
from actorgrid.errors import ObjectLost, ObjectStoreFull
from tests.processes import until
from tests.system.agent import Agent

MIB = 2**20


def array(size: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def sessions(client: Client) -> list[dict[str, Any]]:
    return [session for host in client.objects() for session in host["sessions"]]


def kept(client: Client) -> int:
    return sum(session["count"] for session in sessions(client))


@pytest.fixture
def agent(shared_agent: Agent) -> Agent:
    return shared_agent


def test_people_see_what_lies_there_and_whose_it_is(agent: Agent) -> None:
    with agent.client() as client:
        ref = client.put(array(3 * MIB))
        result = client.submit(array, 2 * MIB, 5)
        assert result.result(60)[0] == array(2 * MIB, 5)[0]
        (mine,) = [session for session in sessions(client) if session["pid"] == os.getpid()]
        assert mine["count"] == 2 and mine["memory_bytes"] >= 5 * MIB and mine["user"]
        assert ref.object_id in [each["id"] for each in mine["objects"]]
        assert ref.object_id in agent.cli("objects", "--each").stdout
        assert str(os.getpid()) in agent.cli("objects").stdout
        (host,) = agent.cli_json("objects")["hosts"]
        assert host["figures"]["objects"] == 2 and host["memory_bytes_max"] > 0
        told = agent.cli_json("inspect", "worker_manager")
        assert "objects" in str(told)


def test_a_killed_clients_objects_are_freed(agent: Agent) -> None:
    program = f"""
import actorgrid, numpy as np, time
client = actorgrid.connect(data_dir={str(agent.data_dir)!r})
ref = client.put(np.ones(4 * 2**20, np.uint8))
kept = [client.submit(np.ones, 2**20) for _ in range(3)]
print(len([one.result() for one in kept]), flush=True)
time.sleep(600)
"""
    with agent.client() as client:
        before = kept(client)
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"3\n"
        assert kept(client) == before + 4
        child.send_signal(signal.SIGKILL)
        child.wait()
        until(lambda: kept(client) == before, "the killed client's objects are freed")
        child.stdout.close()


def test_a_task_reads_more_shared_memory_than_it_asked_for(agent: Agent) -> None:
    with agent.client() as client:
        ref = client.put(np.ones(300 * MIB, np.uint8))
        total = client.options(memory="200MiB").submit(lambda a: int(a[::4096].sum()), ref)
        assert total.result(60) == 300 * 256


def test_references_outlive_the_agent(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("work.max_isolation_s=60")
    agent.start()
    client = agent.client()
    ref, future = client.put(array(3 * MIB)), client.submit(array, 2 * MIB, 7)
    future.result(60)
    store = next(host for host in client.objects())["store"]
    agent.kill()
    assert np.array_equal(ref.result(), array(3 * MIB)), "without an agent"
    agent.start()
    again = agent.client()  # by another port; the first one lives, and with it what it put
    assert again.submit(len, ref).result(100) == 3 * MIB
    assert np.array_equal(future.result(), array(2 * MIB, 7))
    until(lambda: bool(again.objects()), "the next start has taken the store over")
    assert next(host for host in again.objects())["store"] == store


def test_a_killed_store_is_begun_again_and_what_lay_there_is_lost_by_name(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent().start()
    client = agent.client()
    ref = client.put(array(3 * MIB))
    store = next(host for host in client.objects())["store"]
    os.kill(agent.cli_json("inspect", "worker_manager")["inspect"]["status"]["objects"]["pid"], signal.SIGKILL)
    until(lambda: [host["store"] for host in client.objects()] not in ([], [store]), "another store is there")
    with pytest.raises(ObjectLost, match="started again"):
        ref.result()
    with pytest.raises(ObjectLost):
        client.submit(len, ref).result(60)
    assert np.array_equal(client.submit(array, 3 * MIB).result(60), array(3 * MIB))
    assert len(client.put(array(3 * MIB)).result()) == 3 * MIB


def test_what_the_store_may_take_is_held_to(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("objects.memory=64MiB", "objects.disk=128MiB").start()
    client = agent.client()
    refs = [client.put(array(16 * MIB, seed)) for seed in range(10)]
    (host,) = client.objects()
    assert host["figures"]["objects_memory_bytes"] <= 64 * MIB and host["figures"]["objects_spilled_total"] >= 6
    assert all(np.array_equal(ref.result(), array(16 * MIB, seed)) for seed, ref in enumerate(refs))
    with pytest.raises(ObjectStoreFull, match=r"objects\.memory"):
        client.put(array(100 * MIB))
    refs.clear()
    assert len(client.put(array(100 * MIB)).result()) == 100 * MIB


def test_without_a_store_values_go_with_the_frames(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("objects.enabled=false").start()
    client = agent.client()
    found = client.submit(array, 3 * MIB).result(60)
    assert found.flags.writeable and client.objects() == []
    assert pickle.loads(pickle.dumps(client.put(7))).result() == 7
