"""The door of a simulated host: clients' writes become proposals, their reads wait for a ReadIndex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from actorgrid.actors.ledger.entry_codec import encode_entry
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.raft.messages import Dropped, DroppedLater, ReadState

from .requests import ClientReply, ClientRequest

if TYPE_CHECKING:
    from .node import SimulatedHost

WAITING_MAX = 4_096


@dataclass(slots=True)
class _Read:
    sender: str
    ask: ClientRequest
    index: int | None = None


class SimulatedGateway:
    """The gateway of a host that is up. What waits here is forgotten in a crash: whoever asked asks again."""

    def __init__(self, node: SimulatedHost) -> None:
        self._node = node
        self._writes: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self._reads: dict[bytes, _Read] = {}
        self._number = 0

    def ask(self, sender: str, ask: ClientRequest) -> None:
        """Take a request; answer now or later."""
        if ask.command is None:
            self.read(sender, ask)
        else:
            self._write(sender, ask)

    def _write(self, sender: str, ask: ClientRequest) -> None:
        node = self._node
        earlier = node.ledger.repeated(ask.session, ask.seq)
        if earlier is not None:
            self._tell(sender, _told(ask.number, earlier))
            return
        if len(self._writes) >= WAITING_MAX:
            self._later(sender, ask)
            return
        assert ask.command is not None, "a write without a command"
        context = f"{ask.seq} {ask.session}".encode()
        answer = node.core.propose(encode_entry(ask.command, ask.session, ask.seq), context)
        if isinstance(answer, Dropped):
            self._later(sender, ask)
            return
        waiting = self._writes.setdefault((ask.session, ask.seq), [])
        if (sender, ask.number) not in waiting:
            waiting.append((sender, ask.number))

    def read(self, sender: str, ask: ClientRequest) -> None:
        """Ask the core from which index on the state may be read."""
        self._number += 1
        context = b"%d.%d.%d" % (self._node.id, self._node.boots, self._number)
        if len(self._reads) >= WAITING_MAX or isinstance(self._node.core.read_index(context), Dropped):
            self._later(sender, ask)
            return
        self._reads[context] = _Read(sender, ask)

    @property
    def idle(self) -> bool:
        """Whether no read waits: each that the core accepted has ended."""
        return not self._reads

    def dropped(self, request: DroppedLater) -> None:
        """Tell whoever asked to ask again: the core says that the request is not carried out."""
        if request.kind == "read":
            read = self._reads.pop(request.context, None)
            if read is not None:
                self._later(read.sender, read.ask)
            return
        seq, _, session = request.context.decode().partition(" ")
        for sender, number in self._writes.pop((session, int(seq)), ()):
            self._tell(sender, ClientReply(number, retry=True))

    def read_ready(self, state: ReadState) -> None:
        """A read may be answered once its index is applied."""
        read = self._reads.get(state.context)
        if read is not None:
            read.index = state.index
            self.applied()

    def outcome(self, session: str, seq: int, outcome: Outcome) -> None:
        """Answer who asked here for a command that was applied."""
        for sender, number in self._writes.pop((session, seq), ()):
            self._tell(sender, _told(number, outcome))

    def applied(self) -> None:
        """Answer the reads that waited for the state to move on."""
        state = self._node.ledger
        done = [
            context for context, read in self._reads.items() if read.index is not None and read.index <= state.index
        ]
        for context in done:
            read = self._reads.pop(context)
            self.answer_read(read.sender, read.ask)

    def answer_read(self, sender: str, ask: ClientRequest) -> None:
        """Answer a read from the present state."""
        state = self._node.ledger
        self._tell(sender, ClientReply(ask.number, result=state.settings.get(ask.key), index=state.index))

    def jumped(self) -> None:
        """Tell all who wait to ask again: the state came from a snapshot, whose outcomes were not seen."""
        for waiting in self._writes.values():
            for sender, number in waiting:
                self._tell(sender, ClientReply(number, retry=True))
        self._writes.clear()
        self.applied()

    def _later(self, sender: str, ask: ClientRequest) -> None:
        self._tell(sender, ClientReply(ask.number, retry=True, leader=self._node.leader))

    def _tell(self, sender: str, told: ClientReply) -> None:
        self._node.world.network.send(self._node.name, sender, told)


def _told(number: int, outcome: Outcome) -> ClientReply:
    return ClientReply(number, result=outcome.result, error=outcome.error, index=outcome.index)
