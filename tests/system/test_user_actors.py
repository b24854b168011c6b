"""Actors of the user's on a real host: their devices, their names, and the end of who made them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import actorgrid
from actorgrid.client.actor_names import TTL_S
from actorgrid.client.user import user_name
from actorgrid.errors import ActorDied, BadRequest, NameTaken, NoSuchActor
from tests.processes import until


@actorgrid.actor(cpus=0.05)
class Keeper:
    """Keeps what it is told."""

    def __init__(self, kept: object = None) -> None:
        self.kept = kept

    def keep(self, kept: object) -> None:
        self.kept = kept

    def get(self) -> Any:
        return self.kept

    def granted(self) -> tuple[str, int, str]:
        return os.environ["ACTORGRID_DEVICES"], os.getpid(), str(actorgrid.current_task().token)


@actorgrid.actor
class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise KeyError("no such thing")


@pytest.fixture(scope="module")
def cluster() -> Iterator[actorgrid.LocalCluster]:
    with actorgrid.LocalCluster(gpus=1) as cluster:
        yield cluster


def test_it_has_its_devices_and_a_greater_token_each_time(cluster: actorgrid.LocalCluster) -> None:
    with cluster.client():
        keeper = Keeper.options(gpus=0.5, max_restarts=1).create()
        devices, pid, token = keeper.granted().result(60)
        assert devices
        os.kill(pid, signal.SIGKILL)
        again = keeper.granted.options(retries=1)().result(60)
        assert again[0] == devices and again[1] != pid and again[2] > token


def test_a_name_is_of_one_actor_and_all_clients_find_it(cluster: actorgrid.LocalCluster) -> None:
    with cluster.client() as maker, cluster.client() as other:
        with pytest.raises(NoSuchActor):
            other.actor("the keeper")
        named = Keeper.options(name="the keeper")
        keeper = named.on(maker).create("here")
        assert other.actor("the keeper").get().result(60) == "here"
        with pytest.raises(NameTaken):
            named.on(other).create()
        assert named.on(other).get_or_create("not this").get().result(60) == "here"
        assert maker.submit(_get_by_name, "the keeper").result(60) == "here"
        del keeper  # what has a name stays
        assert other.actor("the keeper").get().result(60) == "here"
        maker.actor("the keeper").stop()
        until(lambda: _is_free(other, "the keeper"), "the name to come free")
        assert named.on(other).get_or_create("a new one").get().result(60) == "a new one"
    with pytest.raises(BadRequest):
        Keeper.get_or_create()


def test_a_detached_one_goes_on_when_its_creator_is_gone(cluster: actorgrid.LocalCluster) -> None:
    detached = Keeper.options(detached=True, name="detached", max_restarts=1)
    with cluster.client() as maker:
        keeper = detached.on(maker).create("by its maker")
        _, pid, token = keeper.granted().result(60)
        for other in (detached, Keeper.options(name="detached")):
            with pytest.raises(NameTaken):
                other.on(maker).create()
    with cluster.client() as client:
        keeper = client.actor("detached")
        assert keeper.get().result(60) == "by its maker"
        assert client.submit(_get_by_name, "detached").result(60) == "by its maker"
        assert [job["state"] for job in client.jobs(name="detached")] == ["running"]
        os.kill(pid, signal.SIGKILL)
        assert keeper.granted.options(retries=1)().result(60)[2] > token
        keeper.stop()
        with pytest.raises(ActorDied, match="stopped"):
            keeper.get().result(60)
        assert _is_free(client, "detached")
        ended = Keeper.options(detached=True, name="detached").on(client).get_or_create("again")
        assert ended.get().result(60) == "again"
        client.cancel(ended._reference.job_id)
        with pytest.raises(ActorDied, match="cancelled"):
            ended.get().result(60)
        for name in ("grace_s", "max_isolation_s"):
            with pytest.raises(BadRequest):
                Keeper.options(**{name: 5}).on(client).create()


def test_who_comes_too_late_for_a_name_hides_nobody_meanwhile(cluster: actorgrid.LocalCluster) -> None:
    with cluster.client() as client:
        keeper = Keeper.options(detached=True, name="taken").on(client).create("kept")
        # The lock that every maker takes before it looks whether a job has the name.
        with client.lock(f"actors/{user_name()}/taken"):
            assert client.actor("taken").get().result(60) == "kept"
        keeper.stop()


def test_what_a_detached_ones_init_raises_is_its_end(cluster: actorgrid.LocalCluster) -> None:
    with cluster.client() as client:
        broken = Broken.options(detached=True, cpus=0.05).on(client).create()
        with pytest.raises(ActorDied, match="KeyError"):
            broken.ready().result(60)


def test_handles_are_awaited_with_the_client_for_asyncio(cluster: actorgrid.LocalCluster) -> None:
    async def use() -> tuple[Any, Any]:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as client:
            keeper = Keeper.options(name="awaited").on(client).create("kept")
            found = await client.actor("awaited")
            return await keeper.get(), await found.get()

    assert asyncio.run(use()) == ("kept", "kept")


def _get_by_name(name: str) -> Any:
    with actorgrid.connect() as client:
        return client.actor(name).get().result(60)


def _is_free(client: Any, name: str) -> bool:
    try:
        client.actor(name)
    except NoSuchActor:
        return True
    return False


MAKER = """
import sys, actorgrid
sys.path.insert(0, sys.argv[3])
from tests.system.test_user_actors import Keeper
client = actorgrid.connect(sys.argv[1], token=sys.argv[2])
keeper = Keeper.options(name="orphan").on(client).create("lives")
print(keeper.get().result(), flush=True)
sys.stdin.read()
"""


def test_with_its_maker_killed_it_ends_and_its_name_comes_free(cluster: actorgrid.LocalCluster) -> None:
    with cluster.client() as client:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        words = [sys.executable, "-c", MAKER, client.url, client.http.token, root]
        maker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert maker.stdout is not None and maker.stdout.readline().strip() == "lives"
        keeper = client.actor("orphan")
        assert keeper.get().result(60) == "lives"
        maker.kill()
        maker.communicate()

        def is_over() -> bool:
            try:
                keeper.get().result(60)
            except ActorDied:
                return True
            return False

        until(is_over, "the end of the actor", 60.0)
        until(lambda: _is_free(client, "orphan"), "the name to come free", 4 * TTL_S)
