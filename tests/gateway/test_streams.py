"""Answers that go on: events, state changes, followed output; and results."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from actorgrid.actors.gateway.routes import job_files
from actorgrid.actors.gateway.routes.state import grouped
from actorgrid.actors.gateway.server import hub as gateway_hub
from actorgrid.actors.gateway.server import stream
from actorgrid.actors.gateway.server.hub import GAP, Hub, Item, Listener, StateItem
from actorgrid.actors.gateway.server.state_stream import StateStream
from actorgrid.actors.ledger.messages import Applied
from actorgrid.actors.replication.messages import StateChanged
from actorgrid.errors import Overloaded


async def events(response: Any, count: int) -> list[dict[str, Any]]:
    """The first *count* events; a stream that ends earlier gives fewer."""
    found: list[dict[str, Any]] = []
    current: dict[str, Any] = {}
    async for line in response.content:
        text = line.decode().rstrip("\n")
        if text.startswith(":"):
            continue
        if not text:
            if current:
                found.append(current)
                current = {}
                if len(found) == count:
                    break
            continue
        name, _, value = text.partition(": ")
        current[name] = json.loads(value) if name == "data" else value
    return found


def collecting(count: int) -> Any:
    async def use(response: Any) -> list[dict[str, Any]]:
        assert response.status == 200, await response.read()
        return await events(response, count)

    return use


def listening(town: Any, count: int = 1) -> None:
    town.until(lambda: town.gateway._app.hub.listeners == count, "the listener")


def test_events_of_the_ledger_come_as_they_are_applied(town: Any) -> None:
    reading = town.with_stream("/api/events", collecting(2))
    listening(town)
    town.add_job("a", attempts=[town.attempt()])
    town.tell_job("a", state="running")
    town.servers["consensus"].apply("setting", "work.kill_grace_s", 3.0, "set_setting")
    first, second = town.finish(reading)
    assert first["id"] == "6"
    assert first["data"]["changes"][0] | {"name": ""} == {
        "kind": "job",
        "id": "a",
        "name": "",
        "user_id": "local",
        "state": "running",
        "cancel_requested": False,
        "attempt": 1,
        "gpu_uuids": ["GPU-0"],
        "error": None,
    }
    assert second["data"]["type"] == "set_setting"
    assert second["data"]["changes"] == [{"kind": "setting", "id": "work.kill_grace_s", "state": "set", "value": 3.0}]


@pytest.mark.parametrize(
    ("path", "answers"),
    [
        ("/api/jobs/a", "cluster_manager"),
        ("/api/jobs/a/why", "cluster_manager"),
        ("/api/jobs/a/result", "cluster_manager"),
        ("/api/jobs/a/logs", "cluster_manager"),
        ("/api/hosts", "cluster_manager"),
        ("/api/cluster", "cluster_manager"),
        ("/api/performance", "cluster_manager"),
        ("/api/gpus", "gpu_coordinator"),
    ],
)
def test_who_heard_an_event_is_told_of_nothing_before_it(town: Any, path: str, answers: str) -> None:
    town.add_job("a")
    reading = town.with_stream("/api/events", collecting(1))
    listening(town)
    index = town.servers["consensus"].apply("job", "a", {"state": "running"})
    town.finish(reading)
    town.http("GET", path)
    assert town.servers[answers].seen == index


@pytest.mark.parametrize("how", ["from", "last-event-id"])
@pytest.mark.parametrize("forgotten", [False, True])
def test_events_resume_where_the_client_stopped(town: Any, how: str, forgotten: bool) -> None:
    for number in range(4):
        town.servers["consensus"].apply("job", f"j{number}", {"state": "queued"})
    town.until(lambda: town.gateway._app.hub.last_index == 9, "the events")
    if forgotten:  # as after a restart of the gateway: only the ledger's history knows
        town.gateway._app.hub._ring.clear()
    if how == "from":
        reading = town.with_stream("/api/events?from=8", collecting(3))
    else:
        reading = town.with_stream("/api/events", collecting(3), headers={"Last-Event-ID": "7"})
    listening(town)
    town.servers["consensus"].apply("job", "j9", {"state": "queued"})
    assert [event["id"] for event in town.finish(reading)] == ["8", "9", "10"]


def test_a_wrong_last_event_id_is_refused(town: Any) -> None:
    assert town.http("GET", "/api/events", headers={"Last-Event-ID": "x"}).status == 400
    assert town.http("GET", "/api/events?from=-1").status == 400


def test_events_missed_on_the_way_are_read_from_the_ledger(town: Any) -> None:
    reading = town.with_stream("/api/events?from=6", collecting(4))
    listening(town)
    consensus = town.servers["consensus"]
    consensus.apply("job", "j1", {"state": "queued"})
    town.until(lambda: town.gateway._app.hub.last_index == 6, "the first event")
    # Consensus restarts: what it applied meanwhile was told to nobody.
    consensus.subscribers.clear()
    consensus.apply("job", "j2", {"state": "queued"})
    consensus.apply("job", "j3", {"state": "queued"})
    town.gateway.peer_restarted("consensus")
    town.until(lambda: bool(consensus.subscribers), "the new subscription")
    town.node.settle()
    consensus.apply("job", "j4", {"state": "queued"})
    assert [event["id"] for event in town.finish(reading)] == ["6", "7", "8", "9"]


def test_a_quiet_stream_gives_signs_of_life(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.05)

    async def two_lines(response: Any) -> list[bytes]:
        return [await response.content.readline() for _ in range(3)]

    lines = town.finish(town.with_stream("/api/events", two_lines))
    assert lines == [b": listening\n", b"\n", b": still here\n"]


def test_a_slow_client_is_cut_off_and_told(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_hub, "MAX_WAITING", 3)
    reading = town.with_stream("/api/events", collecting(99))
    listening(town)
    hub = town.gateway._app.hub

    def burst() -> None:
        for index in range(20, 30):
            hub.receive(Applied(index, index - 1, 1.0, "x", ()))

    town.gateway._bridge._loop.call_soon_threadsafe(burst)
    last = town.finish(reading)[-1]
    assert (last["event"], last["data"]["reason"]) == ("end", "lagging")
    town.until(lambda: hub.listeners == 0, "the listener to be gone")


def test_events_that_are_there_at_once_go_out_together(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[bytes] = []
    write = stream.write

    async def counted(request: Any, response: Any, data: bytes, *more: Any, **named: Any) -> None:
        pieces.append(data)
        await write(request, response, data, *more, **named)

    monkeypatch.setattr(stream, "write", counted)
    reading = town.with_stream("/api/events", collecting(40))
    listening(town)
    hub = town.gateway._app.hub

    def burst() -> None:
        for index in range(20, 60):
            hub.receive(Applied(index, index - 1, 1.0, "x", ()))

    town.gateway._bridge._loop.call_soon_threadsafe(burst)
    assert [int(event["id"]) for event in town.finish(reading)] == list(range(20, 60))
    assert len(pieces) <= 3, "the head, perhaps one that woke the stream, and all others"


def test_events_that_go_out_together_are_bounded(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "TOGETHER_BYTES_MAX", 100)
    reading = town.with_stream("/api/events", collecting(40))
    listening(town)
    hub = town.gateway._app.hub

    def burst() -> None:
        for index in range(20, 60):
            hub.receive(Applied(index, index - 1, 1.0, "x", ()))

    town.gateway._bridge._loop.call_soon_threadsafe(burst)
    assert [int(event["id"]) for event in town.finish(reading)] == list(range(20, 60))


def test_a_client_that_reads_nothing_does_not_keep_its_place(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "WRITE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(stream, "FAREWELL_S", 0.1)
    hub = town.gateway._app.hub
    request = f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {town.token}\r\n\r\n"

    async def open_only() -> Any:
        port = int(town.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request.encode())
        return reader, writer

    _reader, writer = town.run(open_only())
    listening(town)
    big = Item(0, b"x" * 4_000_000)

    def flood() -> None:
        for listener in list(hub._events):
            for _ in range(4):
                listener.put(big)

    town.gateway._bridge._loop.call_soon_threadsafe(flood)
    town.until(lambda: hub.listeners == 0, "the listener to be gone")
    town.until(lambda: len(town.gateway._app.connections) == 0, "the connection to be gone")

    async def close() -> None:
        writer.close()

    town.run(close())


def test_streams_are_told_when_the_host_stops(town: Any) -> None:
    reading = town.with_stream("/api/events", collecting(9))
    listening(town)
    town.gateway.stop("test")
    (last,) = town.finish(reading)
    assert (last["event"], last["data"]["reason"]) == ("end", "stopping")


def test_listeners_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_hub, "MAX_LISTENERS", 1)
    hub = Hub()
    with hub.listen_to_events(), pytest.raises(Overloaded), hub.listen_to_state(""):
        raise AssertionError("one too many")
    assert hub.listeners == 0


def test_the_ring_keeps_the_latest_within_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_hub, "RING_EVENTS", 3)
    hub = Hub()
    for index in range(1, 8):
        hub.receive(Applied(index, index - 1, 1.0, "x", ()))
    assert [item.index for item in hub.recent(5) or []] == [5, 6, 7]
    assert hub.recent(4) is None
    assert hub.recent(8) == []


def test_dropped_events_become_a_gap_for_everyone() -> None:
    hub = Hub()
    with hub.listen_to_events() as listener, hub.watch("job", "a") as watch:
        hub.events_dropped()
        assert list(listener.items) == [GAP]
        assert watch.changed.is_set() and watch.record is None


@pytest.mark.parametrize(
    ("kind", "record", "state"),
    [
        ("job", {"state": "failed", "attempts": [], "error": {"code": "TaskFailed"}}, "failed"),
        ("allocation", {"host": "h1"}, "granted"),
        ("allocation", None, "released"),
        ("host", {"state": "up"}, "up"),
        ("setting", 3, "set"),
        ("setting", None, "unset"),
        ("job", None, "gone"),
        ("term", (2, 1), "set"),
    ],
)
def test_every_change_has_a_state(kind: str, record: Any, state: str) -> None:
    shown = gateway_hub.view_change(kind, "x", record)
    assert (shown["kind"], shown["id"], shown["state"]) == (kind, "x", state)


def test_an_event_of_a_schedule_tells_no_address_that_its_jobs_tell() -> None:
    record = {"name": "x", "revision": 7, "job": {"notify": ["webhook:https://a/secret"], "env": {"KEY": "secret"}}}
    shown = gateway_hub.view_change("schedule", "x", record)
    assert (shown["state"], shown["value"]) == ("set", {"name": "x", "revision": 7})


def test_a_listener_cut_off_hears_nothing_more() -> None:
    listener = Listener()
    listener.end("lagging")
    listener.put(Item(1, b""))
    assert not listener.items


def test_history_rows_of_one_entry_are_one_event() -> None:
    rows = [
        {"number": 1, "index": 4, "at": 1.0, "type": "t", "kind": "job", "id": "a", "state": "placed"},
        {"number": 2, "index": 4, "at": 1.0, "type": "t", "kind": "allocation", "id": "a.1", "state": "granted"},
        {"number": 3, "index": 6, "at": 2.0, "type": "u", "kind": "job", "id": "b", "state": "queued"},
    ]
    first, second = grouped(rows)
    assert [change["id"] for change in first["changes"]] == ["a", "a.1"]
    assert second["index"] == 6


# -- the shared state


def test_changes_under_a_prefix_come_once_each(town: Any) -> None:
    state = town.servers["distributed_state"]
    state.put("a/old", 0)
    reading = town.with_stream("/api/state-watch?prefix=a/&initial=true", collecting(2))
    inner = town.with_stream("/api/state-watch?prefix=a/b", collecting(1))
    listening(town, 2)
    town.until(lambda: "a/" in state.watched, "the watch")
    town.node.settle()
    state.put("a/b", 1)
    assert {event["data"]["key"] for event in town.finish(reading)} == {"a/old", "a/b"}
    assert town.finish(inner)[0]["data"]["value"] == 1
    town.until(lambda: not state.watched, "the watches to end")


def test_other_prefixes_are_not_heard(town: Any) -> None:
    state = town.servers["distributed_state"]
    reading = town.with_stream("/api/state-watch?prefix=b", collecting(1))
    town.until(lambda: state.watched == ["b"], "the watch")
    town.gateway._bridge.tell(None)
    state.put("a", 1)
    state.put("b", 2)
    assert town.finish(reading)[0]["data"]["key"] == "b"


def test_watches_survive_a_restart_of_the_shared_state(town: Any) -> None:
    state = town.servers["distributed_state"]
    reading = town.with_stream("/api/state-watch?prefix=k", collecting(2))
    town.until(lambda: town.gateway._watched == {"k"}, "the watch")
    state.watched.clear()
    state.put("k1", "changed while nobody was told")
    town.gateway.peer_restarted("distributed_state")
    town.until(lambda: state.watched == ["k"], "the watch again")
    town.node.settle()
    state.put("k2", 2)
    assert [event["data"]["key"] for event in town.finish(reading)] == ["k1", "k2"]


def test_a_watch_goes_on_behind_the_last_id_and_says_when_it_is_not_known(town: Any) -> None:
    state = town.servers["distributed_state"]
    state.put("k1", 1)
    reading = town.with_stream("/api/state-watch?prefix=k&initial=true", collecting(3), headers={"Last-Event-ID": "0"})
    resync, entry, synced = town.finish(reading)
    assert (resync["event"], resync["data"], synced["event"]) == ("resync", {"reason": "initial"}, "synced")
    assert (entry["data"]["key"], entry.get("id", "")) == ("k1", "")
    state.put("k1", 2)
    state.put("k2", 1)
    state.put("k1", 3)
    again = town.with_stream("/api/state-watch?prefix=k", collecting(3), headers={"Last-Event-ID": synced["id"]})
    told = town.finish(again)
    assert [(event["data"].get("key"), event["data"].get("value")) for event in told] == [
        ("k2", 1),
        ("k1", 3),
        (None, None),
    ]
    assert told[-1]["id"] == told[-2]["id"] > synced["id"]
    other = town.with_stream("/api/state-watch?prefix=k", collecting(4), headers={"Last-Event-ID": "f" * 16 + ".7"})
    assert [event.get("event") for event in town.finish(other)][::3] == ["resync", "synced"]


def test_a_client_that_reads_a_watch_slowly_gets_the_latest_of_each_key(
    town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_hub, "MAX_WAITING", 3)
    state = town.servers["distributed_state"]
    reading = town.with_stream("/api/state-watch?prefix=k", collecting(2))
    town.until(lambda: town.gateway._watched == {"k"}, "the watch")
    hub = town.gateway._app.hub
    town.until(lambda: len(hub._state) == 1, "the listener")
    state.watched.clear()  # it is told in one go, below
    for value in range(10):
        state.put(f"k{value % 2}", value)

    def burst() -> None:
        for number in range(1, 11):
            hub.receive(StateChanged(f"k{(number - 1) % 2}", "lww_register", number - 1, f"0123456789abcdef.{number}"))

    town.gateway._bridge._loop.call_soon_threadsafe(burst)
    assert [event["data"]["value"] for event in town.finish(reading)] == [8, 9]


def test_work_hears_only_of_what_it_may_see(town: Any) -> None:
    written: list[int | str] = []

    class Sink:
        async def send(self, data: bytes, event: str = "", event_id: int | str = 0) -> None:
            written.append(event_id)

    stream = StateStream(None, Sink(), None, lambda key: key != "@bob/1", str, False)  # type: ignore[arg-type]
    for number, key in enumerate(("@bob/1", "@ann/1"), 1):
        town.run(stream._change(StateItem(0, b"{}", key, f"0123456789abcdef.{number}")))
    assert written == ["0123456789abcdef.2"]


def test_a_watch_that_cannot_be_made_is_refused(town: Any) -> None:
    town.node.remove("distributed_state")
    assert town.http("GET", "/api/state-watch").error["code"] == "NoSuchActor"
    assert not town.gateway._prefixes


# -- output


def test_logs_are_the_raw_bytes_from_an_offset(town: Any) -> None:
    town.add_job("a", attempts=[town.attempt()])
    (town.attempt_folder() / "stdout").write_bytes(b"0123\xff\n")
    (town.attempt_folder() / "stderr").write_bytes(b"oops")
    reply = town.http("GET", "/api/jobs/a/logs?offset=2")
    assert (reply.body, reply.headers["X-Attempt"]) == (b"23\xff\n", "1")
    assert town.http("GET", "/api/jobs/a/logs?stream=stderr&attempt=1").body == b"oops"
    assert town.http("GET", "/api/jobs/a/logs?offset=99").body == b""


def test_large_output_comes_whole(town: Any) -> None:
    town.add_job("a", attempts=[town.attempt()])
    content = bytes(range(256)) * 20_000
    (town.attempt_folder() / "stdout").write_bytes(content)
    assert town.http("GET", "/api/jobs/a/logs").body == content


def test_logs_of_what_is_not_there(town: Any) -> None:
    assert town.http("GET", "/api/jobs/none/logs").error["code"] == "UnknownJob"
    town.add_job("a")
    assert town.http("GET", "/api/jobs/a/logs").body == b""
    assert town.http("GET", "/api/jobs/a/logs?attempt=2").error["code"] == "NotFound"
    assert town.http("GET", "/api/jobs/a/logs?stream=stdin").status == 400
    town.add_job("b", state="succeeded", attempts=[town.attempt("b", ended_at=2.0)])
    assert town.http("GET", "/api/jobs/b/logs").error["code"] == "ResultGone"
    town.add_job("c", attempts=[town.attempt("c", host="elsewhere")])
    assert town.http("GET", "/api/jobs/c/logs").error["code"] == "HostUnreachable"


def test_following_gives_output_as_it_comes_until_the_job_is_final(town: Any) -> None:
    town.add_job("a", attempts=[town.attempt()])
    path = town.attempt_folder() / "stdout"
    path.write_bytes(b"one\n")
    seen: list[bytes] = []

    async def read(response: Any) -> bytes:
        async for piece in response.content.iter_any():
            seen.append(piece)
        return b"".join(seen)

    following = town.with_stream("/api/jobs/a/logs?follow=true", read)
    town.until(lambda: seen == [b"one\n"], "the first line")
    with path.open("ab") as file:
        file.write(b"two\n")
    town.until(lambda: b"".join(seen) == b"one\ntwo\n", "the second line")
    with path.open("ab") as file:
        file.write(b"last words")
    town.tell_job("a", state="succeeded", attempts=[town.attempt(state="succeeded", ended_at=3.0)])
    assert town.finish(following) == b"one\ntwo\nlast words"
    town.until(lambda: town.gateway._app.followers == 0, "the follower to be gone")


def test_following_goes_on_with_the_next_attempt(town: Any) -> None:
    town.add_job("a")

    async def read(response: Any) -> bytes:
        return bytes(await response.read())

    following = town.with_stream("/api/jobs/a/logs?follow=true", read)
    town.until(lambda: town.gateway._app.followers == 1, "the follower")
    (town.attempt_folder("a.1") / "stdout").write_bytes(b"first ")
    failed = town.attempt(state="failed", ended_at=2.0)
    town.tell_job("a", state="queued", attempts=[failed])
    (town.attempt_folder("a.2") / "stdout").write_bytes(b"second")
    second = town.attempt(number=2, state="succeeded", ended_at=4.0)
    town.tell_job("a", state="succeeded", attempts=[failed, second])
    assert town.finish(following) == b"first second"


def test_following_one_attempt_ends_with_it(town: Any) -> None:
    town.add_job("a", attempts=[town.attempt(state="failed", ended_at=2.0)])
    (town.attempt_folder("a.1") / "stdout").write_bytes(b"first")
    assert town.http("GET", "/api/jobs/a/logs?follow=true&attempt=1").body == b"first"


def test_following_ends_with_a_job_that_never_started(town: Any) -> None:
    town.add_job("a")

    async def read(response: Any) -> bytes:
        return bytes(await response.read())

    following = town.with_stream("/api/jobs/a/logs?follow=true", read)
    town.until(lambda: town.gateway._app.followers == 1, "the follower")
    town.tell_job("a", state="cancelled")
    assert town.finish(following) == b""


def test_following_outlives_a_restart_of_who_knows_the_job(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_files, "RECHECK_S", 0.05)
    town.add_job("a", attempts=[town.attempt()])
    (town.attempt_folder() / "stdout").write_bytes(b"x")

    async def read(response: Any) -> bytes:
        return bytes(await response.read())

    following = town.with_stream("/api/jobs/a/logs?follow=true", read)
    town.until(lambda: town.gateway._app.followers == 1, "the follower")
    asked = []
    refreshed = job_files._refreshed

    async def counted(call: Any, job: dict[str, Any]) -> dict[str, Any]:
        found = await refreshed(call, job)
        asked.append(found is job)  # the old record: nobody knew better
        return found

    monkeypatch.setattr(job_files, "_refreshed", counted)
    manager = town.node.servers.pop("cluster_manager")
    town.until(lambda: asked.count(True) >= 2, "two questions nobody answered")
    assert not following.done()
    town.node.servers["cluster_manager"] = manager
    manager.change("a", state="failed", attempts=[town.attempt(state="failed", ended_at=2.0)])
    assert town.finish(following) == b"x"


def test_a_follower_who_leaves_frees_its_place(town: Any) -> None:
    town.add_job("a", attempts=[town.attempt()])
    (town.attempt_folder() / "stdout").write_bytes(b"x")

    async def leave(response: Any) -> None:
        await response.content.readany()
        response.close()

    town.finish(town.with_stream("/api/jobs/a/logs?follow=true", leave))
    town.until(lambda: town.gateway._app.followers == 0, "the follower to be gone")


def test_followers_have_a_bound(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_files, "MAX_FOLLOWERS", 0)
    town.add_job("a")
    assert town.http("GET", "/api/jobs/a/logs?follow=true").error["code"] == "Overloaded"


# -- results


@pytest.mark.parametrize("size", [10, 3 * 2**20 + 1])
def test_result_is_sent_as_the_worker_wrote_it(town: Any, size: int) -> None:
    content = b"\x80" * size
    town.add_job("a", kind="function", state="succeeded", attempts=[town.attempt(ended_at=2.0)])
    (town.attempt_folder() / "result.bin").write_bytes(content)
    reply = town.http("GET", "/api/jobs/a/result")
    assert (reply.status, reply.body) == (200, content)
    assert reply.headers["Content-Length"] == str(size)


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"kind": "function", "state": "running"}, 409, "WrongState"),
        ({"kind": "command", "state": "succeeded"}, 409, "WrongState"),
        ({"kind": "function", "state": "cancelled"}, 409, "TaskCancelled"),
        ({"kind": "function", "state": "lost"}, 409, "TaskFailed"),
    ],
)
def test_why_there_is_no_result(town: Any, fields: dict[str, Any], status: int, code: str) -> None:
    town.add_job("a", **fields)
    reply = town.http("GET", "/api/jobs/a/result")
    assert (reply.status, reply.error["code"]) == (status, code)


def test_a_result_past_keeping_is_gone(town: Any) -> None:
    town.add_job("a", kind="function", state="succeeded", attempts=[town.attempt(ended_at=2.0)])
    reply = town.http("GET", "/api/jobs/a/result")
    assert (reply.status, reply.error["code"]) == (410, "ResultGone")


def test_a_failed_job_without_a_file_gives_its_own_error(town: Any) -> None:
    from actorgrid.errors import MemoryLimitExceeded

    error = MemoryLimitExceeded("too much", found="3 GiB").to_dict()
    town.add_job("a", kind="function", state="failed", error=error, attempts=[town.attempt(ended_at=2.0)])
    assert town.http("GET", "/api/jobs/a/result").error == error
