"""What applications get of the shared state's server: ends, removals, comparing, batches, namespaces, positions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.access import EVERYTHING, Scope
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.replication import actor as actor_module
from actorgrid.actors.replication import watchers as watchers_module
from actorgrid.actors.replication.actor import DistributedState
from actorgrid.actors.replication.lifetimes import with_end
from actorgrid.actors.replication.messages import (
    ChangesLost,
    Mutate,
    MutateBatch,
    Read,
    ReadChanges,
    ReadPrefix,
    ReadUsage,
    StateChanged,
    WatchPrefix,
)
from actorgrid.actors.replication.namespaces import shared_with
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    NamespaceFull,
    Overloaded,
    StateCompareFailed,
    StateTypeConflict,
    UnknownKey,
)
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server, handles

NOW_S = 1_700_000_000


class Watcher(Server):
    name = "gateway"

    def start(self) -> None:
        self.seen: list[Any] = []

    @handles(StateChanged)
    def changed(self, change: StateChanged) -> None:
        self.seen.append((change.key, None if change.deleted else change.value))

    @handles(ChangesLost)
    def lost(self, lost: ChangesLost) -> None:
        self.seen.append("lost")

    @handles(str)
    async def watch(self, prefix: str) -> None:
        await self.call("distributed_state", WatchPrefix(prefix))


class World:
    """One host's server, with a wall clock that the test moves together with the node's."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths = HostPaths(directory / "data")
        self.paths.make()
        settings = Settings()
        settings.performance.min_free_bytes = 0
        self.host = HostContext(self.paths, settings, "h" * 32, "here", 1, "boot")
        self.node = InlineNode()
        self.step_s = 0.0
        monkeypatch.setattr(actor_module.time, "time_ns", self.wall_ns)
        self.boot()

    def wall_ns(self) -> int:
        return int((NOW_S + self.step_s + self.node.now_s) * 1e9)

    def boot(self) -> None:
        server = self.node.add(DistributedState, self.host)
        assert isinstance(server, DistributedState)
        self.server = server

    def reboot(self) -> None:
        assert self.server._replica is not None
        self.server._replica.close()
        self.node.remove("distributed_state")
        self.host.incarnation += 1
        self.boot()

    def ask(self, request: Any) -> Any:
        return self.node.request("distributed_state", request)

    def mutate(self, key: str, operation: str, value: Any = None, **more: Any) -> Any:
        kinds = {
            "increment": "pn_counter",
            "add": "or_set",
            "remove": "or_set",
            "put_field": "or_map",
            "remove_field": "or_map",
            "enable": "ew_flag",
            "disable": "ew_flag",
        }
        kind = more.pop("type", kinds.get(operation, "lww_register"))
        return self.ask(Mutate(key, kind, operation, value, **more))["value"]

    def read(self, key: str) -> Any:
        return self.ask(Read(key))["value"]

    def there(self, key: str) -> bool:
        try:
            self.ask(Read(key))
        except UnknownKey:
            return False
        return True


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.server.stop("test over")


def watcher_of(world: World, prefix: str = "") -> Watcher:
    watcher = world.node.add(Watcher, world.host)
    assert isinstance(watcher, Watcher)
    world.node.request("gateway", prefix)
    return watcher


# -- ends


def test_a_value_ends_after_its_ttl_and_watchers_hear_of_it(world: World) -> None:
    watcher = watcher_of(world)
    world.mutate("k", "put", "short", ttl_s=10.0)
    entry = world.ask(Read("k"))
    assert entry["value"] == "short" and entry["expires_at"] == pytest.approx(NOW_S + 10, abs=1)
    world.node.advance(9.5)
    assert world.read("k") == "short"
    world.node.advance(1.0)
    assert not world.there("k") and world.ask(ReadPrefix("")) == []
    assert watcher.seen == [("k", "short"), ("k", None)]
    with pytest.raises(UnknownKey):
        world.mutate("k", "delete")


def test_a_later_put_has_its_own_end_or_none(world: World) -> None:
    world.mutate("k", "put", 1, ttl_s=5.0)
    world.mutate("k", "put", 2, ttl_s=50.0)
    world.node.advance(6)
    assert world.read("k") == 2
    world.mutate("k", "put", 3)
    world.node.advance(60)
    assert world.read("k") == 3
    assert "expires_at" not in world.ask(Read("k"))


def test_an_end_holds_over_a_restart_and_nothing_is_left_of_it(world: World) -> None:
    world.mutate("k", "put", 1, ttl_s=5.0)
    world.mutate("gone", "put", 1)
    world.mutate("gone", "delete")
    world.node.advance(2)
    world.reboot()
    assert world.read("k") == 1 and not world.there("gone")
    world.node.advance(4)
    assert not world.there("k")
    store = world.server._replica.store  # type: ignore[union-attr]
    assert set(store.states) == {"k", "gone"}, "kept while a clock that is behind may still show it"
    world.node.advance(200)
    assert not store.states, "no tombstone stays"
    world.reboot()
    assert not world.there("k")
    world.mutate("k", "put", 2)
    assert world.read("k") == 2


def test_fields_of_a_map_and_values_of_a_register_end_one_by_one(world: World) -> None:
    watcher = watcher_of(world)
    world.mutate("m", "put_field", 1, field="a", ttl_s=5.0)
    world.mutate("m", "put_field", 2, field="b")
    world.mutate("mv", "put", 3, type="mv_register", ttl_s=5.0)
    assert world.read("m") == {"a": 1, "b": 2} and world.read("mv") == [3]
    world.node.advance(6)
    assert world.read("m") == {"b": 2} and not world.there("mv")
    assert ("m", {"b": 2}) in watcher.seen and ("mv", None) in watcher.seen
    state = world.server._replica.store.states["m"]["or_map"]  # type: ignore[union-attr]
    assert len(state) == 2  # type: ignore[arg-type]
    world.node.advance(200)
    assert len(state) == 1, "the ended field is dropped"  # type: ignore[arg-type]
    world.mutate("m", "put_field", 4, field="a")
    assert world.read("m") == {"a": 4, "b": 2}


@pytest.mark.parametrize("ttl_s", [0, -1.0, float("nan"), float("inf"), 1e12])
def test_a_ttl_has_bounds(world: World, ttl_s: float) -> None:
    with pytest.raises(BadRequest, match="ttl_s"):
        world.mutate("k", "put", 1, ttl_s=ttl_s)
    assert not world.there("k")


def test_what_cannot_end_says_so_and_nobody_writes_an_end_by_hand(world: World) -> None:
    with pytest.raises(BadRequest, match="takes no ttl_s"):
        world.mutate("k", "increment", 1, ttl_s=5.0)
    with pytest.raises(BadRequest, match="may not begin"):
        world.mutate("k", "put", with_end(1, 5))


# -- removals


def test_every_type_is_deleted_and_may_come_again(world: World) -> None:
    watcher = watcher_of(world)
    writes: list[tuple[str, str, Any, dict[str, Any], Any]] = [
        ("r", "put", 1, {}, 1),
        ("mv", "put", 1, {"type": "mv_register"}, [1]),
        ("c", "increment", 3, {}, 3),
        ("g", "increment", 4, {"type": "g_counter"}, 4),
        ("s", "add", "x", {}, ["x"]),
        ("m", "put_field", 1, {"field": "f"}, {"f": 1}),
        ("f", "enable", None, {}, True),
    ]
    for round_ in range(3):
        for key, operation, value, more, expected in writes:
            assert world.mutate(key, operation, value, **more) == expected, (key, round_)
        for key, *_ in writes:
            assert world.mutate(key, "delete") is None
            assert not world.there(key)
            with pytest.raises(UnknownKey):
                world.mutate(key, "delete")
        assert world.ask(ReadPrefix("")) == []
        if round_ == 1:
            world.reboot()
    world.node.settle()
    told = [seen for seen in watcher.seen if seen != "lost"]
    assert [seen for seen in told if seen[0] == "c"][:2] == [("c", 3), ("c", None)]


def test_a_deleted_set_may_become_something_else_but_a_counter_stays_one(world: World) -> None:
    world.mutate("s", "add", 1)
    world.mutate("s", "delete")
    assert world.mutate("s", "put", "text") == "text"
    assert world.ask(Read("s"))["type"] == "lww_register"
    world.mutate("c", "increment", 5)
    world.mutate("c", "delete")
    with pytest.raises(StateTypeConflict):
        world.mutate("c", "put", 1)
    assert world.mutate("c", "increment", 1) == 1


def test_an_emptied_set_and_a_lowered_flag_are_there(world: World) -> None:
    world.mutate("s", "add", 1)
    world.mutate("s", "remove", 1)
    world.mutate("f", "enable")
    world.mutate("f", "disable")
    assert world.read("s") == [] and world.read("f") is False


# -- comparing


def test_compare_and_put_writes_only_over_what_was_expected(world: World) -> None:
    assert world.mutate("k", "compare_and_put", {"a": 1}, expected=()) == {"a": 1}
    with pytest.raises(StateCompareFailed) as caught:
        world.mutate("k", "compare_and_put", 2, expected=())
    assert caught.value.found == '{"a": 1}'
    with pytest.raises(StateCompareFailed):
        world.mutate("k", "compare_and_put", 2, expected=({"a": 2},))
    assert world.mutate("k", "compare_and_put", 2, expected=({"a": 1},), ttl_s=5.0) == 2
    with pytest.raises(StateCompareFailed):
        world.mutate("k", "compare_and_put", 3, expected=(2.0,))
    world.node.advance(6)
    assert world.mutate("k", "compare_and_put", 3, expected=()) == 3, "what ended is not there"
    with pytest.raises(BadRequest, match="expected"):
        world.mutate("k", "compare_and_put", 3)
    with pytest.raises(BadRequest, match="only an lww_register"):
        world.mutate("s", "compare_and_put", 3, type="or_set", expected=())


# -- batches


def test_a_batch_is_applied_in_order_in_one_commit(world: World) -> None:
    store = world.server._replica.store  # type: ignore[union-attr]
    commits = store.commits
    answers = world.ask(
        MutateBatch(
            (
                Mutate("c", "pn_counter", "increment", 2),
                Mutate("c", "pn_counter", "increment", 3),
                Mutate("s", "or_set", "add", "x"),
                Mutate("s", "or_set", "add", "y"),
                Mutate("s", "or_set", "remove", "x"),
                Mutate("k", "lww_register", "put", 1),
                Mutate("k", "lww_register", "compare_and_put", 2, expected=(1,)),
            )
        )
    )
    assert [answer["value"] for answer in answers] == [2, 5, ["x"], ["x", "y"], ["y"], 1, 2]
    assert store.commits == commits + 1
    world.reboot()
    assert (world.read("c"), world.read("s"), world.read("k")) == (5, ["y"], 2)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (Mutate("k", "or_set", "add", 1), StateTypeConflict),
        (Mutate("k", "lww_register", "compare_and_put", 1, expected=(7,)), StateCompareFailed),
        (Mutate("none", "lww_register", "delete"), UnknownKey),
        (Mutate("x", "lww_register", "put", float("nan")), BadRequest),
        (Mutate("", "lww_register", "put", 1), BadRequest),
        (Mutate("x", "nothing", "put", 1), BadRequest),
    ],
)
def test_a_batch_with_one_that_does_not_fit_changes_nothing(
    world: World, wrong: Mutate, error: type[ActorGridError]
) -> None:
    world.mutate("k", "put", "kept")
    world.mutate("c", "increment", 1)
    position = world.server._view.log.position
    with pytest.raises(error, match="mutation 2 of the batch"):
        world.ask(MutateBatch((Mutate("c", "pn_counter", "increment", 5), Mutate("new", "or_set", "add", 1), wrong)))
    assert (world.read("k"), world.read("c"), world.there("new")) == ("kept", 1, False)
    assert world.server._view.log.position == position
    assert world.mutate("c", "increment", 1) == 2, "no dot is lost"


def test_a_batch_has_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="none"):
        world.ask(MutateBatch(()))
    with pytest.raises(BadRequest, match="too many"):
        world.ask(MutateBatch((Mutate("k", "lww_register", "put", 1),) * 1001))
    monkeypatch.setattr(actor_module, "MAX_BATCH_BYTES", 100)
    with pytest.raises(BadRequest, match="too large"):
        world.ask(MutateBatch((Mutate("k", "lww_register", "put", "x" * 60),) * 2))
    monkeypatch.setattr(actor_module, "MAX_KEYS", 2)
    with pytest.raises(Overloaded, match="full"):
        world.ask(MutateBatch(tuple(Mutate(f"k{n}", "lww_register", "put", 1) for n in range(3))))
    assert world.ask(ReadPrefix("")) == []


# -- namespaces


def test_a_namespace_has_room_for_so_many_keys_and_bytes(world: World) -> None:
    limits = world.host.settings.state
    limits.namespace_keys = 2
    world.mutate("@ann/1", "put", 1)
    world.mutate("@ann/2", "put", 1)
    with pytest.raises(NamespaceFull) as caught:
        world.mutate("@ann/3", "put", 1)
    assert caught.value.found == "2 of 2 keys"
    with pytest.raises(NamespaceFull):
        world.ask(MutateBatch(tuple(Mutate(f"@bob/{n}", "lww_register", "put", 1) for n in range(3))))
    world.mutate("@ann/1", "put", 2)
    world.mutate("@bob/1", "put", 1)
    for number in range(5):
        world.mutate(f"free/{number}", "put", 1)
    world.mutate("@ann/1", "delete")
    world.mutate("@ann/3", "put", 1)
    limits.namespace_keys = 100
    limits.namespace_bytes = 1024
    world.mutate("@ann/4", "put", "x" * 600)
    with pytest.raises(NamespaceFull, match="'ann' is full"):
        world.mutate("@ann/5", "put", "x" * 600)
    world.mutate("@bob/5", "put", "x" * 600)


def test_a_user_reads_what_it_may_see(world: World) -> None:
    for key in ("@ann/1", "@bob/1", "@shared/1", "plain", "_cluster/load/h"):
        world.mutate(key, "put", key)

    def keys(prefix: str, scope: Scope) -> list[str]:
        shared = shared_with(scope, ("default", "shared"), lists_hosts=True)
        return [entry["key"] for entry in world.ask(ReadPrefix(prefix, 100, scope, shared))]

    assert keys("", Scope(user="ann")) == ["@ann/1", "@shared/1", "_cluster/load/h", "plain"]
    assert keys("@", Scope(user="bob")) == ["@bob/1", "@shared/1"]
    assert keys("@", Scope(user="ann@lab")) == [], "what the tenant default shares is not another's"
    assert len(keys("", EVERYTHING)) == 5
    page = world.ask(ReadChanges("", scope=Scope(user="ann"), shared=("shared", "_cluster")))
    assert [change["key"] for change in page["changes"]] == ["@ann/1", "@shared/1", "_cluster/load/h"]


def test_usage_shows_namespaces_and_prefixes_by_size(world: World) -> None:
    world.mutate("@ann/a/1", "put", "x" * 1000)
    world.mutate("@ann/b/1", "put", "x")
    world.mutate("small", "put", 1)
    usage = world.ask(ReadUsage())
    assert usage["keys"] == 3 and usage["bytes"] > 1000
    assert [(row["namespace"], row["keys"]) for row in usage["namespaces"]] == [("ann", 2), ("default", 1)]
    deep = world.ask(ReadUsage("@ann/", depth=2))
    assert [(row["prefix"], row["keys"]) for row in deep["prefixes"]] == [("@ann/a/", 1), ("@ann/b/", 1)]
    assert usage["origins"][0]["host_id"] == world.host.host_id and usage["origins"][0]["deltas"] == 3


# -- positions


def test_changes_behind_a_position_are_the_latest_of_each_key(world: World) -> None:
    world.mutate("w/a", "put", 1)
    start = world.ask(ReadChanges("w/"))
    assert (start["known"], [change["value"] for change in start["changes"]]) == (False, [1])
    world.mutate("w/b", "put", 1)
    world.mutate("w/b", "put", 2)
    world.mutate("other", "put", 1)
    world.mutate("w/a", "delete")
    page = world.ask(ReadChanges("w/", start["upto"]))
    assert page["known"] and not page["more"]
    told = [(change["key"], change["value"], change.get("deleted", False)) for change in page["changes"]]
    assert told == [("w/b", 2, False), ("w/a", None, True)]
    assert world.ask(ReadChanges("w/", page["changes"][-1]["id"]))["changes"] == []
    assert world.ask(ReadChanges("w/", page["upto"]))["changes"] == []


def test_pages_of_changes_and_of_keys_leave_nothing_out(world: World) -> None:
    start = world.ask(ReadChanges(""))["upto"]
    for number in range(25):
        world.mutate(f"k{number:02}", "put", number)
    found: list[str] = []
    after = start
    while True:
        page = world.ask(ReadChanges("", after, limit=4))
        found += [change["key"] for change in page["changes"]]
        if not page["more"]:
            break
        after = page["changes"][-1]["id"]
    assert found == [f"k{number:02}" for number in range(25)]
    listed: list[str] = []
    behind = ""
    while True:
        page = world.ask(ReadChanges("k", behind=behind, limit=4))
        listed += [change["key"] for change in page["changes"]]
        if not page["more"]:
            break
        behind = listed[-1]
    assert listed == found


def test_a_position_of_another_life_is_not_known(world: World) -> None:
    world.mutate("k", "put", 1)
    upto = world.ask(ReadChanges(""))["upto"]
    assert world.ask(ReadChanges("", upto))["known"]
    world.reboot()
    page = world.ask(ReadChanges("", upto))
    assert not page["known"] and [change["key"] for change in page["changes"]] == ["k"]
    for wrong in ("x", "0123456789abcdef.5", page["upto"] + "9", "9" * 100):
        assert not world.ask(ReadChanges("", wrong))["known"]


def test_who_missed_changes_is_told_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = watcher_of(world)
    full = True
    real = world.server.cast

    def cast(to: Any, message: Any) -> bool:
        return False if full and to == "gateway" else real(to, message)

    monkeypatch.setattr(world.server, "cast", cast)
    world.mutate("a", "put", 1)
    world.mutate("b", "put", 1)
    full = False
    world.mutate("c", "put", 1)
    world.node.settle()
    assert watcher.seen == ["lost", ("c", 1)]
    assert world.server.metrics()["state_notices_dropped_total"] == 1
    assert watchers_module.MAX_WATCHES == 1024
