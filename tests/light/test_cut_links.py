"""Three shards over real sockets whose wires go silent: both sides are told, and of a name there is one holder.

The twin of ``tests/system/test_light_partition.py``, which has hosts in network namespaces and needs root.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from actorgrid.errors import CallTimeout, NameTaken
from actorgrid.fencing import FencingToken
from actorgrid.supervisors.process import GenServer, ProcessDown
from actorgrid.supervisors.process.shard_links import ShardIdentity
from actorgrid.supervisors.process.shard_loop import ShardLoop, ShardRoute
from tests.processes import until

COUNT = 3
PATIENCE_S = 5.0
WAIT_S = 60.0


class SilentWire:
    """A socket that passes on to another; while it is cut, nothing of what comes is, and nobody is told."""

    def __init__(self, path: Path, to: str) -> None:
        self.path, self._to = str(path), to
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self.is_cut = False
        self._over = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over = True
        self._thread.join(WAIT_S)
        for end in (self._listener, *(end for pair in self._pairs for end in pair)):
            end.close()
        Path(self.path).unlink()

    def _run(self) -> None:
        while not self._over:
            ways = {near: far for pair in self._pairs for near, far in (pair, pair[::-1])}
            if self.is_cut:
                select.select([], [], [], 0.02)
                continue
            for ready in select.select([self._listener, *ways], [], [], 0.02)[0]:
                if ready is self._listener:
                    near, far = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                    with suppress(OSError):
                        far.connect(self._to)
                    self._pairs.append((near, far))
                elif not self.is_cut:
                    self._pass_on(ready, ways[ready])

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            data = source.recv(65536)
            sink.sendall(data)
        if not data:
            self._pairs = [pair for pair in self._pairs if source not in pair]
            source.close()
            sink.close()


class Contender(GenServer):
    """Takes names, and keeps what it is told."""

    def init(self) -> None:
        self.told: list[Any] = []

    async def handle_call(self, request: Any, caller: Any) -> Any:
        what, *more = request
        match what:
            case "take":
                await self.register_global(more[0], timeout_s=more[1])
            case "watch":
                self.monitor(more[0])
            case "told":
                return self.told
            case "who":
                return self.pid

    def handle_info(self, message: Any) -> None:
        if isinstance(message, ProcessDown):
            self.told.append((message.pid, message.reason.kind))


class Town:
    """Shards 0, 1 and 2; the wires from 0 can be cut."""

    def __init__(self, folder: Path) -> None:
        self.ended: list[Any] = []
        self.loops = []
        for slot in range(COUNT):
            me = ShardIdentity("set", slot, COUNT, FencingToken(0, slot + 1), f"host-{slot}")
            made = ShardLoop(me, b"secret", str(folder / f"{slot}"), PATIENCE_S, self.ended.append)
            made.start()
            self.loops.append(made)
        self.wires = {slot: SilentWire(folder / f"wire-{slot}", self.loops[slot].path) for slot in (1, 2)}
        self.pids = [loop.spawned(Contender, (), None, WAIT_S).result(WAIT_S) for loop in self.loops]

    def link(self) -> None:
        """Have shards go to each other until all are linked, as who finds their ways does."""

        def all_linked() -> bool:
            for slot, loop in enumerate(self.loops):
                for other in loop.wanted()[0]:
                    loop.connect(other, ShardRoute(self.wires[other].path if slot == 0 else self.loops[other].path))
            return all(self.missing(slot) == [] for slot in range(COUNT))

        until(all_linked, "all shards are linked")

    def missing(self, slot: int) -> list[int]:
        shard = self.loops[slot].shard
        return shard.post_action(shard.links.missing).result(WAIT_S)

    def call(self, slot: int, *request: Any) -> Any:
        return self.loops[slot].shard.post_call(self.pids[slot], request, WAIT_S).result(WAIT_S)

    def holders(self, name: str) -> list[Any]:
        found = []
        for loop in self.loops:
            shard = loop.shard
            found.append(shard.post_action(lambda shard=shard: shard.whereis(name)).result(WAIT_S))  # type: ignore[misc]
        return found

    def name_of_home(self, home: int, besides: str = "") -> str:
        names = (f"name {n}" for n in range(1000))
        return next(n for n in names if n != besides and self.loops[0].shard.global_names.home_of(n) == home)

    def cut(self, is_cut: bool) -> None:
        for wire in self.wires.values():
            wire.is_cut = is_cut

    def close(self) -> None:
        self.cut(False)
        for loop in self.loops:
            loop.close()
        for wire in self.wires.values():
            wire.close()


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    made.link()
    yield made
    made.close()


def test_both_sides_are_told_once_and_a_name_has_one_winner_after_it(town: Town) -> None:
    held = town.name_of_home(1)
    town.call(0, "take", held, WAIT_S)
    until(lambda: town.holders(held) == [town.pids[0]] * COUNT, "all know who has the name")
    for one, other in ((0, 1), (0, 2), (1, 0), (2, 0), (1, 2)):
        town.call(one, "watch", town.pids[other])
    town.cut(True)
    until(lambda: town.missing(0) == [1, 2] and town.missing(1) == [0] == town.missing(2), "the links are given up")
    lost = {pid: (pid, "noconnection") for pid in town.pids}
    until(lambda: len(town.call(0, "told")) == 2, "the one side is told")
    assert set(town.call(0, "told")) == {lost[town.pids[1]], lost[town.pids[2]]}
    for slot in (1, 2):
        until(lambda slot=slot: town.call(slot, "told") == [lost[town.pids[0]]], "and the other")  # type: ignore[misc]
    # Names whose home is on the other side wait; those of this side are taken; held ones stay who had them.
    contested = town.name_of_home(1, besides=held)
    with pytest.raises(CallTimeout, match="not linked"):
        town.call(0, "take", contested, 0.2)
    town.call(2, "take", contested, WAIT_S)
    with pytest.raises(NameTaken):
        town.call(2, "take", held, WAIT_S)
    assert town.holders(held) == [town.pids[0]] * COUNT
    town.cut(False)
    town.link()
    with pytest.raises(NameTaken):
        town.call(0, "take", contested, WAIT_S)
    until(lambda: town.holders(contested) == [town.pids[2]] * COUNT, "all agree on the winner")
    assert town.holders(held) == [town.pids[0]] * COUNT
    assert [len(town.call(slot, "told")) for slot in range(COUNT)] == [2, 1, 1], "once, and healing tells nothing"
    assert town.ended == []
