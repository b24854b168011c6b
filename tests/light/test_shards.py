"""Several shards: the same ties, calls, names and groups, over what brings bytes from one to another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from actorgrid.errors import ActorDown, BadRequest, CallTimeout, NameTaken, NoSuchActor, NotFound, Overloaded
from actorgrid.supervisors.exits import NOPROC, SHUTDOWN
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.process import ExitReason, Pid, ProcessDown, ProcessExit, mesh_carrier
from actorgrid.supervisors.process.mesh_carrier import LightBatch
from actorgrid.supervisors.process.shard_server import (
    ShardCall,
    ShardLookup,
    ShardSend,
    ShardServer,
    ShardStart,
    ShardTop,
)
from tests.light.shard_kinds import Agent


class Host:
    """Two shards in this process, on a clock that we move; what they say to each other is pickled."""

    def __init__(self) -> None:
        self.node = InlineNode()
        self.shards: list[Any] = []
        for n in range(2):
            self.add(n)

    def add(self, n: int) -> Any:
        server: Any = self.node.add(ShardServer, None, "here", None, name=f"shard_{n}")
        self.shards[n : n + 1] = [server]
        self.node.settle()
        return server

    def start(self, n: int, *arguments: Any, name: str | None = None) -> Pid:
        return self.node.request(f"shard_{n}", ShardStart(Agent, arguments, name))

    def call(self, to: Any, *request: Any, by: int = 0, timeout_s: float = 5.0) -> Any:
        return self.node.request(f"shard_{by}", ShardCall(to, request, timeout_s), 60.0)

    def exit(self, to: Any, reason: Any, by: int = 0) -> None:
        self.node.request(f"shard_{by}", ShardSend(to, reason, True))
        self.node.settle()

    def living(self) -> int:
        return sum(server.shard.core.living for server in self.shards)


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    for server in made.shards:
        server.shard.close()


@pytest.fixture
def pair(host: Host) -> tuple[Pid, Pid]:
    return host.start(0, True), host.start(1, True)


def test_shards_have_numbers_of_their_own_and_pids_lead_everywhere(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    assert first.shard != second.shard
    for by in (0, 1):
        assert [host.call(pid, "echo", (pid, 7), by=by) for pid in pair] == [(first, 7), (second, 7)]
    assert host.call(first, "ask", second, ("echo", b"x")) == b"x"


def test_messages_between_two_keep_their_order_and_those_to_the_dead_vanish(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    assert host.call(first, "send_all", second, list(range(12_000))) == [True] * 12_000
    host.node.settle()
    assert host.call(second, "told") == list(range(12_000))
    host.exit(second, "killed")
    host.call(first, "send_all", second, [1])
    host.node.settle()
    assert host.living() == 1


def test_errors_come_back_as_what_they_are(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    with pytest.raises(NotFound, match="not here"):
        host.call(first, "ask", second, ("missing",))
    with pytest.raises(CallTimeout):
        host.call(first, "ask", second, ("silent",), 0.5)
    with pytest.raises(ActorDown, match="boom"):
        host.call(first, "ask", second, ("crash",))
    with pytest.raises(NoSuchActor):
        host.call(first, "ask", second, ("echo", 1))
    assert host.call(first, "echo", 1) == 1


def test_what_cannot_be_pickled_harms_nothing_else(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    host.call(first, "send_unsendable", second)
    host.node.settle()
    assert host.call(second, "told", by=1) == [1, 2]
    with pytest.raises(BadRequest, match="cannot be sent"):
        host.call(first, "ask", second, ("unsendable",))


def test_a_monitor_over_shards_tells_once(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    monitors = [host.call(first, "monitor", second) for _ in range(3)]
    host.call(first, "demonitor", monitors[1])
    host.exit(second, "killed")
    killed = ExitReason("killed")
    assert host.call(first, "told") == [ProcessDown(monitor, second, killed) for monitor in (monitors[0], monitors[2])]
    late = host.call(first, "monitor", second)
    host.node.settle()
    assert host.call(first, "told")[2:] == [ProcessDown(late, second, NOPROC)]


def test_links_over_shards_share_fates(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    third = host.start(1)
    for other in (second, third):
        host.call(first, "link", other)
    host.node.settle()
    host.exit(third, "killed")
    assert host.call(first, "told") == [ProcessExit(third, ExitReason("killed"))]
    host.exit(first, "killed")
    assert host.call(second, "told", by=1) == [ProcessExit(first, ExitReason("killed"))]
    fourth, fifth = host.start(0), host.start(1)
    host.call(fourth, "link", fifth)
    host.call(fourth, "unlink", fifth)
    host.exit(fourth, "killed")
    assert host.call(fifth, "echo", 1, by=1) == 1
    trapping = host.start(0, True)
    host.call(trapping, "link", third)
    host.node.settle()
    assert host.call(trapping, "told") == [ProcessExit(third, NOPROC)]


def test_an_exit_signal_crosses_and_can_be_trapped_but_for_killed(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    host.call(first, "exit", second, "shutdown")
    host.node.settle()
    assert host.call(second, "told", by=1) == [ProcessExit(first, SHUTDOWN)]
    host.exit(second, "killed")
    assert host.living() == 1


def test_a_lost_shard_is_told_to_everybody_who_is_tied_to_it(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    host.call(first, "monitor", second)
    host.call(first, "link", second)
    host.call(second, "monitor", first)
    host.call(second, "join", "all")
    host.call(first, "join", "all")
    host.node.settle()
    answers: list[Any] = []
    host.shards[0].shard.call_soon(second, ("silent",), None, answers.append)
    host.shards[0].give_turns()
    host.node.settle()
    assert host.call(first, "members", "all") == [first, second]
    host.node.remove("shard_1")
    host.node.settle()
    told = host.call(first, "told")
    assert [(type(each).__name__, each.pid, each.reason.kind) for each in told] == [
        ("ProcessDown", second, "killed"),
        ("ProcessExit", second, "killed"),
    ]
    assert isinstance(answers[0].outcome[1], ActorDown)
    assert host.call(first, "members", "all") == [first]
    assert host.shards[0].shard.info(first).attachments.watchers == {}
    # Afterwards nothing leads there, and it is said why.
    late = host.call(first, "monitor", second)
    assert host.call(first, "told")[2] == ProcessDown(late, second, told[0].reason)
    assert host.call(first, "send_all", second, [1]) == [False]
    with pytest.raises(ActorDown, match="its shard ended"):
        host.call(first, "ask", second, ("echo", 1))


def test_a_shard_that_comes_back_is_another_one(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    host.call(first, "join", "all")
    host.node.remove("shard_1")
    host.node.advance(1)
    host.add(1)
    again = host.start(1)
    assert again != second
    assert host.call(again, "members", "all") == [first]
    assert host.call(first, "ask", again, ("echo", 1)) == 1


def test_a_name_is_of_one_process_of_the_host(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    host.call(second, "register", "the one")
    assert host.call(first, "whereis", "the one") == second
    assert host.call("the one", "echo", 1) == 1
    assert host.call(first, "ask", "the one", ("echo", 2)) == 2
    for ask in (lambda: host.call(first, "register", "the one"), lambda: host.start(0, name="the one")):
        with pytest.raises(NameTaken):
            ask()
    assert host.node.request("shard_0", ShardLookup("the one")) == second
    host.exit(second, "killed")
    assert host.call(first, "whereis", "the one") is None
    host.call(first, "register", "the one")
    assert host.call(host.start(1), "whereis", "the one") == first


def test_names_of_a_lost_shard_are_free_again(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    host.call(second, "register", "the one")
    host.node.remove("shard_1")
    host.call(first, "register", "the one")
    assert host.call("the one", "echo", 1) == 1


def test_groups_are_of_all_shards(host: Host, pair: tuple[Pid, Pid]) -> None:
    first, second = pair
    for pid in pair:
        host.call(pid, "join", "all")
    host.node.settle()
    assert host.call(first, "members", "all") == [first, second]
    assert host.call(second, "members", "all") == [second, first]
    host.call(second, "leave", "all")
    host.exit(first, "killed")
    assert host.node.request("shard_1", ShardLookup("all", True)) == []


def test_more_than_may_wait_for_a_shard_is_refused(
    host: Host, pair: tuple[Pid, Pid], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    monkeypatch.setattr(mesh_carrier, "WAITING_MAX", 10)
    assert sum(host.call(first, "send_all", second, list(range(20)))) == 10
    host.node.settle()
    assert host.call(second, "told", by=1) == list(range(10))


def test_a_full_way_is_tried_again_and_nothing_is_lost(
    host: Host, pair: tuple[Pid, Pid], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    refused: list[LightBatch] = []
    usual = host.shards[0].post_batch

    def refusing(to: Any, batch: LightBatch) -> bool:
        if len(refused) < 3:
            refused.append(batch)
            return False
        return bool(usual(to, batch))

    monkeypatch.setattr(host.shards[0], "post_batch", refusing)
    host.call(first, "send_all", second, list(range(12)))
    host.node.advance(1)
    assert len(refused) == 3
    assert host.call(second, "told", by=1) == list(range(12))


def test_the_bound_of_names_is_told(host: Host, pair: tuple[Pid, Pid], monkeypatch: pytest.MonkeyPatch) -> None:
    from actorgrid.supervisors import registry

    monkeypatch.setattr(registry, "ENTRIES_PER_PROCESS_MAX", 5)
    with pytest.raises(Overloaded):
        for n in range(6):
            host.call(pair[0], "register", f"n{n}")
    assert host.shards[0].shard.whereis("n5") is None


def test_calls_that_have_timed_out_are_forgotten_in_time(
    host: Host, pair: tuple[Pid, Pid], monkeypatch: pytest.MonkeyPatch
) -> None:
    from actorgrid.supervisors.process import ends

    monkeypatch.setattr(ends, "CALLS_LOOKED_THROUGH", 8)
    first, second = pair
    for _ in range(50):
        with pytest.raises(CallTimeout):
            host.call(first, "ask", second, ("silent",), 0.1)
    remote = host.shards[0].shard._remote[second.address]
    assert len(remote.calls) <= 8


def test_a_foreign_pid_leads_nowhere(host: Host, pair: tuple[Pid, Pid]) -> None:
    from actorgrid.hotpath.light import ShardAddress

    first, _ = pair
    for address in (ShardAddress("elsewhere", 1), ShardAddress("here", 999)):
        stranger = Pid(address, 0, 1)
        assert host.call(first, "send_all", stranger, [1]) == [False]
        monitor = host.call(first, "monitor", stranger)
        [down] = [each for each in host.call(first, "told") if each.monitor == monitor]
        assert down.reason.kind == "noconnection"
        with pytest.raises(ActorDown):
            host.call(first, "ask", stranger, ("echo", 1))


def test_the_busiest_of_a_shard_are_shown_and_its_figures_are_metrics(host: Host, pair: tuple[Pid, Pid]) -> None:
    host.call(pair[0], "echo", 1)
    [info] = host.node.request("shard_0", ShardTop())
    assert (info.pid, info.kind) == (pair[0], "Agent")
    figures = host.shards[0].metrics()
    assert figures["processes"] == 1
    host.call(pair[0], "send_all", pair[1], [1, 2])
    assert host.shards[0].metrics()["process_messages_to_other_shards_total"] >= 2
