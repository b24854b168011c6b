"""What every part of a run shares: the clock, the network, the trace and the checkers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import Any

from actorgrid.actors.raft.messages import Entry, Message
from actorgrid.chaos.checkers.checker import Checker, Host, Voters

from .clock import MS, SECOND, Clock
from .network import Network
from .rng import stream
from .trace import RunTrace

LEADERS_ONLY = frozenset({"append", "heartbeat", "snapshot"})
EPOCH_S = 1_700_000_000.0
"""The wall clock at the start of every run."""


@dataclass(frozen=True)
class Timing:
    """How a cluster is tuned, the same on all its hosts. Small limits make rare paths common.

    ``drift``: by so much the clocks that leases are counted on may be fast or slow. ``in_bytes``: messages between
    cores travel as the codec's bytes, at some cost; else as they are. ``cut_us``: every so often each host's last GPU
    is cut into instances, or put together, whatever runs on it; 0: never.
    """

    tick_us: int = 50 * MS
    election_ticks: int = 10
    heartbeat_ticks: int = 2
    snapshot_every: int = 60
    log_kept: int = 20
    message_entries_max: int = 16
    message_bytes_max: int = 8_192
    inflight_messages_max: int = 8
    snapshot_chunk_bytes: int = 4_096
    learners_a_tick: int = 64
    in_bytes: bool = False
    drift: float = 0.0
    cut_us: int = 0


@dataclass
class World:
    """One run's surroundings. ``fingerprint`` covers all that was applied and sent: equal runs have equal ones."""

    seed: int
    timing: Timing = field(default_factory=Timing)
    checkers: Sequence[Checker] = ()
    keep_trace: bool = False

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.trace = RunTrace(self.clock, self.keep_trace)
        self.network = Network(self.clock, self.rng("network"))
        self.hosts: dict[int, Host] = {}
        self.faults_strike = True
        self.hostile = ""
        """The name of the member that is not to be trusted; empty: there is none."""
        self.on_leader: Callable[[int], None] = lambda id: None
        self.on_vote: Callable[[int], None] = lambda id: None
        self.on_commit: Callable[[int], None] = lambda id: None
        self.on_lease: Callable[[int], None] = lambda id: None
        self.on_loss: Callable[[int], None] = lambda id: None
        self._print = blake2b(digest_size=8)
        self._led: set[tuple[int, int]] = set()

    def rng(self, name: str) -> Random:
        """The random generator called *name*, of the run's seed."""
        return stream(self.seed, name)

    @property
    def now_us(self) -> int:
        """Virtual time, in microseconds."""
        return self.clock.now_us

    def wall(self, skew_us: int = 0) -> float:
        """What a wall clock shows that is *skew_us* off, in seconds since 1970."""
        return EPOCH_S + (self.clock.now_us + skew_us) / SECOND

    def tell(self, event: Callable[[Checker], Any]) -> None:
        """Tell every checker."""
        for checker in self.checkers:
            event(checker)

    def leads(self, host: Host, term: int) -> None:
        """*host* acts as the leader of *term*; checkers are told the first time."""
        if (host.id, term) not in self._led:
            self._led.add((host.id, term))
            self.tell(lambda checker: checker.leads(host, term))
            self.on_leader(host.id)

    def commits(self, host: Host, entry: Entry, configurations: tuple[Voters, ...]) -> None:
        """A leader found *entry* committed, under one of these configurations."""
        self.tell(lambda checker: checker.commits(host, entry, configurations, self.hosts))
        self.on_commit(host.id)

    def sent(self, host: Host, message: Message) -> None:
        """Tell the checkers what *host* claims by a message that it hands to the network."""
        if message.kind in LEADERS_ONLY:
            self.leads(host, message.term)
        elif message.kind == "vote_reply" and not message.reject:
            self.tell(lambda checker: checker.votes(host, message.term, message.to))
            self.on_vote(host.id)
        self.note(b"%d>%d %d %d %d" % (message.sender, message.to, message.term, message.index, message.commit))

    def note(self, what: bytes) -> None:
        """Make something part of the run's fingerprint."""
        self._print.update(what)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all that was noted, with its virtual time."""
        return f"{self._print.hexdigest()}-{self.clock.now_us}"
