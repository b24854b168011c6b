"""Large values between two hosts of a cluster: real agents, workers and stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import psutil
import pytest

from actorgrid.client.client import Client
from actorgrid.errors import ObjectLost
from tests.processes import until
from tests.system.cluster_host import ClusterHost

MIB = 2**20

pytestmark = pytest.mark.system


def array(size: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.fixture
def hosts(make_host: Callable[..., ClusterHost]) -> tuple[ClusterHost, ClusterHost]:
    first, second = make_host("one", 1), make_host("two", 1)
    first.found()
    second.join(first, str(first.token()["token"]))
    until(lambda: len(first.hosts()) == 2, "the cluster has two hosts")
    return first, second


@pytest.fixture
def client(hosts: tuple[ClusterHost, ClusterHost]) -> Iterator[Client]:
    client = hosts[0].client()
    yield client
    client.close()


def parent(value: Any = None) -> tuple[int, int]:
    import os
    import select

    select.poll().poll(300)  # takes a while: the next one goes to the other host
    return os.getppid(), 0 if value is None else int(value.astype(np.int64).sum())


def here_and_there(client: Client, function: Any, *arguments: Any) -> list[Any]:
    """The values of calls on both hosts: each has one device."""
    return [future.result(100) for future in [client.submit(function, *arguments, gpus=1) for _ in range(2)]]


def kept(client: Client) -> list[int]:
    return [sum(session["count"] for session in host["sessions"]) for host in client.objects()]


def test_values_go_to_other_hosts_and_come_from_there(hosts: tuple[ClusterHost, ClusterHost], client: Client) -> None:
    total = int(array(20 * MIB).astype(np.int64).sum())
    ref = client.put(array(20 * MIB))
    for given in (ref, array(20 * MIB)):
        found = here_and_there(client, parent, given)
        assert [sums for _, sums in found] == [total] * 2

    def make(seed: int) -> np.ndarray[Any, Any]:
        parent()
        return array(3 * MIB, seed)

    made = [client.submit(make, seed, gpus=1) for seed in range(4)]
    for future in made:
        future.exception(100)
    until(lambda: sum(kept(client)) == 5 and min(kept(client)) > 0, "results lie where they were made")
    assert all(np.array_equal(future.result(), array(3 * MIB, seed)) for seed, future in enumerate(made))

    # As arguments elsewhere, also those of the other host there.
    sums = here_and_there(client, lambda parts: sum(parent(part)[1] for part in parts), made)
    assert sums == [sum(int(array(3 * MIB, seed).astype(np.int64).sum()) for seed in range(4))] * 2

    def inside(kept: Any) -> tuple[Any, int]:
        import actorgrid

        parent()
        nested = actorgrid.connect()
        return nested.put(array(2 * MIB, 7)), len(kept.result())

    for reference, size in here_and_there(client, inside, ref.itself):
        assert size == 20 * MIB and np.array_equal(reference.result(), array(2 * MIB, 7))
    del made, reference, future
    until(lambda: sum(kept(client)) == 1, "what nobody refers to is freed on both")


def test_a_lost_host_has_lost_what_lay_there_by_name_and_pure_values_are_made_again(
    hosts: tuple[ClusterHost, ClusterHost], client: Client
) -> None:
    def make(seed: int) -> np.ndarray[Any, Any]:
        parent()
        return array(3 * MIB, seed)

    pure = [client.submit(make, seed, gpus=1, pure=True) for seed in range(2)]
    other = [client.submit(make, seed, gpus=1) for seed in range(2)]
    for future in [*pure, *other]:
        until(future.done, "it has its value")
    assert min(kept(client)) > 0
    victims = hosts[1].processes()
    hosts[1].kill()
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    assert all(np.array_equal(future.result(100), array(3 * MIB, seed)) for seed, future in enumerate(pure))
    for seed, future in enumerate(other):
        error = future.exception(100)
        if error is None:
            assert np.array_equal(future.result(), array(3 * MIB, seed))
        else:
            assert isinstance(error, ObjectLost) and "not reached" in str(error)
