"""DistributedState on an inline node, with a real directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.host.context import HostContext
from actorgrid.actors.replication import actor as actor_module
from actorgrid.actors.replication import growth, watchers
from actorgrid.actors.replication.actor import DistributedState
from actorgrid.actors.replication.messages import (
    Mutate,
    Read,
    ReadPrefix,
    StateChanged,
    UnwatchPrefix,
    WatchPrefix,
)
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import BadRequest, DiskFull, LogCorrupted, Overloaded, StateTypeConflict, UnknownKey
from actorgrid.supervisors.envelope import CALL, Envelope
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server, handles


class Watcher(Server):
    name = "gateway"

    def start(self) -> None:
        self.seen: list[StateChanged] = []

    @handles(StateChanged)
    def changed(self, change: StateChanged) -> None:
        self.seen.append(change)

    @handles(str)
    async def watch(self, prefix: str) -> None:
        await self.call("distributed_state", WatchPrefix(prefix))

    @handles(bytes)
    async def unwatch(self, prefix: bytes) -> None:
        await self.call("distributed_state", UnwatchPrefix(prefix.decode()))


class World:
    def __init__(self, directory: Path) -> None:
        self.paths = HostPaths(directory / "data")
        self.paths.make()
        settings = Settings()
        settings.performance.min_free_bytes = 0
        self.host = HostContext(self.paths, settings, "h" * 32, "here", 1, "boot")
        self.node = InlineNode()
        self.server = self.boot()

    def boot(self) -> DistributedState:
        server = self.node.add(DistributedState, self.host)
        assert isinstance(server, DistributedState)
        self.server = server
        return server

    def reboot(self) -> None:
        """As after SIGKILL: nothing is said, the files are just let go."""
        if self.server._replica is not None:
            self.server._replica.close()
        self.node.remove("distributed_state")
        self.host.incarnation += 1
        self.boot()

    def mutate(self, key: str, kind: str, operation: str, value: Any = None, field: str | None = None) -> Any:
        answer = self.node.request("distributed_state", Mutate(key, kind, operation, value, field))
        assert (answer["key"], answer["type"]) == (key, kind)
        return answer["value"]

    def read(self, key: str) -> Any:
        return self.node.request("distributed_state", Read(key))["value"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.server.stop("test over")


def test_every_type_mutates_reads_and_survives_a_restart(world: World) -> None:
    assert world.mutate("r", "lww_register", "put", {"b": [1, 2.5], "a": None}) == {"a": None, "b": [1, 2.5]}
    assert world.mutate("mv", "mv_register", "put", "x") == ["x"]
    assert world.mutate("g", "g_counter", "increment") == 1
    assert world.mutate("g", "g_counter", "increment", 4) == 5
    assert world.mutate("pn", "pn_counter", "decrement", 3) == -3
    assert world.mutate("s", "or_set", "add", "b") == ["b"]
    assert world.mutate("s", "or_set", "add", 1) == [1, "b"]
    assert world.mutate("s", "or_set", "remove", "b") == [1]
    assert world.mutate("m", "or_map", "put_field", 7, "x") == {"x": 7}
    assert world.mutate("m", "or_map", "put_field", 8, "y") == {"x": 7, "y": 8}
    assert world.mutate("m", "or_map", "remove_field", None, "x") == {"y": 8}
    assert world.mutate("f", "ew_flag", "enable") is True
    before = world.node.request("distributed_state", ReadPrefix(""))
    world.reboot()
    assert world.node.request("distributed_state", ReadPrefix("")) == before
    assert [entry["key"] for entry in before] == sorted(["r", "mv", "g", "pn", "s", "m", "f"])
    assert world.mutate("g", "g_counter", "increment", 1) == 6, "the new incarnation counts on"
    assert world.mutate("f", "ew_flag", "disable") is False


def test_a_later_put_wins_even_when_the_clock_stepped_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.mutate("k", "lww_register", "put", "first")
    monkeypatch.setattr(actor_module.time, "time_ns", lambda: 1_000_000)
    assert world.mutate("k", "lww_register", "put", "second") == "second"
    world.reboot()
    assert world.read("k") == "second"


def test_prefixes_are_read_in_order_up_to_the_limit(world: World) -> None:
    for key in ("b/2", "a/1", "b/1", "c", "b/3"):
        world.mutate(key, "g_counter", "increment")
    found = world.node.request("distributed_state", ReadPrefix("b/", limit=2))
    assert [entry["key"] for entry in found] == ["b/1", "b/2"]
    assert world.node.request("distributed_state", ReadPrefix("zz")) == []


def test_a_key_of_another_type_is_refused_naming_both(world: World) -> None:
    world.mutate("k", "or_set", "add", "x")
    with pytest.raises(StateTypeConflict) as caught:
        world.mutate("k", "pn_counter", "increment")
    assert (caught.value.asked, caught.value.found) == ("pn_counter", "or_set")
    assert world.read("k") == ["x"]


@pytest.mark.parametrize(
    ("key", "kind", "operation", "value", "field"),
    [
        ("k", "no_such_type", "put", 1, None),
        ("k", "g_counter", "decrement", 1, None),
        ("k", "g_counter", "increment", -1, None),
        ("k", "g_counter", "increment", 1.5, None),
        ("k", "g_counter", "increment", True, None),
        ("k", "lww_register", "put", object, None),
        ("k", "lww_register", "put", {1: 2}, None),
        ("k", "lww_register", "put", float("nan"), None),
        ("k", "lww_register", "put", 2**64, None),
        ("k", "lww_register", "put", "x" * 2**20, None),
        ("k", "lww_register", "put", "x", "field"),
        ("k", "or_map", "put_field", "x", None),
        ("k", "or_map", "put_field", "x", ""),
        ("k", "or_set", "add", {"a": 1}, None),
        ("", "lww_register", "put", 1, None),
        ("k" * 1025, "lww_register", "put", 1, None),
    ],
)
def test_what_does_not_fit_is_a_bad_request_and_changes_nothing(
    world: World, key: str, kind: str, operation: str, value: Any, field: str | None
) -> None:
    with pytest.raises(BadRequest) as caught:
        world.mutate(key, kind, operation, value, field)
    assert caught.value.hint or caught.value.found or caught.value.asked
    with pytest.raises(UnknownKey):
        world.read("k")
    assert world.server.metrics()["state_mutations_total"] == 0


def test_an_unknown_key_is_named(world: World) -> None:
    with pytest.raises(UnknownKey, match="nothing-here"):
        world.read("nothing-here")
    with pytest.raises(UnknownKey):
        world.mutate("nothing-here", "or_set", "remove", 1)


def test_mutations_that_arrive_together_share_one_commit(world: World) -> None:
    for count in range(50):
        world.node.send(
            "distributed_state", Envelope(CALL, "test", (9, count), Mutate("hits", "g_counter", "increment"))
        )
    world.node.run_until(lambda: world.server.metrics()["state_mutations_total"] == 50)
    assert world.read("hits") == 50
    assert world.server.metrics()["state_commits_total"] <= 2


def test_watchers_hear_of_changes_under_their_prefix_only(world: World) -> None:
    watcher = world.node.add(Watcher, world.host)
    assert isinstance(watcher, Watcher)
    world.node.request("gateway", "a/")
    world.node.request("gateway", "a/")
    world.mutate("a/1", "g_counter", "increment")
    world.mutate("b/1", "g_counter", "increment")
    world.mutate("a/1", "g_counter", "increment")
    world.node.settle()
    assert [(seen.key, seen.type, seen.value) for seen in watcher.seen] == [
        ("a/1", "g_counter", 1),
        ("a/1", "g_counter", 2),
    ]
    world.node.request("gateway", b"a/")
    world.mutate("a/1", "g_counter", "increment")
    world.node.settle()
    assert len(watcher.seen) == 2


def test_watches_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "MAX_WATCHES", 2)
    world.node.add(Watcher, world.host)
    world.node.request("gateway", "a")
    world.node.request("gateway", "b")
    with pytest.raises(Overloaded):
        world.node.request("gateway", "c")
    world.node.request("gateway", "a")


def test_a_set_a_key_and_the_whole_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "MAX_SHOWN_ELEMENTS", 2)
    world.mutate("s", "or_set", "add", 1)
    world.mutate("s", "or_set", "add", 2)
    world.mutate("s", "or_set", "add", 2)
    with pytest.raises(BadRequest, match="full"):
        world.mutate("s", "or_set", "add", 3)
    world.mutate("s", "or_set", "remove", 1)
    world.mutate("s", "or_set", "add", 3)
    monkeypatch.setattr(actor_module, "MAX_KEYS", 1)
    with pytest.raises(Overloaded):
        world.mutate("another", "g_counter", "increment")
    monkeypatch.setattr(growth, "MAX_KEY_STATE_BYTES", 10)
    with pytest.raises(BadRequest, match="full"):
        world.mutate("s", "or_set", "add", 2)


def test_a_nearly_full_disk_refuses_new_values_and_keeps_the_old(world: World) -> None:
    world.mutate("k", "or_set", "add", "kept")
    world.mutate("k", "or_set", "add", "dropped")
    world.host.settings.performance.min_free_bytes = 2**59
    with pytest.raises(DiskFull) as caught:
        world.mutate("k", "or_set", "add", "new")
    assert "min_free_bytes" in caught.value.hint
    assert world.mutate("k", "or_set", "remove", "dropped") == ["kept"], "what makes room is taken"
    world.host.settings.performance.min_free_bytes = 0
    assert world.mutate("k", "or_set", "add", "new") == ["kept", "new"]


def test_a_full_disk_at_the_commit_takes_the_mutation_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.mutate("k", "g_counter", "increment")
    assert world.server._replica is not None
    real = os.fdatasync
    fail = OSError(28, "No space left on device")

    def full(fd: int) -> None:
        raise fail

    monkeypatch.setattr("os.fdatasync", full)
    with pytest.raises(DiskFull):
        world.mutate("k", "g_counter", "increment", 10)
    monkeypatch.setattr("os.fdatasync", real)
    assert world.read("k") == 1
    assert world.mutate("k", "g_counter", "increment") == 2
    world.reboot()
    assert world.read("k") == 2


def test_a_failed_sync_leaves_it_down_for_this_boot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.mutate("k", "g_counter", "increment")

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", broken)
        with pytest.raises(actor_module.LogFailed):
            world.mutate("k", "g_counter", "increment")
    with pytest.raises(actor_module.LogFailed):
        world.read("k")
    assert world.server.status()["state"] == "down"


def test_damage_is_told_to_every_caller(world: World) -> None:
    world.mutate("k", "lww_register", "put", "x" * 100)
    world.mutate("k", "lww_register", "put", "y" * 100)
    [journal] = world.paths.state_dir.glob("journal-*")
    data = bytearray(journal.read_bytes())
    data[data.index(b"x" * 50)] ^= 1
    journal.write_bytes(data)
    world.reboot()
    with pytest.raises(LogCorrupted, match="checksum"):
        world.read("k")
    with pytest.raises(LogCorrupted):
        world.mutate("k", "lww_register", "put", "z")
    assert world.server.status()["reason"]["code"] == "LogCorrupted"
    assert world.server.metrics()["state_down"] == 1.0


def test_the_journal_is_compacted_and_nothing_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.server._replica is not None
    store = world.server._replica.store
    store._compact_at = 20_000
    for count in range(300):
        world.mutate(f"k{count % 7}", "or_set", "add", "x" * 50 + str(count))
    assert store.compactions >= 1 or store.journal_bytes < 20_000
    store.compact()
    before = world.node.request("distributed_state", ReadPrefix(""))
    world.mutate("after", "g_counter", "increment")
    assert len(list(world.paths.state_dir.iterdir())) == 2
    world.reboot()
    assert world.node.request("distributed_state", ReadPrefix("k")) == before
    assert world.read("after") == 1
