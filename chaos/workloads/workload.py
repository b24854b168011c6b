"""What a workload is: clients that begin, stop asking for more when told, and are idle once all is answered."""

from __future__ import annotations

from abc import ABC, abstractmethod

from actorgrid.actors.ledger.command import Command
from actorgrid.chaos.checkers.checker import ClientCall
from actorgrid.chaos.simulator.cluster import Cluster
from actorgrid.chaos.simulator.requests import ClientReply, Requester


class WorkloadClient(ABC):
    """One client: a call at a time, told to the checkers as it begins and as it is answered."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.world = cluster.world
        self.name = name
        self.rng = self.world.rng(name)
        self.requester = Requester(self.world, name, cluster.ids, self.rng)
        self.stopped = False
        self._think(0)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and nothing will be."""
        return self.stopped and self.requester.idle

    @abstractmethod
    def next_call(self) -> None:
        """Begin the next call, by ``write`` or ``read``."""

    def write(self, key: str, command: Command) -> None:
        """Commit *command*; then think, then the next call."""
        called_us = self.world.now_us
        call: ClientCall | None = None

        def answered(told: ClientReply) -> None:
            assert call is not None, "answered before it was asked"
            self._answered(call, told)

        session, seq = self.requester.write(command, answered)
        call = ClientCall(self.name, "write", key, session, seq, command, called_us)
        self.world.tell(lambda checker: checker.called(call))

    def read(self, key: str) -> None:
        """Read a setting; then think, then the next call."""
        call = ClientCall(self.name, "read", key, "", 0, None, self.world.now_us)
        self.world.tell(lambda checker: checker.called(call))
        self.requester.read(key, lambda told: self._answered(call, told))

    def answered(self, call: ClientCall, told: ClientReply) -> None:  # noqa: B027 - a client may have nothing to remember
        """Called with the answer to *call*; for clients that remember."""

    def thinking_us(self) -> int:
        """Microseconds until the next call."""
        return self.rng.randrange(5_000, 120_000)

    def _answered(self, call: ClientCall, told: ClientReply) -> None:
        answer = told.error if told.error is not None else told.result
        if self.world.trace.keep:
            self.world.trace.add(self.name, f"{call.kind} {call.key} #{call.seq}: {answer} at {told.index}")
        self.world.tell(lambda checker: checker.answered(call, answer, told.index, self.world.now_us))
        self.answered(call, told)
        self._think(self.thinking_us())

    def _think(self, delay_us: int) -> None:
        self.world.clock.after(delay_us + 1, self._go_on)

    def _go_on(self) -> None:
        if not self.stopped:
            self.next_call()


class Workload:
    """A kind of clients, and how many of them."""

    client_class: type[WorkloadClient]

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def begin(self, cluster: Cluster) -> list[WorkloadClient]:
        """Have them all begin."""
        name = type(self).__name__.lower()
        return [self.client_class(cluster, f"{name}{number}") for number in range(1, self.clients + 1)]
