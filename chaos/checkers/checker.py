"""What a checker is told, and how it says that something happened which may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.raft.messages import ConfState, Entry
from actorgrid.errors import SafetyViolated

from ..simulator.disk import Image

Voters = tuple[frozenset[int], ...]
"""A configuration: one set of voters, or two while it is joint. A majority of each decides."""


class Host(Protocol):
    """A simulated host as checkers see it, from outside: also what the host itself could not know."""

    @property
    def id(self) -> int:
        """The host's node number in Raft."""

    @property
    def durable(self) -> Image:
        """The durable content of the host's disk."""

    @property
    def trusted(self) -> bool:
        """Whether its disk has kept all that it said it did: a flipped bit is the disk's fault, not the code's."""

    def holds(self, index: int, term: int) -> bool:
        """Whether it has written that entry, be it synced or not."""

    def runs(self, attempt_id: str) -> bool:
        """Whether a process of that attempt runs there and can answer."""


@dataclass(frozen=True, slots=True)
class AttemptProcess:
    """An attempt's process on a host, as the host sees it: on devices ``gpus``, a share ``gpu_milli`` of each.

    ``cpu_milli`` is what it has of the host's CPUs, of which there are ``host_cpu_milli``.
    """

    host: str
    attempt_id: str
    job_id: str
    token: tuple[int, int]
    gpus: tuple[int, ...]
    gpu_milli: int
    cpu_milli: int = 0
    host_cpu_milli: int = 0


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A client's call and its answer. ``kind`` is "write" (``command``) or "read" (of a setting)."""

    client: str
    kind: str
    key: str
    session: str
    seq: int
    command: Command | None
    called_us: int


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request that a model gateway has at a replica of a service: on which host the gateway is, and whom it asks."""

    gateway: str
    service: str
    job_id: str
    attempt_id: str


class Checker:
    """Base of checkers: told what happens, in order; raises SafetyViolated through ``fail``. Override what matters."""

    def leads(self, host: Host, term: int) -> None:
        """*host* says that it leads in *term*."""

    def votes(self, host: Host, term: int, candidate: int) -> None:
        """A vote of *host* for *candidate* leaves it."""

    def written(self, host: Host, entries: tuple[Entry, ...]) -> None:
        """*host* writes entries to its log."""

    def commits(self, host: Host, entry: Entry, configurations: tuple[Voters, ...], hosts: Mapping[int, Host]) -> None:
        """A leader says that *entry* and all before it are committed, under one of its latest *configurations*."""

    def changes_members(self, host: Host, before: ConfState, entry: Entry) -> None:
        """*host* is about to apply a change of the members to those there are."""

    def applied(self, host: Host, entry: Entry, outcome: Outcome, state: Any) -> None:
        """*host* applied an entry; *state* is its ledger after it."""

    def restored(self, host: Host, index: int, state: Any) -> None:
        """*host* took its state from a snapshot or from its disk."""

    def called(self, call: ClientCall) -> None:
        """A client begins a call."""

    def answered(self, call: ClientCall, answer: Any, index: int, now_us: int) -> None:
        """A client has its answer; *index* is where the write stands, or the state the read saw."""

    def believes(self, lock: str, owner: str, token: tuple[int, ...], slots: int) -> None:
        """A client holds a lock of so many slots, as far as it was told, and its lease is not over."""

    def disbelieves(self, lock: str, owner: str) -> None:
        """A client gives a lock back, or its own clock says that its lease is over."""

    def started(self, process: AttemptProcess, now_us: int) -> None:
        """A host starts an attempt's process."""

    def killed(self, process: AttemptProcess) -> None:
        """A process is being killed: it does nothing any more, and holds what it has until it is gone."""

    def ended(self, process: AttemptProcess, now_us: int) -> None:
        """A process is gone."""

    def suspended(self, host: str) -> None:
        """*host* stands still: nothing that runs there does anything."""

    def resumed(self, host: str) -> None:
        """*host* goes on, after its shims have looked at the clock."""

    def replica_asked(self, request: ServedRequest) -> None:
        """A gateway begins a request at a replica."""

    def replica_let_go(self, request: ServedRequest) -> None:
        """Such a request is over, however it ended."""

    def demand_told(self, service: str, heard_at: float, asked_at: float) -> None:
        """Whoever leads has heard, at *heard_at*, that a service was last asked for at *asked_at*, in seconds since the
        epoch."""

    def finish(self, states: Mapping[int, Any], now_us: int) -> None:
        """The run is over and the cluster has recovered; *states* are the voters' ledgers."""

    def fail(self, message: str, asked: str = "", found: str = "") -> NoReturn:
        """Raises SafetyViolated in this checker's name."""
        raise SafetyViolated(message, asked=asked, found=found, checker=type(self).__name__)
