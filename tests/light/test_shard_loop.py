"""Shards of a set in threads of one process, over real sockets: what is asked from outside, what breaks, what hangs."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.errors import ActorDown, NameTaken, StartFailed
from actorgrid.fencing import FencingToken
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.process import GenServer, shard_loop
from actorgrid.supervisors.process.shard_links import ShardIdentity
from actorgrid.supervisors.process.shard_loop import ShardLoop, ShardRoute
from tests.light.shard_kinds import Agent
from tests.processes import until

SECRET = b"the secret of the set"
WAIT_S = 60.0


class Pair:
    """Two shards, of which the first goes to the second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended: list[ExitReason] = []
        self.loops = [self.begin(slot, slot + 1) for slot in range(2)]
        self.link()

    def begin(self, slot: int, index: int, secret: bytes = SECRET) -> ShardLoop:
        me = ShardIdentity("set", slot, 2, FencingToken(0, index), f"host-{slot}")
        made = ShardLoop(me, secret, str(self.folder / f"{slot}"), 5.0, self.ended.append)
        made.start()
        return made

    def link(self) -> None:
        self.loops[0].connect(1, ShardRoute(self.loops[1].path))
        until(lambda: all(not loop.wanted()[1] for loop in self.loops), "both shards know each other")

    def start(self, slot: int, kind: Any, *args: Any, name: str | None = None) -> Any:
        pid = self.loops[slot].spawned(kind, args, name, WAIT_S).result(WAIT_S)
        return pickle.loads(pickle.dumps(pid))  # as it comes to another process

    def call(self, slot: int, to: Any, *request: Any) -> Any:
        return self.loops[slot].shard.post_call(to, request, WAIT_S).result(WAIT_S)

    def close(self) -> None:
        for loop in self.loops:
            loop.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()
    assert not list(tmp_path.iterdir()), "the sockets are gone"


class Napper(GenServer):
    """Awaits what asyncio awaits, and hangs where it is told to."""

    async def handle_call(self, request: Any, caller: Any) -> Any:
        if request == ("hang",):
            while True:
                time.monotonic()
        await asyncio.sleep(0.001)
        return "slept"


class Brief(GenServer):
    """Ends at once."""

    def init(self) -> None:
        self.stop("error")


def test_calls_names_and_ends_cross_over_sockets(pair: Pair) -> None:
    one, two = pair.start(0, Agent), pair.start(1, Agent, name="two")
    assert pair.call(0, two, "echo", 1) == 1
    until(lambda: pair.loops[0].shard.post_action(lambda: pair.loops[0].shard.whereis("two")).result(WAIT_S), "a name")
    assert pair.call(1, one, "ask", "two", ("echo", b"x" * 9_000_000)) == b"x" * 9_000_000
    with pytest.raises(NameTaken):
        pair.start(0, Agent, name="two")
    with pytest.raises(StartFailed):
        pair.start(0, Agent, 1, 2, 3)
    pair.call(0, one, "monitor", two)
    pair.call(0, two, "echo", 1)
    with pytest.raises(ActorDown):
        pair.call(0, two, "crash")
    until(lambda: [down.reason.kind for down in pair.call(0, one, "told")] == ["error"], "its end is told")


def test_a_shard_that_is_gone_is_noconnection_and_its_next_incarnation_is_linked(pair: Pair) -> None:
    one, two = pair.start(0, Agent), pair.start(1, Agent)
    pair.call(0, one, "monitor", two)
    pair.call(0, two, "echo", 1)
    pair.loops[1].close()
    until(lambda: [down.reason.kind for down in pair.call(0, one, "told")], "it is told")
    assert [down.reason.kind for down in pair.call(0, one, "told")] in (["noconnection"], ["shutdown"])
    pair.loops[1] = pair.begin(1, 9)
    pair.link()
    three = pair.start(1, Agent, name="three")
    assert pair.call(0, three, "echo", 3) == 3


def test_who_does_not_know_the_secret_is_not_linked(pair: Pair) -> None:
    pair.loops[1].close()
    pair.loops[1] = pair.begin(1, 9, b"another secret")
    pair.loops[0].connect(1, ShardRoute(pair.loops[1].path))
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(pair.loops[0].path)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(WAIT_S)
        assert b"refused" in stranger.recv(4096)
        while stranger.recv(4096):
            pass
    until(lambda: not pair.loops[0]._dialing, "the way was tried")
    assert pair.loops[0].wanted()[0] in ([1], []) and pair.loops[1].wanted()[1] == [0]


def test_a_process_awaits_asyncio_and_one_that_hangs_ends_alone(pair: Pair) -> None:
    pair.loops[1].shard.overruns.interrupt_after_s = 0.2
    napper, agent = pair.start(1, Napper), pair.start(1, Agent)
    assert pair.call(0, napper, "nap") == "slept"
    with pytest.raises(ActorDown, match="hung"):
        pair.call(0, napper, "hang")
    assert pair.call(0, agent, "echo", 5) == 5


def test_a_handler_that_cannot_be_interrupted_is_the_end_of_its_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_loop, "HANDLER_MAX_S", 0.2)
    go_on = threading.Event()

    class Sleeper(GenServer):
        def handle_info(self, message: Any) -> None:
            go_on.wait()

    pair = Pair(tmp_path)
    try:
        sleeper = pair.start(0, Sleeper)
        pair.loops[0].shard.post(sleeper, "sleep")
        until(lambda: pair.ended, "who has the shard is told")
        assert pair.ended[0].kind == "hung" and "Sleeper" in pair.ended[0].message
        assert "go_on.wait" in pair.ended[0].traceback
        assert not pair.loops[1].shard.closed
    finally:
        go_on.set()
        pair.close()
    assert len(pair.ended) == 1


def test_the_end_of_the_root_is_told(pair: Pair) -> None:
    pair.loops[0].begin_root(Brief, ())
    until(lambda: pair.ended, "the root has ended")
    assert pair.ended[0].kind == "error"
