"""Light processes of two hosts as one set: real agents, links and shards; a shard and a host are lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.client.light_shards import LightShards
from actorgrid.errors import ActorDown, ActorGridError, BadRequest, NameTaken, NoSuchActor
from tests.processes import until
from tests.system.agent import closing_all
from tests.system.cluster_host import ClusterHost
from tests.system.light_kinds import Counter, Counters

pytestmark = pytest.mark.system

NAMES = 10_000
PATIENCE_S = 20.0
"""Longer than a busy machine leaves a shard without a turn: links here break by what is done to them alone."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClusterHost, ClusterHost]]:
    folder = tmp_path_factory.mktemp("hosts")
    first = ClusterHost(folder / "one", "simulated:2xH100-80GB")
    second = ClusterHost(folder / "two", "simulated:1xA100-80GB")
    with closing_all((first, second)):
        first.found()
        second.join(first, str(first.token()["token"]))
        until(lambda: len(first.hosts()) == 2, "the cluster has two hosts")
        yield first, second


@pytest.fixture(scope="module")
def client(hosts: tuple[ClusterHost, ClusterHost]) -> Iterator[Client]:
    with hosts[0].client() as made:
        yield made


@actorgrid.actor(gpus=1, gpu_models=["H100"], cpus=0.1)
class Blocker:
    """Holds a GPU of the first host, so that a set of two has one shard on each."""


def begun(client: Client, group: str) -> LightShards:
    """A set with a shard on each host, and room on the first for both."""
    with Blocker.on(client).create() as blocker:
        blocker.ready().result(100)
        made = client.start_shards(
            *(group, 2, Counters, NAMES, 2),
            patience_s=PATIENCE_S, gpus=1, cpus=0.1, max_isolation_s=3, checkpoint_every_s=1.0,
        )  # fmt: skip
        linked(made)
    return made


@pytest.fixture(scope="module")
def shards(client: Client) -> Iterator[LightShards]:
    made = begun(client, "set")
    yield made
    with suppress(ActorGridError):  # the last test stops it
        made.stop()


def linked(shards: LightShards) -> list[dict[str, Any]]:
    def look() -> list[dict[str, Any]] | None:
        found = shards.layout()
        whole = [(each["linked"], each["names"]) for each in found] == [([1], NAMES // 2), ([0], NAMES // 2)]
        return found if whole else None

    found: list[dict[str, Any]] = until(look, "both shards are linked, and their roots have their names")
    return found


def call_by_name(name: str, amount: int) -> int:
    with actorgrid.connect() as client:
        found = client.whereis(name, "set")
        assert found is not None
        total: int = found.call(("add", amount))
        return total


def downs(shards: LightShards, who: Any) -> list[str]:
    return [each for each in shards.call(who, ("told",)) if isinstance(each, str)]


def test_all_are_reached_from_both_hosts_from_tasks_and_from_clients(
    shards: LightShards, client: Client, hosts: tuple[ClusterHost, ClusterHost]
) -> None:
    first, second = linked(shards)
    assert first["host_id"] != second["host_id"]
    assert shards.call("counter_0", ("ask", "counter_1", ("add", 2))) == 2
    assert client.submit(call_by_name, "counter_1", 3).result(100) == 5
    # Not by a client of that host in this process, whose calls to actors would go by it from then on, lost or not.
    top = json.loads(hosts[1].cli("inspect", "--processes", "set", "--by", "mailbox", "--json").stdout)
    assert [each["names"] for each in top["shards"]] == [NAMES // 2] * 2
    assert client.whereis("nobody", "set") is None
    with pytest.raises(NoSuchActor):
        client.shards("no such set")
    with pytest.raises(NoSuchActor):
        shards.call("nobody", ("add", 1))
    here_, there = (shards.start(Counter, shard=slot) for slot in (0, 1))
    for pid in (here_, there):
        shards.call(pid, ("join", "tea"))
    until(lambda: set(shards.members("tea")) == {here_, there}, "both are members in both shards")
    shards.call(here_, ("watch", there))
    shards.call(here_, ("ask", there, ("add", 0)))  # goes the way of the monitor, and so behind it
    with pytest.raises(ActorDown):
        shards.call(there, ("nonsense",))
    until(lambda: downs(shards, here_) == ["error"], "its end is told on the other host")
    until(lambda: shards.members("tea") == [here_], "and the group has lost it")
    with pytest.raises(NameTaken):
        shards.start(Counter, name="counter_1", shard=0)
    named = shards.start(Counter, name="alone", shard=1)
    assert shards.whereis("alone") is not None and shards.call("alone", ("add", 1)) == 1
    shards.exit(named, "killed")
    until(lambda: shards.whereis("alone") is None, "its name is free")
    assert [info.kind for info in shards.top("reductions", 2)]
    with pytest.raises(BadRequest):
        client.start_shards("a/b", 1)


def test_an_asyncio_client_reaches_the_same(shards: LightShards, client: Client) -> None:
    async def use() -> tuple[Any, Any, Any, int]:
        awaiting = actorgrid.AsyncClient(client)
        found = await awaiting.whereis("counter_7", "set")
        assert found is not None and await awaiting.whereis("nobody", "set") is None
        before = await found.call(("add", 0))
        await found.call(("add", 2))
        of_set = await awaiting.shards("set")
        return before, await of_set.call("counter_7", ("add", 0)), found.pid, len(await of_set.layout())

    before, after, pid, count = asyncio.run(use())
    assert (after - before, count) == (2, 2)
    assert shards.wait_for("counter_7").pid == pid


def test_a_shard_that_is_killed_is_begun_again_with_its_names_and_what_they_kept(shards: LightShards) -> None:
    watcher = shards.start(Counter, shard=0)
    shards.call(watcher, ("watch", "counter_1"))
    total = shards.call("counter_1", ("add", 1))
    before = linked(shards)[1]
    shards._shard(1).checkpoint().result(100)
    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: downs(shards, watcher) == ["noconnection"], "the link broke")

    def answers() -> Any:
        with suppress(ActorGridError):
            return shards.call("counter_1", ("add", 0), 2.0)

    assert until(answers, "the name answers again") == total
    after = linked(shards)[1]
    assert after["token"] > before["token"]
    assert downs(shards, watcher) == ["noconnection"], "once"


VERSION = """
from actorgrid.supervisors.process import GenServer

class Counter(GenServer):
    version = "{number}"

    def init(self, name=""):
        self.total, self.told = 0, []
        if name:
            self.claim_global(name)

    def code_change(self, old_version, state):
        {change}

    async def handle_call(self, request, caller):
        what, *more = request
        if what == "version":
            return self.version
        if what == "crash":
            raise ValueError("boom")
        if what == "told":
            return self.told
        if what == "ask":
            return await self.call(*more)
        if what == "watch":
            return self.monitor(more[0])
        self.total += more[0]
        return self.total

    def handle_info(self, message):
        self.told.append(getattr(getattr(message, "reason", None), "kind", message))

    def save_state(self):
        return self.total

    def load_state(self, state):
        self.total = state
"""


def test_new_code_comes_to_all_hosts_and_to_shards_that_are_begun_again(
    shards: LightShards, hosts: tuple[ClusterHost, ClusterHost], tmp_path: Path
) -> None:
    before = [shards.call(f"counter_{n}", ("add", 0)) for n in (2, 3)]
    file = tmp_path / "light_kinds.py"
    file.write_text(VERSION.format(number=2, change="raise ValueError('not so')"))
    failed = hosts[0].cli("deploy", str(file), "--to", "set", "--watch", "0.5s", "--json", check=False)
    assert failed.returncode == 1 and "not so" in failed.stdout
    assert [shards.call(f"counter_{n}", ("add", 0)) for n in (2, 3)] == before
    file.write_text(VERSION.format(number=3, change="pass"))
    done = hosts[0].cli_json("deploy", str(file), "--to", "set", "--canary", "10%", "--watch", "0.5s")
    assert done["stays"] and done["changed"] >= NAMES
    assert [shards.call(f"counter_{n}", ("version",)) for n in (2, 3)] == ["3", "3"]
    assert [shards.call(f"counter_{n}", ("add", 0)) for n in (2, 3)] == before
    top = json.loads(hosts[0].cli("inspect", "--processes", "set", "--by", "memory", "--json").stdout)
    assert len(top["shards"]) == 2 and {each["kind"] for each in top["processes"]} >= {"Counter"}
    os.kill(linked(shards)[1]["pid"], signal.SIGKILL)

    def version() -> Any:
        with suppress(ActorGridError):
            return shards.call("counter_1", ("version",), 2.0)

    assert until(version, "the name answers again") == "3", "with the code that was deployed"


@pytest.mark.parametrize("how", ["while True: pass", "__import__('threading').Event().wait()"], ids=["spins", "sleeps"])
def test_a_code_change_that_hangs_is_taken_back_on_all_hosts(
    shards: LightShards, hosts: tuple[ClusterHost, ClusterHost], tmp_path: Path, how: str
) -> None:
    before = linked(shards)
    totals = [shards.call(f"counter_{n}", ("add", n)) for n in range(4)]
    for slot in range(2):
        shards._shard(slot).checkpoint().result(100)
    file = tmp_path / "light_kinds.py"
    file.write_text(VERSION.format(number=4, change=how))
    failed = hosts[0].cli("deploy", str(file), "--to", "set", "--canary", "1%", "--watch", "0.5s", check=False)
    assert failed.returncode != 0

    def state() -> Any:
        with suppress(ActorGridError):
            return [shards.call(f"counter_{n}", ("add", 0)) for n in range(4)]

    # One that spins is interrupted; one in native code cannot be, so its shard's watchdog ends the shard.
    assert until(state, "all answer again") == totals
    after = linked(shards)
    assert [shards.call(f"counter_{n}", ("version",)) for n in range(4)] == ["3"] * 4
    began_again = [now["token"] > then["token"] for now, then in zip(after, before, strict=True)]
    assert began_again == [not how.startswith("while")] * 2
    file.write_text(VERSION.format(number=3, change="pass"))
    assert hosts[0].cli_json("deploy", str(file), "--to", "set", "--watch", "0.1s")["stays"], "and another may follow"


def test_a_lost_host_s_names_answer_on_another(
    shards: LightShards, client: Client, hosts: tuple[ClusterHost, ClusterHost]
) -> None:
    shards.stop()  # its shards may both be on the first host by now
    until(lambda: not client.jobs(state="running"), "the set before is gone")
    shards = begun(client, "to lose")
    own = hosts[0].hosts()[1]["node_id"]  # the first host
    lost = next(each for each in linked(shards) if each["host_id"] != own)
    slot = lost["slot"]
    names = [f"counter_{n}" for n in range(NAMES) if n % 2 == slot]
    witness = shards.start(Counter, shard=1 - slot)
    shards.call(witness, ("watch", names[0]))
    victims = hosts[1].processes()
    began = time.monotonic()
    hosts[1].kill()
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    until(lambda: downs(shards, witness) == ["noconnection"], "the link is given up")

    def begun_again() -> dict[str, Any] | None:
        found = {each["slot"]: each for each in shards.layout(2.0)}.get(slot)
        return found if found is not None and found["names"] == len(names) else None

    after = until(begun_again, "the shard is begun again, with all its names")
    print(f"{len(names)} names answer again {time.monotonic() - began:.1f} s after their host was lost")
    assert after["token"] > lost["token"] and after["host_id"] != lost["host_id"]
    linked(shards)

    def answer(name: str) -> Any:
        with suppress(ActorGridError):  # the witness's shard has yet to hear who has the name now
            return shards.call(witness, ("ask", name, ("add", 1)))

    for name in names[:: len(names) // 50]:
        assert until(lambda name=name: answer(name), f"{name} answers") >= 1  # type: ignore[misc]
        found = shards.whereis(name)
        assert found is not None and found.pid.host.startswith(after["host_id"])
    assert downs(shards, witness) == ["noconnection"], "once"
    shards.stop()


@pytest.mark.parametrize("how", ["leaves", "is drained"])
def test_a_host_that_leaves_or_is_drained_hands_its_shards_over_with_their_states(
    client: Client, hosts: tuple[ClusterHost, ClusterHost], tmp_path: Path, how: str
) -> None:
    third = ClusterHost(tmp_path / "three", "simulated:1xA100-80GB")
    with closing_all((third,)):
        third.join(hosts[0], str(hosts[0].token()["token"]))
        shards = begun(client, f"which {how}")
        own = hosts[0].hosts()[1]["node_id"]
        leaves = next(each for each in linked(shards) if each["host_id"] != own)
        name = f"counter_{leaves['slot']}"
        shards.call(name, ("add", 42))
        if how == "leaves":
            third.cli("leave", "--now", timeout_s=120)
            assert third.wait_for_end() == 0
        else:
            said = hosts[0].cli("drain", leaves["host_id"], "--move", "--wait", "--timeout", "100s", timeout_s=120)
            assert "is empty" in said.stdout

        def total() -> Any:
            with suppress(ActorGridError):
                return shards.call(name, ("add", 0), 2.0)

        assert until(total, "the name answers again") == 42
        assert leaves["host_id"] not in {each["host_id"] for each in linked(shards)}
        shards.stop()
        if how == "is drained":
            third.cli("leave", "--now", timeout_s=120)
