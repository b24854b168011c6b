"""How clients and hosts ask the cluster: one command per session at a time, again until it is answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from actorgrid.actors.ledger.command import Command
from actorgrid.errors import ActorGridError

from .clock import MS, SimulatedTimer
from .world import World

AGAIN_US = (150 * MS, 500 * MS)
SOON_US = (10 * MS, 60 * MS)
LANES_MAX = 64


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A write (``command``) or, without one, a read of the setting ``key``."""

    number: int
    session: str = ""
    seq: int = 0
    command: Command | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class ClientReply:
    """The answer to a request.

    ``retry`` says that nothing was done, ``leader`` whom to ask; else one of the rest is given.
    """

    number: int
    retry: bool = False
    leader: int = 0
    result: Any = None
    error: ActorGridError | None = None
    index: int = 0


Answer = Callable[[ClientReply], None]


@dataclass(slots=True)
class _Pending:
    ask: ClientRequest
    answer: Answer
    timer: SimulatedTimer | None = None


class Requester:
    """A client that asks: sends to the host it believes leads, and elsewhere when it hears nothing.

    A write keeps its (session, seq) however often it is sent; its session takes the next one only after the answer.
    At most 64 sessions at once.
    """

    def __init__(self, world: World, name: str, hosts: Callable[[], Sequence[int]], rng: Random) -> None:
        self._world = world
        self._rng = rng
        self.name = name
        self._hosts = hosts
        self._target = 0
        self._number = 0
        self._lanes = 0
        self._free: list[tuple[str, int]] = []
        self._pending: dict[int, _Pending] = {}
        world.network.attach(name, self._deliver)

    def write(self, command: Command, answer: Answer) -> tuple[str, int]:
        """Have *command* committed exactly once; returns its session and number."""
        if self._free:
            session, seq = self._free.pop()
        else:
            assert self._lanes < LANES_MAX, f"{self.name} has {LANES_MAX} commands under way"
            self._lanes += 1
            session, seq = f"{self.name}-{self._lanes}", 0
        seq += 1

        def answered(told: ClientReply) -> None:
            self._free.append((session, seq))
            answer(told)

        self._number += 1
        self._begin(ClientRequest(self._number, session, seq, command), answered)
        return session, seq

    def read(self, key: str, answer: Answer) -> None:
        """Read a setting, linearizably."""
        self._number += 1
        self._begin(ClientRequest(self._number, key=key), answer)

    def stop(self) -> None:
        """Ask nothing more and hear no more answers: whoever asked is gone."""
        for pending in self._pending.values():
            if pending.timer is not None:
                pending.timer.cancel()
        self._pending.clear()

    @property
    def idle(self) -> bool:
        """Whether all was answered."""
        return not self._pending

    def _begin(self, ask: ClientRequest, answer: Answer) -> None:
        self._pending[ask.number] = _Pending(ask, answer)
        self._send(ask.number)

    def _send(self, number: int) -> None:
        pending = self._pending.get(number)
        if pending is None:
            return
        hosts = self._hosts()
        if self._target not in hosts:
            self._target = hosts[self._rng.randrange(len(hosts))]
        self._world.network.send(self.name, f"n{self._target}", pending.ask)
        pending.timer = self._world.clock.after(self._rng.randrange(*AGAIN_US), lambda: self._elsewhere(number))

    def _elsewhere(self, number: int) -> None:
        self._target = 0
        self._send(number)

    def _deliver(self, _sender: str, told: ClientReply) -> None:
        pending = self._pending.get(told.number)
        if pending is None:
            return
        if pending.timer is not None:
            pending.timer.cancel()
        if told.retry:
            self._target = told.leader
            pending.timer = self._world.clock.after(self._rng.randrange(*SOON_US), lambda: self._send(told.number))
            return
        del self._pending[told.number]
        pending.answer(told)
