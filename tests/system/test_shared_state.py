"""The shared state of five real hosts: partitions, lost frames, a lost disk. The simulated twin: tests/replication."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from actorgrid.client.state import SharedState
from actorgrid.errors import ActorGridError, NotReplicated
from tests.processes import until
from tests.system.net_hosts import SMALL, NetCluster, formed

HOSTS = 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetCluster]:
    twin = "tests/replication has the same faults on simulated hosts"
    with formed(tmp_path_factory.mktemp("state"), HOSTS, SMALL, twin) as made:
        yield made


def change(cluster: NetCluster, number: int, key: str, **body: Any) -> Any:
    return cluster[number].ask("POST", f"/api/state/{key}", body)["value"]


def increment(cluster: NetCluster, number: int, key: str, amount: int = 1, **options: Any) -> Any:
    return change(cluster, number, key, type="g_counter", operation="increment", value=amount, **options)


def shown(cluster: NetCluster, key: str, numbers: range = range(1, HOSTS + 1)) -> list[Any]:
    def value(number: int) -> Any:
        try:
            return cluster[number].ask("GET", f"/api/state/{key}")["value"]
        except ActorGridError:
            return None

    return [value(number) for number in numbers]


def test_increments_on_all_hosts_under_a_partition_are_one_counter_when_it_heals(cluster: NetCluster) -> None:
    for number in range(1, HOSTS + 1):
        increment(cluster, number, "hits", 10**number)
    until(lambda: shown(cluster, "hits") == [111_110] * HOSTS, "one counter on all hosts")
    cluster.wires.part([1, 2])
    try:
        for number in range(1, HOSTS + 1):
            increment(cluster, number, "hits", number)
        until(lambda: shown(cluster, "hits") == [111_113] * 2 + [111_122] * 3, "each side has its own")
        assert increment(cluster, 3, "sure", durability="majority", within_s=20) == 1, "three of five are enough"
        with pytest.raises(NotReplicated, match="too few members") as caught:
            increment(cluster, 1, "unsure", durability="majority", within_s=2)
        assert caught.value.asked == "3 of 5 members"
        assert "stays" in caught.value.hint
        assert cluster[1].ask("GET", "/api/state/unsure")["value"] == 1
    finally:
        cluster.wires.heal()
    until(lambda: shown(cluster, "hits") == [111_125] * HOSTS, "one counter again", within_s=60)
    until(lambda: shown(cluster, "unsure") == shown(cluster, "sure") == [1] * HOSTS, "and all that was written")


def test_a_watch_on_another_host_sees_a_put(cluster: NetCluster) -> None:
    seen: list[Any] = []
    listening, heard = threading.Event(), threading.Event()

    def watch() -> None:
        with closing(cluster[5].http()) as door:
            for entry in SharedState(door).watch("watched/", initial=True):
                seen.append((entry["key"], entry["value"]))
                listening.set()
                if entry["value"] == "second":
                    heard.set()
                    return

    change(cluster, 5, "watched/key", value="first")
    waiting = cluster[5]._inside.submit(watch)
    assert listening.wait(30)
    until(lambda: shown(cluster, "watched/key") == ["first"] * HOSTS, "all have the first")
    change(cluster, 1, "watched/key", value="second")
    assert heard.wait(30)
    waiting.result(30)
    assert seen[-1] == ("watched/key", "second")


def test_a_third_of_all_frames_lost_only_delays(cluster: NetCluster) -> None:
    everybody = range(1, HOSTS + 1)
    cluster.wires.drop(everybody, everybody, percent=30)
    try:
        for number in everybody:
            for _ in range(5):
                increment(cluster, number, "lossy")
        until(lambda: shown(cluster, "lossy") == [25] * HOSTS, "all increments everywhere", within_s=90)
    finally:
        cluster.wires.heal()


def test_a_host_that_lost_its_state_gets_it_back_and_counts_on(cluster: NetCluster) -> None:
    increment(cluster, 4, "kept", 7)
    until(lambda: shown(cluster, "kept") == [7] * HOSTS, "all have it")
    cluster[4].crash()
    shutil.rmtree(cluster[4].data_dir / "state")
    increment(cluster, 1, "kept", 1)
    cluster[4].up()
    assert increment(cluster, 4, "kept", 2) >= 2
    until(lambda: shown(cluster, "kept") == [10] * HOSTS, "nothing is lost, nothing counted twice", within_s=60)


def test_a_killed_server_of_the_state_comes_back_among_its_peers(cluster: NetCluster) -> None:
    increment(cluster, 3, "killed", 5)
    pid = cluster[3].pid_of("distributed_state")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    def again() -> bool:
        try:
            return bool(increment(cluster, 3, "again"))
        except ActorGridError:
            return False

    until(again, "it takes writes")
    increment(cluster, 1, "killed", 1)
    increment(cluster, 3, "killed", 1, durability="majority", within_s=30)
    until(lambda: shown(cluster, "killed") == [7] * HOSTS, "all have all of it")


def test_inspect_shows_the_peers(cluster: NetCluster) -> None:
    def equal() -> bool:
        found = cluster[2].ask("GET", "/api/inspect/distributed_state")
        peers = found["inspect"]["status"]["peers"]
        return len(peers) == HOSTS - 1 and set(peers.values()) == {"equal"}

    until(equal, "host 2 sees all others equal", within_s=60)
