"""What goes from shard to shard of one host: batches over the sockets of their processes.

Messages and signals to one shard wait for the end of the turns in which they were sent, and go as one pickle: the
system call and the pickler's start are what a single message would cost most. Each shard proves the boot's key
(``transports/unix``), so what is unpickled comes from a process of this host's tree.

Bounds: 100,000 items wait for a shard, and then messages are refused; signals are bounded by what they are about. A
batch has at most 5,000 items. One item that cannot be pickled is left out and logged; a call gets that as its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from actorgrid.hotpath.light import Pid, ShardAddress

from ..exits import ExitReason
from ..ref import Ref
from .carrier import NOCONNECTION
from .item_pickling import packed

WAITING_MAX = 100_000
BATCH_MAX = 5_000
LOST_REMEMBERED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class LightBatch:
    """Messages and signals from one shard to another, in order, as one pickle."""

    source: ShardAddress
    data: bytes


class ShardMesh(Protocol):
    """What a carrier asks of the server around the shard."""

    def post_batch(self, to: Ref, batch: LightBatch) -> bool:
        """Send; ``False`` when the queue to that process is full, or it is gone."""

    def when_room(self, to: Ref, callback: Callable[[], None]) -> None:
        """Call back when there is room again, or the process is gone."""

    def find_shard(self, address: ShardAddress) -> Ref | None:
        """The process of a shard nobody has told of; ``None`` when it does not live."""

    def find_name(self, name: str) -> Pid | None:
        """The light process of another shard that has the name."""


class MeshCarrier:
    """Brings messages and signals to the shards of the other processes; see the module."""

    def __init__(self, mesh: ShardMesh, me: ShardAddress) -> None:
        self.mesh = mesh
        self.me = me
        self.refs: dict[ShardAddress, Ref] = {}
        self.sent = 0
        self._waiting: dict[ShardAddress, list[tuple[Any, ...]]] = {}
        self._blocked: set[ShardAddress] = set()
        self._lost: dict[ShardAddress, ExitReason] = {}

    def message(self, address: ShardAddress, target: Pid, message: Any) -> bool:
        """Take a message along."""
        waiting = self._waiting.get(address)
        if waiting is None:
            waiting = self._open(address)
            if waiting is None:
                return False
        if len(waiting) >= WAITING_MAX:
            return False
        waiting.append((target.id, target.generation, message))
        return True

    def signal(self, address: ShardAddress, signal: tuple[Any, ...]) -> bool:
        """Take a signal along."""
        waiting = self._waiting.get(address)
        if waiting is None:
            waiting = self._open(address)
        if waiting is None:
            return False
        waiting.append(signal)
        return True

    def why_not(self, address: ShardAddress) -> ExitReason:
        """Why there is no way to that shard."""
        return self._lost.get(address, NOCONNECTION)

    def whereis(self, name: str) -> Pid | None:
        """The process of another shard that has the name."""
        return self.mesh.find_name(name)

    def flush(self) -> None:
        """Send what waits, to all."""
        for address, waiting in self._waiting.items():
            if waiting and address not in self._blocked:
                self._send(address, waiting)

    def learn(self, address: ShardAddress, ref: Ref) -> None:
        """Take note of where a shard is."""
        if address not in self._lost:
            self.refs[address] = ref

    def lost(self, ref: Ref, reason: ExitReason) -> ShardAddress | None:
        """Take note that a process is gone; gives the address of its shard, if it was known."""
        for address, known in self.refs.items():
            if known == ref:
                del self.refs[address]
                self._waiting.pop(address, None)
                self._blocked.discard(address)
                self._lost[address] = reason
                if len(self._lost) > LOST_REMEMBERED_MAX:
                    del self._lost[next(iter(self._lost))]
                return address
        return None

    def _open(self, address: ShardAddress) -> list[tuple[Any, ...]] | None:
        if address not in self.refs:
            ref = None if address in self._lost else self.mesh.find_shard(address)
            if ref is None:
                return None
            self.refs[address] = ref
        return self._waiting.setdefault(address, [])

    def _send(self, address: ShardAddress, waiting: list[tuple[Any, ...]]) -> None:
        ref = self.refs[address]
        while waiting:
            items = waiting[:BATCH_MAX]
            if not self.mesh.post_batch(ref, LightBatch(self.me, packed(items, address, self.refuse_call))):
                self._blocked.add(address)
                self.mesh.when_room(ref, lambda: self._go_on(address))
                return
            self.sent += len(items)
            del waiting[:BATCH_MAX]

    def _go_on(self, address: ShardAddress) -> None:
        self._blocked.discard(address)
        waiting = self._waiting.get(address)
        if waiting:
            self._send(address, waiting)

    def refuse_call(self, number: int, error: BaseException) -> None:
        """Fail a call of ours that cannot be sent; the shard sets this."""
