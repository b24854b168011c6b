"""The awaited client against a real host: every view and every verb of the state answers as the plain client does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.client.local_cluster import LocalCluster
from actorgrid.errors import SettingNotLive, StateTypeConflict, TaskFailed, UnknownJob, UnknownKey, WrongState


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(gpus=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def plain(cluster: LocalCluster) -> Client:
    return cluster.client()


def test_views_of_the_host_are_those_of_the_plain_client(cluster: LocalCluster, plain: Client) -> None:
    async def look() -> None:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as client:
            assert (await client.cluster())["gpus"] == plain.cluster()["gpus"] == 2
            assert [host["node_id"] for host in await client.hosts()] == [host["node_id"] for host in plain.hosts()]
            assert await client.allocations() == plain.allocations() == []
            assert set(await client.inspect()) == set(plain.inspect())
            assert set(await client.performance()) == set(plain.performance())
            assert isinstance(await client.decisions(5), list)

    asyncio.run(look())


def test_jobs_are_submitted_listed_explained_and_read(cluster: LocalCluster) -> None:
    async def work() -> None:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as client:
            job_id = (await client.submit_job(command=["false"], name="fails"))["job_id"]
            assert (await client.wait(job_id, 60))["state"] == "failed"
            assert (await client.job(job_id))["name"] == "fails"
            assert [job["job_id"] for job in await client.jobs(state="failed")] == [job_id]
            assert (await client.why(job_id))["state"] == "failed"
            with pytest.raises(WrongState, match="gives no value"):
                await client.result(job_id, 30)
            with pytest.raises(UnknownJob):
                await client.job("nobody")
            sleeping = (await client.submit_job(command=["sleep", "60"]))["job_id"]
            assert await client.cancel(sleeping)
            assert (await client.wait(sleeping, 60))["state"] == "cancelled"

    asyncio.run(work())


def test_settings_are_read_and_changed_or_refused(cluster: LocalCluster) -> None:
    async def change() -> None:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as client:
            known = {setting["key"]: setting for setting in await client.config()}
            assert known["scheduling.queue_max"]["live"]
            changed = await client.set_config("scheduling.queue_max", 12345)
            assert (changed["value"], changed["previous"]) == (12345, known["scheduling.queue_max"]["value"])
            with pytest.raises(SettingNotLive):
                await client.set_config("cluster.name", "other")

    asyncio.run(change())


def test_every_kind_of_shared_state_can_be_changed_and_read(cluster: LocalCluster) -> None:
    async def use() -> None:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as client:
            state = client.state
            await state.increment("a/count", 5)
            await state.decrement("a/count", 2)
            await state.add_to_set("a/set", "x")
            await state.add_to_set("a/set", "y")
            await state.remove_from_set("a/set", "x")
            await state.put_field("a/map", "kept", 1)
            await state.put_field("a/map", "gone", 2)
            await state.remove_field("a/map", "gone")
            await state.enable("a/flag")
            await state.disable("a/flag")
            values = {entry["key"]: entry["value"] for entry in await state.list("a/")}
            assert values == {"a/count": 3, "a/set": ["y"], "a/map": {"kept": 1}, "a/flag": False}
            assert (await state.entry("a/count"))["value"] == 3
            assert await state.get("a/nothing", 7) == 7
            with pytest.raises(UnknownKey):
                await state.get("a/nothing")
            with pytest.raises(StateTypeConflict):
                await state.put("a/count", "text")
            changes = state.watch("a/", initial=True)
            first = [(await anext(changes))["key"] for _ in range(4)]
            assert sorted(first) == sorted(values)
            await changes.aclose()

    asyncio.run(use())


def test_an_exception_of_a_task_is_raised_where_it_is_awaited(cluster: LocalCluster) -> None:
    async def fail() -> None:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as client:
            with pytest.raises(ZeroDivisionError) as failed:
                await client.submit(lambda: 1 // 0)
            assert isinstance(failed.value, TaskFailed)

    asyncio.run(fail())
