"""The door of a simulated host for locks: requests that wait over connections that break, by the real ``LockWait``.

A connection carries one request. The host notices later than the client that it broke, and the ledger carries out what
was proposed for it all the same; what becomes of that is for ``LockWait`` and the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from actorgrid.actors.gateway.lock_wait import CommitLeave, CommitRequest, GiveAnswer, LockWait, WaitTerms
from actorgrid.actors.ledger.answers import HoldAnswer
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import ReleaseLock, RenewLock
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.record_types import LockRecord
from actorgrid.errors import ActorGridError, LockLost

from .clock import MS, SECOND
from .requests import LANES_MAX, ClientReply, Requester

if TYPE_CHECKING:
    from .node import SimulatedHost

HUNG_UP_MAX = 4_096


@dataclass(frozen=True, slots=True)
class LockCall:
    """On connection *number* of its sender: acquire it by *terms*, or renew or release it with *token*."""

    number: int
    verb: Literal["acquire", "renew", "release"]
    terms: WaitTerms
    token: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class LockReply:
    """The answer on a connection: how the owner stands, or why it does not."""

    number: int
    answer: HoldAnswer | None = None
    error: ActorGridError | None = None


Connection = tuple[str, int]


@dataclass(slots=True, eq=False)
class WaitingAcquire:
    """One request that is under way. ``asking``: the ledger was asked for it, and has not answered."""

    connection: Connection
    terms: WaitTerms
    wait: LockWait
    asking: bool = True
    open: bool = True
    news: bool = False
    record: LockRecord | None = None


class LockService:
    """The lock requests of a host that is up: at most 32 at a time; one more is not taken."""

    waits_with_ids: ClassVar[bool] = True

    def __init__(self, node: SimulatedHost) -> None:
        self.node = node
        self.requester = Requester(node.world, f"{node.name}/door{node.boots}", node.hosts, node.rng)
        self._waiting: dict[Connection, WaitingAcquire] = {}
        self._seen: set[Connection] = set()
        self._hung_up: set[Connection] = set()
        self._number = 0
        self._asks = 0

    def host_down(self) -> None:
        """Stop, as the host's power is off."""
        self.requester.stop()

    def ask(self, sender: str, ask: LockCall) -> None:
        """Take a request on a connection of its own, which may have broken meanwhile."""
        connection = sender, ask.number
        if connection in self._seen or connection in self._hung_up or self._asks >= LANES_MAX // 2:
            return
        self._seen.add(connection)
        terms, at = ask.terms, self.node.now
        if ask.verb == "acquire":
            self._number += 1
            id = f"{self.node.id}.{self.node.boots}.{self._number}" if self.waits_with_ids else None
            wait = LockWait(terms, id, self.node.monotonic)
            self._waiting[connection] = waiting = WaitingAcquire(connection, terms, wait)
            self._propose(waiting, wait.acquire(at))
            return
        token = None if ask.token is None else list(ask.token)
        make = RenewLock if ask.verb == "renew" else ReleaseLock
        self.write(
            make(terms.name, terms.owner, token, at=at), lambda told: self._tell(connection, told.result, told.error)
        )

    def hung_up(self, sender: str, number: int) -> None:
        """Note that a connection is broken."""
        connection = sender, number
        if len(self._hung_up) < HUNG_UP_MAX:
            self._hung_up.add(connection)
        waiting = self._waiting.get(connection)
        if waiting is not None and waiting.open:
            waiting.open = False
            if not waiting.asking:
                self.clean_up(waiting)

    def changed(self, outcome: Outcome) -> None:
        """Take the changes of an entry applied on this host."""
        for kind, name, record in outcome.changes:
            if kind == "lock":
                for waiting in list(self._waiting.values()):
                    if waiting.terms.name == name:
                        self._look(waiting, record)

    def jumped(self) -> None:
        """Look at every request anew: the state came from a snapshot, and what changed is not known."""
        for waiting in list(self._waiting.values()):
            self._look(waiting, None)

    def write(self, command: Command, answer: Any) -> None:
        """Propose *command*, until it is committed."""
        self._asks += 1

        def answered(told: ClientReply) -> None:
            self._asks -= 1
            answer(told)

        self.requester.write(command, answered)

    # -- one request

    def _propose(self, waiting: WaitingAcquire, command: Command) -> None:
        waiting.asking = True
        self.write(command, partial(self._answered, waiting, self.node.monotonic))

    def _answered(self, waiting: WaitingAcquire, asked_s: float, told: ClientReply) -> None:
        waiting.asking = False
        self.answered(waiting, told)
        if not waiting.open:
            self.clean_up(waiting)
            return
        try:
            if isinstance(told.error, LockLost):
                waiting.wait.lost(told.error)
            elif told.error is not None:
                raise told.error
            else:
                waiting.wait.answered(told.result, asked_s)
            self._go_on(waiting)
        except ActorGridError as error:
            self._end(waiting, None, error)

    def answered(self, waiting: WaitingAcquire, told: ClientReply) -> None:
        """Called when the ledger has answered for a request; for mutants that remember it."""

    def _left(self, waiting: WaitingAcquire, told: ClientReply) -> None:
        waiting.asking = False
        if not waiting.open:
            self.clean_up(waiting)
            return
        waiting.wait.left(told.result)
        self._advance(waiting)

    def _look(self, waiting: WaitingAcquire, record: LockRecord | None) -> None:
        waiting.news, waiting.record = True, record
        if not waiting.asking and waiting.open:
            self._advance(waiting)

    def _advance(self, waiting: WaitingAcquire) -> None:
        try:
            self._go_on(waiting)
        except ActorGridError as error:
            self._end(waiting, None, error)

    def _go_on(self, waiting: WaitingAcquire) -> None:
        """Raises what the client is to be told instead of an answer."""
        node, wait = self.node, waiting.wait
        if waiting.news:
            waiting.news = False
            wait.changed(waiting.record, node.monotonic)
        step = wait.next(node.monotonic, node.now)
        if isinstance(step, GiveAnswer):
            self._end(waiting, step.answer, None)
        elif isinstance(step, CommitRequest):
            self._propose(waiting, step.command)
        elif isinstance(step, CommitLeave):
            waiting.asking = True
            self.write(step.command, partial(self._left, waiting))
        else:
            delay_us = max(MS, int((step.at_s - node.monotonic) * SECOND))
            node.later(delay_us, partial(self._due, waiting))

    def _due(self, waiting: WaitingAcquire) -> None:
        if self._waiting.get(waiting.connection) is waiting and waiting.open and not waiting.asking:
            self._advance(waiting)

    def _end(self, waiting: WaitingAcquire, answer: HoldAnswer | None, error: ActorGridError | None) -> None:
        del self._waiting[waiting.connection]
        self._tell(waiting.connection, answer, error)

    def clean_up(self, waiting: WaitingAcquire) -> None:
        """Clean up for a client that is gone, once the ledger has answered all that was asked for it."""
        del self._waiting[waiting.connection]
        command = waiting.wait.clean_up(self.node.now)
        if command is not None:
            self.write(command, lambda told: None)

    def _tell(self, connection: Connection, answer: HoldAnswer | None, error: ActorGridError | None) -> None:
        sender, number = connection
        self.node.world.network.send(self.node.name, sender, LockReply(number, answer, error))
