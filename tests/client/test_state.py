"""``client.state`` against a real agent: every verb, watches whose connections break, files."""

from __future__ import annotations

import asyncio
import io
import math
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.client.http import AdminHttp
from actorgrid.client.local_cluster import LocalCluster
from actorgrid.client.plain_values import check_plain
from actorgrid.client.state import SharedState
from actorgrid.client.state_file import dump, load, read
from actorgrid.errors import (
    BadRequest,
    MalformedBody,
    NotAllowed,
    StateCompareFailed,
    StateTypeConflict,
    UnknownKey,
)
from tests.processes import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(gpus=0) as made:
        yield made


@pytest.fixture
def state(cluster: LocalCluster) -> SharedState:
    return cluster.client().state


class Breaking:
    """A way to the agent that can be cut: all connections on it break at once, new ones work."""

    def __init__(self, url: str) -> None:
        self._to = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self.cuts = 0
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
            except OSError:
                return
            with self._lock:
                self._pairs.append((near, far))
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(near, selectors.EVENT_READ, far)
            waiting.register(far, selectors.EVENT_READ, near)
            try:
                while True:
                    for key, _ in waiting.select():
                        data = key.fileobj.recv(4096)  # type: ignore[union-attr]
                        if not data:
                            return
                        key.data.sendall(data)
            except (OSError, ValueError):
                return
            finally:
                near.close()
                far.close()

    def cut(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for near, far in pairs:
            for end in (near, far):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
        self.cuts += bool(pairs)

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self.cut()


class Watching:
    """A watch in a thread, and what it was told: the state as it has it, and every key that it heard of."""

    def __init__(self, http: AdminHttp, prefix: str) -> None:
        self.http = http
        self.shown: dict[str, Any] = {}
        self.heard: set[str] = set()
        self.events = 0
        self.resyncs: list[str] = []
        self.changed = threading.Condition()
        self._changes = SharedState(http).watch(prefix, initial=True, on_resync=self.resyncs.append)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for entry in self._changes:
            with self.changed:
                self.events += 1
                self.heard.add(entry["key"])
                if entry.get("deleted"):
                    self.shown.pop(entry["key"], None)
                else:
                    self.shown[entry["key"]] = entry["value"]
                self.changed.notify_all()
            if entry["value"] == "the end":
                return

    def wait_for(self, condition: Any, what: str) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 60), what


def shown(state: SharedState, prefix: str) -> dict[str, Any]:
    return {entry["key"]: entry["value"] for entry in state.entries(prefix)}


def test_a_watch_whose_connection_breaks_again_and_again_misses_no_key(
    cluster: LocalCluster, state: SharedState
) -> None:
    way = Breaking(cluster.url)
    http = AdminHttp(way.url, cluster.token)
    try:
        state.put("w/first", 1)
        watching = Watching(http, "w/")
        watching.wait_for(lambda: "w/first" in watching.shown, "the beginning")
        for number in range(300):
            state.put(f"w/once/{number}", number)
            state.increment(f"w/often/{number % 7}")
            if number % 5 == 4:
                state.delete(f"w/once/{number - 1}")
            if number % 20 == 10:
                way.cut()
        state.put("w/end", "the end")
        watching.thread.join(60)
        assert not watching.thread.is_alive()
        expected = shown(state, "w/")
        assert watching.shown == expected and len(expected) == 300 - 60 + 7 + 2
        # One that was made and deleted while the watch was cut off is told as deleted, or was never there for it.
        gone = {f"w/once/{number - 1}" for number in range(4, 300, 5)}
        assert watching.heard | gone == expected.keys() | gone
        assert way.cuts >= 10 and not watching.resyncs, "positions were known each time"
    finally:
        http.close()
        way.close()


def test_a_watch_over_a_restart_of_the_server_is_told_so_and_hears_what_is_gone(
    cluster: LocalCluster, state: SharedState
) -> None:
    http = AdminHttp(cluster.url, cluster.token)
    way = Breaking(cluster.url)
    apart = AdminHttp(way.url, cluster.token)
    try:
        state.put("r/stays", 1)
        state.put("r/goes", 1)
        state.put("r/changes", 1)
        watching, cut_off = Watching(http, "r/"), Watching(apart, "r/")
        watching.wait_for(lambda: len(watching.shown) == 3, "all three")
        cut_off.wait_for(lambda: len(cut_off.shown) == 3, "all three")
        pid = http.get("/api/inspect/distributed_state")["pid"]
        os.kill(pid, signal.SIGKILL)

        def again() -> bool:
            try:
                state.put("r/changes", 2)
                return True
            except actorgrid.errors.ActorGridError:
                return False

        until(again, "the server is back")
        state.delete("r/goes")
        state.put("r/new", 1)
        way.cut()
        state.put("r/after", 1)
        expected = {"r/stays": 1, "r/changes": 2, "r/new": 1, "r/after": 1}
        assert shown(state, "r/") == expected
        for one in (watching, cut_off):
            # Not until a last key is told: a list of all, which comes after a restart, is in the order of names.
            one.wait_for(lambda one=one: one.shown == expected, "the same as is there")
            assert "r/goes" in one.heard
        state.put("r/end", "the end")
        for one in (watching, cut_off):
            one.thread.join(60)
            assert not one.thread.is_alive()
    finally:
        http.close()
        apart.close()
        way.close()


def test_a_watch_goes_on_behind_an_id(cluster: LocalCluster, state: SharedState) -> None:
    state.put("i/a", 1)
    changes = state.watch("i/", initial=True)
    next(changes)
    state.put("i/b", 1)
    position = next(changes)["id"]
    changes.close()  # type: ignore[attr-defined]
    state.put("i/a", 2)
    state.put("i/c", 1)
    later = state.watch("i/", after=position)
    assert [(entry["key"], entry["value"]) for entry in (next(later), next(later))] == [("i/a", 2), ("i/c", 1)]
    later.close()  # type: ignore[attr-defined]


def test_ends_removals_and_comparing(state: SharedState) -> None:
    changes = state.watch("e/", initial=True)
    state.put("e/short", "soon gone", ttl_s=0.3)
    state.put("e/long", 1, ttl_s=600)
    told = [next(changes) for _ in range(3)]
    assert told[-1]["key"] == "e/short" and told[-1]["deleted"]
    changes.close()  # type: ignore[attr-defined]
    with pytest.raises(UnknownKey):
        state.get("e/short")
    assert "expires_at" in state.entry("e/long")
    assert state.put_field("e/map", "x", 1, ttl_s=600) == {"x": 1}
    assert state.put_if_absent("e/owner", "ann") == "ann"
    with pytest.raises(StateCompareFailed) as caught:
        state.put_if_absent("e/owner", "bob")
    assert caught.value.found == '"ann"'
    assert state.compare_and_put("e/owner", "ann", "bob") == "bob"
    state.delete("e/owner")
    assert state.get("e/owner", "nobody") == "nobody"


def test_a_batch_is_all_or_nothing(state: SharedState) -> None:
    batch = (
        state.batch().put("b/r", 1).increment("b/c", 5).add_to_set("b/s", "x").put_field("b/m", "f", 2).enable("b/f")
    )
    assert state.apply(batch, durability="majority") == [1, 5, ["x"], {"f": 2}, True]
    with pytest.raises(StateTypeConflict, match="mutation 1 of the batch"):
        state.apply(state.batch().put("b/r", 2).increment("b/s").delete("b/c"))
    assert shown(state, "b/") == {"b/r": 1, "b/c": 5, "b/s": ["x"], "b/m": {"f": 2}, "b/f": True}
    more = state.batch().delete("b/r").decrement("b/c").remove_from_set("b/s", "x").remove_field("b/m", "f")
    assert state.apply(more.disable("b/f")) == [None, 4, [], {}, False]


def test_namespaces_keep_keys_apart(state: SharedState) -> None:
    ann, bob = state.in_namespace("ann"), state.in_namespace("bob")
    ann.put("k", 1)
    bob.put("k", 2)
    assert (ann.get("k"), bob.get("k"), state.get("@ann/k")) == (1, 2, 1)
    assert [entry["key"] for entry in ann.list()] == ["k"]
    assert ann.apply(ann.batch().increment("c")) == [1]
    assert state.get("@ann/c") == 1
    changes = ann.watch(initial=True)
    assert {next(changes)["key"] for _ in range(2)} == {"k", "c"}
    changes.close()  # type: ignore[attr-defined]
    with pytest.raises(NotAllowed):
        state.put("_cluster/health/me", "fine")
    assert {row["namespace"] for row in state.usage()["namespaces"]} >= {"ann", "bob"}


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (math.nan, "the value"),
        ([1, {"a": math.inf}], "the value[1]['a']"),
        (b"bytes", "the value"),
        ({"n": 2**64}, "the value['n']"),
        ("\ud800", "the value"),
        ({"\ud800": 1}, "the value"),
        ({1: 2}, "the value"),
        ({1, 2}, "the value"),
        (object(), "the value"),
    ],
)
def test_what_is_not_json_is_refused_by_name_and_place(state: SharedState, value: Any, place: str) -> None:
    with pytest.raises(BadRequest, match="is not JSON") as caught:
        state.put("k", value)
    assert caught.value.asked == place and caught.value.hint
    for refused in (
        lambda: state.add_to_set("k", value),
        lambda: state.put_field("k", "f", value),
        lambda: state.batch().put("k", value),
        lambda: state.compare_and_put("k", value, 1),
    ):
        with pytest.raises(BadRequest):
            refused()


def test_what_is_json_comes_back_as_it_went(state: SharedState) -> None:
    deep: Any = 1
    for _ in range(32):
        deep = [deep]
    value = {"i": 2**64 - 1, "n": -(2**63), "f": 1.5, "t": "ä\u2028😀\0", "l": [None, True, []], "d": {"": {}}}
    assert state.put("j", value) == value and state.get("j") == value
    check_plain(deep)
    with pytest.raises(BadRequest, match="not JSON"):
        check_plain([deep])


def test_a_dump_loads_where_it_was_made_and_elsewhere_and_twice_is_once(state: SharedState) -> None:
    state.apply(
        state.batch()
        .put("d/r", {"a": 1})
        .put("d/mv", 1, "mv_register")
        .increment("d/c", 7)
        .increment("d/g", 3, "g_counter")
        .add_to_set("d/s", "x")
        .add_to_set("d/s", 1)
        .put_field("d/m", "f", [1])
        .enable("d/f")
        .put("d/t", 1, ttl_s=600)
    )
    file = io.StringIO()
    assert dump(state.entries("d/"), file, 0.0, lambda _done: None) == 8
    before = shown(state, "d/")
    wanted = list(read(io.StringIO(file.getvalue())))
    done = load(state, wanted, time.time(), lambda _done: None)
    assert (done.added, done.same, done.overwritten, done.skipped) == (0, 8, [], {})
    state.put("d/r", "other")
    state.decrement("d/c", 2)
    state.remove_from_set("d/s", "x")
    state.add_to_set("d/s", "more")
    state.put_field("d/m", "f", 2)
    state.disable("d/f")
    state.delete("d/t")
    state.increment("d/g", 1, "g_counter")
    done = load(state, wanted, time.time(), lambda _done: None)
    assert (done.added, done.same, sorted(done.overwritten)) == (1, 1, ["d/c", "d/f", "d/m", "d/r", "d/s"])
    assert list(done.skipped) == ["d/g"] and "only grows" in done.skipped["d/g"]
    assert shown(state, "d/") == {**before, "d/g": 4}
    assert load(state, wanted, time.time(), lambda _done: None).overwritten == []


@pytest.mark.parametrize("text", ["", "{}\n", '{"format": "actorgrid-state", "version": 2}\n', "nonsense\n"])
def test_a_file_that_is_no_dump_is_refused(text: str) -> None:
    with pytest.raises(MalformedBody):
        list(read(io.StringIO(text)))


def test_the_async_client_has_the_same_verbs(cluster: LocalCluster) -> None:
    async def use() -> None:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as client:
            state = client.state.in_namespace("async")
            assert await state.apply(state.batch().put("k", 1).increment("c", 2)) == [1, 2]
            assert await state.compare_and_put("k", 1, 2, ttl_s=60) == 2
            assert await state.put_if_absent("n", 1) == 1
            await state.delete("n")
            seen: dict[str, Any] = {}
            async for entry in state.watch(initial=True):
                seen[entry["key"]] = entry["value"]
                if len(seen) == 2:
                    break
            assert seen == {"k": 2, "c": 2}
            assert (await state.usage())["keys"] >= 2

    asyncio.run(use())


def test_a_task_uses_the_state_with_its_submitters_rights(cluster: LocalCluster) -> None:
    client: Client = cluster.client()

    def inside() -> tuple[Any, list[str], str]:
        import actorgrid
        from actorgrid.client.user import user_name
        from actorgrid.errors import NotAllowed

        assert actorgrid.current_task().attempt_number >= 1
        with actorgrid.connect() as own:
            own.state.increment("from_a_task")
            mine = own.state.in_namespace(user_name())
            mine.apply(mine.batch().put("k", "mine").put("gone", 1, ttl_s=60).delete("gone"))
            try:
                own.state.put("@somebody-else/k", 1)
            except NotAllowed as error:
                refused = error.found
            return mine.get("k"), [entry["key"] for entry in own.state.list("@")], refused

    client.state.put("@somebody-else/secret", 1)
    value, keys, refused = client.submit(inside).result(60)
    assert value == "mine" and client.state.get("from_a_task") == 1
    assert len(keys) == 1 and keys[0].endswith("/k") and "default" in refused
