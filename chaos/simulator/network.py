"""A network that loses, doubles, delays and reorders what it carries, and parts as it is told."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from .clock import MS, Clock

IN_FLIGHT_MAX = 20_000
Deliver = Callable[[str, Any], None]


class Network:
    """Carries messages between named ends, in no promised order; what it drops nobody is told of.

    An end's name is its host's, or begins with it and a stroke (n1/agent); cuts are between hosts, and nothing happens
    to what stays within one.
    Delays are drawn from *delay_us*; one message in a hundred takes up to ten times as long, so that later ones
    overtake it. ``loss`` and ``doubling`` are the shares of messages lost and delivered twice, ``slow`` multiplies
    delays. At most 20,000 messages are under way: what comes on top is lost.
    """

    def __init__(self, clock: Clock, rng: Random, delay_us: tuple[int, int] = (MS // 2, 3 * MS)) -> None:
        self._clock = clock
        self._rng = rng
        self._delay_us = delay_us
        self._ends: dict[str, Deliver] = {}
        self._host: dict[str, str] = {}
        self._cut: dict[tuple[str, str], int] = {}
        self._in_flight = 0
        self.loss = 0.0
        self.doubling = 0.0
        self.slow = 1.0
        self.carried = 0
        self.lost = 0

    def attach(self, name: str, deliver: Deliver) -> None:
        """Have what is sent to *name* handed to *deliver*, with the sender's name. Senders are attached, too."""
        self._ends[name] = deliver
        self._host[name] = name.partition("/")[0]

    def cut(self, sender: str, receiver: str) -> None:
        """Let nothing pass from *sender* to *receiver*; cuts add up and are healed one by one."""
        self._cut[sender, receiver] = self._cut.get((sender, receiver), 0) + 1

    def mend(self, sender: str, receiver: str) -> None:
        """Take one cut back."""
        left = self._cut.get((sender, receiver), 0) - 1
        if left > 0:
            self._cut[sender, receiver] = left
        else:
            self._cut.pop((sender, receiver), None)

    def calm(self) -> None:
        """No faults from here on; what is under way arrives."""
        self._cut.clear()
        self.loss, self.doubling, self.slow = 0.0, 0.0, 1.0

    def passes(self, sender: str, receiver: str) -> bool:
        """Whether no cut is in the way."""
        if not self._cut:
            return True
        a, b = self._host[sender], self._host.get(receiver, receiver)
        return a == b or (a, b) not in self._cut

    def send(self, sender: str, receiver: str, message: Any) -> None:
        """Carry *message*, perhaps. A cut stops it on either end: as it leaves, and as it would arrive."""
        copies = 1
        if self._host[sender] != self._host.get(receiver):
            if not self.passes(sender, receiver) or (self.loss and self._rng.random() < self.loss):
                copies = 0
            elif self.doubling and self._rng.random() < self.doubling:
                copies = 2
        if not copies or self._in_flight >= IN_FLIGHT_MAX:
            self.lost += 1
            return
        for _ in range(copies):
            self._in_flight += 1
            self._clock.after(self._delay(), lambda: self._arrive(sender, receiver, message))

    def _delay(self) -> int:
        delay_us = self._rng.randrange(*self._delay_us)
        if self._rng.random() < 0.01:
            delay_us *= self._rng.randrange(2, 11)
        return int(delay_us * self.slow)

    def _arrive(self, sender: str, receiver: str, message: Any) -> None:
        self._in_flight -= 1
        if not self.passes(sender, receiver):
            self.lost += 1
            return
        self.carried += 1
        deliver = self._ends.get(receiver)
        if deliver is not None:
            deliver(sender, message)
