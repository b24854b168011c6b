"""Holders of locks whose connections break while they ask, wait and renew; they ask again under the same owner.

What a client does here is what the library's ``LockHold`` does: it numbers its requests, counts its lease from before
it asked, renews after a wait, and stops believing by its own clock. Some clients do not number their requests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from actorgrid.actors.gateway.lock_wait import WaitTerms
from actorgrid.actors.ledger.answers import HoldAnswer
from actorgrid.chaos.simulator.clock import MS, SECOND, SimulatedTimer
from actorgrid.chaos.simulator.cluster import Cluster
from actorgrid.chaos.simulator.lock_service import LockCall, LockReply
from actorgrid.errors import ActorGridError, LockLost

from .workload import Workload, WorkloadClient

NAMES = ("guarded1", "guarded2", "guarded_pair")
DRIFT = 0.01
PATIENCE_US = 1_200 * MS
ASKS_MAX = 8


class HoldersClient(WorkloadClient):
    """A client with one owner after the other: it asks until told, holds for a while, and gives back or goes silent."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self._cluster = cluster
        self._end = f"{name}/locks"
        self._numbered = self.rng.random() < 0.8
        self._owners = self._connection = self._asked = 0
        self._host = 0
        self._verb = ""  # what is asked on the connection that is open
        self._terms = WaitTerms("", "", 0.0)
        self._token: tuple[int, ...] | None = None
        self._sent_us = self._until_us = 0
        self._ends_us: int | None = None
        self._patience: SimulatedTimer | None = None
        self._busy = False
        self.world.network.attach(self._end, self._told)

    @property
    def idle(self) -> bool:
        """Whether the client neither asks nor holds."""
        return self.stopped and not self._busy

    def next_call(self) -> None:
        """Begin with a new owner, for one of three locks."""
        self._owners += 1
        self._busy, self._asked, self._token = True, 0, None
        name = NAMES[self.rng.randrange(len(NAMES))]
        stay = self.rng.random() < 0.3
        self._terms = WaitTerms(
            name,
            f"{self.name}.{self._owners}",
            self.rng.choice((0.6, 1.5, 4.0)),
            slots=2 if name == "guarded_pair" else 1,
            wait_s=self.rng.choice((0.0, 0.3, 0.3 if stay else 1.0)),
            stay=stay,
        )
        self._acquire()

    # -- asking

    def _acquire(self) -> None:
        if self._asked >= ASKS_MAX or (self.stopped and self._asked):
            self._over()
            return
        self._asked += 1
        self._terms = replace(self._terms, number=self._asked if self._numbered else 0)
        self._send("acquire")

    def _send(self, verb: Any) -> None:
        """Send on a new connection, which may break at any moment."""
        self._connection += 1
        hosts = self._cluster.ids()
        if self._host not in hosts or self.rng.random() < 0.3:
            self._host = hosts[self.rng.randrange(len(hosts))]
        self._verb, self._sent_us = verb, self.world.now_us
        ask = LockCall(self._connection, "acquire" if verb == "again" else verb, self._terms, self._token)
        self.world.network.send(self._end, f"n{self._host}", ask)
        breaks = self.rng.random() < 0.4 and not self.stopped
        after_us = self.rng.randrange(1, 400 if self.rng.random() < 0.5 else 15) * MS if breaks else PATIENCE_US
        self._patience = self.world.clock.after(after_us, self._cut)

    def _cut(self) -> None:
        """Break the connection: the client knows now, its host a little later."""
        node, number, noticed_us = self._cluster.nodes[self._host], self._connection, self.rng.randrange(150 * MS)
        if self.rng.random() < 0.2:
            noticed_us += self.rng.randrange(2 * SECOND)
        if node.up:
            node.later(noticed_us, lambda: node.lock_service.hung_up(self._end, number))
        verb, self._verb = self._verb, ""
        if verb == "acquire":
            self.world.clock.after(self.rng.randrange(1, 60) * MS, self._acquire)
        elif verb == "renew" and self._ends_us is None:  # of what it was told after a wait
            self.world.clock.after(MS, self._acquire)
        else:
            self.world.clock.after(self.rng.randrange(1, 60) * MS, self._renew)

    def _told(self, _sender: str, told: LockReply) -> None:
        if told.number != self._connection or not self._verb:
            return
        if self._patience is not None:
            self._patience.cancel()
        verb, self._verb = self._verb, ""
        if verb == "acquire":
            self._acquired(told.answer, told.error)
        else:
            self._renewed(told.answer, told.error)

    def _acquired(self, answer: HoldAnswer | None, error: ActorGridError | None) -> None:
        if answer is None:
            if isinstance(error, LockLost):
                self._acquire()
            else:
                self._over()
        elif not answer["held"]:
            self._acquire()
        else:
            assert answer["token"] is not None, "who holds a lock has its token"
            self._token, self._ends_us = tuple(answer["token"]), None
            if self.world.now_us - self._sent_us > self._terms.ttl_s * SECOND / 10:
                self._send("renew")  # the lease began when it was granted, which may be any time since the question
            else:
                self._hold()

    def _renewed(self, answer: HoldAnswer | None, error: ActorGridError | None) -> None:
        if answer is not None:
            self._hold()
        elif self._ends_us is None and isinstance(error, LockLost):
            self._acquire()
        elif self._ends_us is None:
            self._over()
        # Else its own clock ends it, if the checker has not.

    # -- holding

    def _hold(self) -> None:
        """Hold the lock, for its time to live after the question that was answered now."""
        token = self._token
        assert token is not None, "what is held has a token"
        if self._ends_us is None:
            self._ends_us = self.world.now_us + self.rng.randrange(50, 2_500) * MS
        elif self.world.now_us >= self._until_us:
            return  # confirmed too late
        until_us = self._sent_us + int(self._terms.ttl_s * SECOND * (1 - DRIFT))
        if until_us <= self.world.now_us:
            self._let_go()
            return
        self._until_us = until_us
        name, owner = self._terms.name, self._terms.owner
        self.world.tell(lambda checker: checker.believes(name, owner, token, self._terms.slots))
        self.world.clock.after(until_us - self.world.now_us, lambda: self._look_at_the_clock(owner))
        self.world.clock.after(int(self._terms.ttl_s * SECOND / 3), lambda: self._renew(owner))

    def _renew(self, owner: str = "") -> None:
        if self._ends_us is None or self._verb or (owner and owner != self._terms.owner):
            return
        if self.world.now_us >= self._ends_us or self.stopped:
            self._give_back()
        elif self.world.now_us < self._until_us and self.rng.random() < 0.97:  # else it is gone without a word
            self._renew_somehow()

    def _renew_somehow(self) -> None:
        """Renew, or ask again under the same owner, which is a renewal too."""
        if self.rng.random() < 0.7:
            self._send("renew")
            return
        self._asked += 1
        self._terms = replace(self._terms, number=self._asked if self._numbered else 0)
        self._send("again")

    def _look_at_the_clock(self, owner: str) -> None:
        if owner == self._terms.owner and self._ends_us is not None and self.world.now_us >= self._until_us:
            self._let_go()

    def _give_back(self) -> None:
        self._let_go()
        release = LockCall(self._connection + 1, "release", self._terms, self._token)
        self._connection += 1
        self.world.network.send(self._end, f"n{self._host}", release)

    def _let_go(self) -> None:
        name, owner = self._terms.name, self._terms.owner
        self.world.tell(lambda checker: checker.disbelieves(name, owner))
        self._over()

    def _over(self) -> None:
        if self._verb and self._patience is not None:
            self._patience.cancel()
        self._verb, self._ends_us, self._busy = "", None, False
        self._think(self.thinking_us())


class LockHoldersWorkload(Workload):
    """Clients that share two locks and a semaphore of two slots."""

    client_class = HoldersClient
