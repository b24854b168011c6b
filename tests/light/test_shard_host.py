"""Shards in processes of their own: killed, hung, restored; found and told from everywhere."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from actorgrid.errors import ActorDown, ActorGridError, BadRequest, CallTimeout, NameTaken, StartFailed
from actorgrid.supervisors.process import GenServer, ShardHost
from actorgrid.supervisors.wire import TreeSettings
from tests.light.shard_kinds import Agent, Root, Sink, flood

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def host() -> Iterator[ShardHost]:
    with ShardHost(2, Root, settings=TreeSettings(beat_interval_s=0.2, hang_margin_s=1.0), max_handler_s=2.0) as made:
        yield made


def until(what: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    """What *what* gives once that is true; what it raises of ours meanwhile is part of a restart."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = what()
        except ActorGridError as error:
            found = None
            if time.monotonic() > deadline:
                raise error from None
        if found:
            return found
        assert time.monotonic() < deadline, "it did not come to be in time"


def test_a_program_starts_calls_and_names_processes_in_any_shard(host: ShardHost) -> None:
    first, second = host.start(Agent, shard=0), host.start(Agent, shard=1, name="second")
    assert first.shard != second.shard
    assert host.call(first, ("ask", "second", ("echo", 5))) == 5
    assert host.whereis("second") == second
    with pytest.raises(NameTaken):
        host.start(Agent, shard=0, name="second")
    with pytest.raises(ActorDown):
        host.call(first, ("crash",))
    with pytest.raises(StartFailed):
        host.start(Agent, 1, 2, 3)
    assert host.send("second", "hello")
    assert until(lambda: host.call(second, ("told",))) == ["hello"]
    host.exit("second", "shutdown")
    assert until(lambda: host.whereis("second") is None)
    for shards in (0, 257, "two"):
        with pytest.raises(BadRequest):
            ShardHost(shards)  # type: ignore[arg-type]


def test_a_hundred_thousand_messages_cross_in_order(host: ShardHost) -> None:
    sink = host.start(Sink, shard=1)
    host.start(flood, sink, 100_000, shard=0)
    in_order, _per_s = host.call(sink, 100_000, timeout_s=120)
    assert in_order


def test_a_killed_shard_is_told_everywhere_and_restored(host: ShardHost) -> None:
    watcher, lost = host.start(Agent, True, shard=0), host.start(Agent, shard=1, name="lost")
    host.call(watcher, ("monitor", lost))
    host.call(watcher, ("link", lost))
    host.call(lost, ("join", "all"))
    until(lambda: host.call(watcher, ("members", "all")) == [lost])
    before = host.pids()
    os.kill(before[1], signal.SIGKILL)
    told = until(lambda: len(host.call(watcher, ("told",))) == 2 and host.call(watcher, ("told",)))
    assert [(type(each).__name__, each.pid, each.reason.kind) for each in told] == [
        ("ProcessDown", lost, "killed"),
        ("ProcessExit", lost, "killed"),
    ]
    assert "SIGKILL" in told[0].reason.message
    until(lambda: host.pids()[1] not in (0, before[1]))
    again = until(lambda: host.start(Agent, shard=1, name="lost"))
    assert again != lost
    assert until(lambda: host.call(watcher, ("ask", "lost", ("echo", 3)))) == 3
    assert host.call(watcher, ("members", "all")) == []
    assert until(lambda: any(info.kind == "Root" and info.pid.shard == again.shard for info in host.top(count=1000)))


class Deaf(GenServer):
    def handle_info(self, message: Any) -> None:
        while True:
            pass


def test_a_shard_that_hangs_is_ended_and_restored_and_says_where_it_was(host: ShardHost) -> None:
    watcher, deaf = host.start(Agent, shard=0), host.start(Deaf, shard=1)
    host.call(watcher, ("monitor", deaf))
    before = host.pids()
    host.send(deaf, 1)
    [down] = until(lambda: host.call(watcher, ("told",)))
    assert down.reason.kind == "hung"
    assert until(lambda: host.pids()[1] not in (0, before[1]))
    until(lambda: host.start(Agent, shard=1))


def test_a_root_that_gives_up_ends_its_shard_which_is_restored(host: ShardHost) -> None:
    before = until(lambda: 0 not in host.pids() and host.pids())
    agents = [info for info in host.top(count=1000) if info.kind == "Root"]
    assert len(agents) == 2
    host.exit(agents[0].pid, "killed")
    until(lambda: host.pids() != before and 0 not in host.pids())
    until(lambda: len([info for info in host.top(count=1000) if info.kind == "Root"]) == 2)


def test_a_call_that_nobody_answers_times_out(host: ShardHost) -> None:
    pid = until(lambda: host.start(Agent))
    with pytest.raises(CallTimeout):
        host.call(pid, ("silent",), timeout_s=0.2)
