"""Shards of a set on one clock that is moved by hand, with wires between them that are cut and mended."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

from actorgrid.fencing import FencingToken
from actorgrid.hotpath.light import Pid, ProcessCall
from actorgrid.supervisors.process.cluster_shard import ClusterShard
from actorgrid.supervisors.process.shard_links import ShardIdentity
from tests.light.conftest import HandClock

STEP_S = 0.1
SECRET = b"the secret of the set"


class WireEnd:
    """One end of a connection; what is written comes out at the other one when the stage moves it."""

    def __init__(self, stage: ClusterStage, owner: ClusterShard) -> None:
        self.stage = stage
        self.owner = owner
        self.other: WireEnd | None = None
        self.is_full = False
        self.open = True

    def write(self, data: bytes) -> None:
        if self.open and self.other is not None:
            self.stage.under_way.append((self, bytes(data)))

    def close(self) -> None:
        if self.open:
            self.open = False
            self.stage.under_way.append((self, b""))


class ClusterStage:
    """*count* shards. Between a cut pair nothing comes through, and neither end is told."""

    def __init__(self, count: int, patience_s: float = 8.0, start: bool = True) -> None:
        self.clock = HandClock()
        self.count = count
        self.patience_s = patience_s
        self.under_way: deque[tuple[WireEnd, bytes]] = deque()
        self.cut_pairs: set[frozenset[int]] = set()
        self.shards: dict[int, ClusterShard] = {}
        self.paused: set[int] = set()
        self._index = 0
        self._wires: list[tuple[WireEnd, WireEnd]] = []
        if start:
            for slot in range(count):
                self.begin(slot)
            self.settle()

    def begin(self, slot: int, kept: dict[str, Any] | None = None, secret: bytes = SECRET) -> ClusterShard:
        """Begin a shard, as the next incarnation of its slot."""
        self._index += 1
        me = ShardIdentity("set", slot, self.count, FencingToken(0, self._index), f"host-{slot}")
        numbers = iter(range(10_000))
        shard = ClusterShard(
            me,
            secret,
            clock=self.clock,
            patience_s=self.patience_s,
            random=lambda size: (me.address.shard + next(numbers)).to_bytes(size, "big"),
        )
        shard.kept_states = dict(kept or {})
        self.shards[slot] = shard
        return shard

    def kill(self, slot: int, told: bool = True) -> ClusterShard:
        """Lose a shard and all in it; *told*: its connections end, as of a process, and not as of a host."""
        shard = self.shards.pop(slot)
        for ends in list(self._wires):
            for end in ends:
                if end.owner is shard:
                    end.open = False
                    if told and end.other is not None and end.other.owner in self.shards.values():
                        end.other.owner.links.closed(end.other)
        return shard

    def cut(self, one: int, other: int) -> None:
        self.cut_pairs.add(frozenset({one, other}))

    def mend(self) -> None:
        self.cut_pairs.clear()

    def dial(self) -> None:
        for slot, shard in list(self.shards.items()):
            for to in shard.links.to_dial():
                if to in self.shards and frozenset({slot, to}) not in self.cut_pairs:
                    here, there = WireEnd(self, shard), WireEnd(self, self.shards[to])
                    here.other, there.other = there, here
                    self._wires.append((here, there))
                    self.shards[to].links.accepted(there, shard.now_s())
                    shard.links.dialed(here, to, shard.now_s())

    def settle(self) -> None:
        """Give turns and move bytes until nothing moves."""
        self.dial()
        while True:
            for slot, shard in self.shards.items():
                if slot not in self.paused:
                    shard.run_until_idle()
            if not self.under_way:
                return
            end, data = self.under_way.popleft()
            self._move(end, data)

    def _move(self, end: WireEnd, data: bytes) -> None:
        other = end.other
        if other is None or other.owner not in self.shards.values() or not other.open:
            return
        if frozenset({end.owner.me.slot, other.owner.me.slot}) in self.cut_pairs:
            return
        if data:
            other.owner.links.received(other, data, other.owner.now_s())
        else:
            other.open = False
            other.owner.links.closed(other)

    def after(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / STEP_S)):
            self.clock.now_ns += int(STEP_S * 1e9)
            for shard in list(self.shards.values()):
                shard.links.tick(shard.now_s())
            self.settle()

    # -- what tests ask

    def start(self, slot: int, kind: Any, *args: Any) -> Pid:
        pid = self.shards[slot].spawn(kind, *args)
        self.settle()
        # As it comes to others: a pid of this process's own core would lead to its process without a link.
        elsewhere: Pid = pickle.loads(pickle.dumps(pid))
        return elsewhere

    def ask(self, slot: int, to: Any, request: Any, timeout_s: float = 5.0) -> list[ProcessCall]:
        """Ask from a slot; the list has the call once it is over."""
        answers: list[ProcessCall] = []
        self.shards[slot].call_soon(to, request, timeout_s, answers.append)
        self.settle()
        return answers

    def call(self, slot: int, to: Any, *request: Any, timeout_s: float = 5.0) -> Any:
        answers = self.ask(slot, to, request, timeout_s)
        if not answers:
            self.after(timeout_s + STEP_S)
        value, error = answers[0].outcome
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        for shard in self.shards.values():
            shard.close()
