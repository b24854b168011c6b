"""When what is sent, and when it is given up: a line for each target. Decisions only.

A target that does not answer holds its own line back and no other: its next try waits twice as long as the one before,
from a second to five minutes, less a random part of up to half, so that targets that failed together are not tried
together (Brooker, "Exponential Backoff And Jitter", 2015). What could not be sent goes to the end of its line, so that
one message that a receiver cannot take does not keep the others from it.

Bounds: ``waiting_max`` messages; beyond that ``put`` refuses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from .outgoing import OutgoingMessage

FIRST_S, LONGEST_S = 1.0, 300.0
ASKED_MAX_S = 3_600.0
"""A receiver may ask for a pause; of at most so long."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message for one target."""

    delivery_id: str
    target: str
    message: OutgoingMessage


@dataclass(frozen=True, slots=True)
class SendResult:
    """What a try came to. *reason*: why it did not arrive; empty: it has. *final*: it will not, however often it is
    tried; *wait_s*: how long the receiver asked to be left alone."""

    reason: str = ""
    final: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SettledDelivery:
    """A message that is over with, after so many tries. *failure* is empty where it was sent."""

    delivery: Delivery
    failure: str
    tries: int


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """How far a message is: tries until now, what the last one came to, and when the next is due."""

    tries: int
    last_failure: str
    next_at: float | None


@dataclass(slots=True)
class _Tried:
    """A message in line."""

    delivery: Delivery
    tries: int = 0
    last_failure: str = ""


@dataclass(slots=True)
class _Line:
    """What waits for one target; *failures* in a row since something arrived."""

    waiting: OrderedDict[str, _Tried]
    not_before: float = 0.0
    failures: int = 0
    busy: str = ""


class Deliveries:
    """The lines. Times are seconds since the epoch; *random* gives numbers from 0 to 1."""

    def __init__(self, random: Callable[[], float], waiting_max: int) -> None:
        self._random = random
        self._waiting_max = waiting_max
        self._lines: dict[str, _Line] = {}
        self._target_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._target_of)

    def ids(self) -> list[str]:
        """What is in line."""
        return list(self._target_of)

    def waiting(self) -> list[Delivery]:
        """What is in line, line by line."""
        return [each.delivery for line in self._lines.values() for each in line.waiting.values()]

    def put(self, delivery: Delivery) -> bool:
        """Take a message in; what is there already stays as it is. Gives whether there was room."""
        if delivery.delivery_id in self._target_of:
            return True
        if len(self._target_of) >= self._waiting_max:
            return False
        line = self._lines.get(delivery.target)
        if line is None:
            line = self._lines[delivery.target] = _Line(OrderedDict())
        line.waiting[delivery.delivery_id] = _Tried(delivery)
        self._target_of[delivery.delivery_id] = delivery.target
        return True

    def drop(self, delivery_id: str) -> None:
        """Forget a message, whatever becomes of a try that is under way."""
        target = self._target_of.pop(delivery_id, None)
        if target is not None:
            line = self._lines[target]
            del line.waiting[delivery_id]
            if not line.waiting and not line.busy:
                del self._lines[target]

    def due(self, now: float, most: int) -> list[Delivery]:
        """Up to *most* messages to send now, one of each line; the line waits until ``done`` is told of it.

        Lines whose last try failed come after the others, and the one tried last of all: however many targets do not
        answer, those that do are not kept waiting by them.
        """
        ready: list[tuple[str, _Line]] = []
        for target, line in self._lines.items() if most else ():
            # The clock may have been set back: no pause is longer than that.
            line.not_before = min(line.not_before, now + ASKED_MAX_S)
            if not line.busy and line.waiting and line.not_before <= now:
                ready.append((target, line))
        ready.sort(key=lambda each: each[1].failures > 0)  # it keeps their order else
        found: list[Delivery] = []
        for target, line in ready[:most]:
            self._lines[target] = self._lines.pop(target)
            first = next(iter(line.waiting.values()))
            line.busy = first.delivery.delivery_id
            found.append(first.delivery)
        return found

    def done(self, delivery: Delivery, result: SendResult, now: float, give_up_s: float) -> list[SettledDelivery]:
        """Note what a try came to; gives the messages that are over with.

        A message is given up when its next try would be later than *give_up_s* after what it tells of; with the one
        that was tried, all others of its line that are so old.
        """
        line = self._lines[delivery.target]
        line.busy = ""
        tried = line.waiting.get(delivery.delivery_id)
        if tried is None:  # it was dropped meanwhile
            if not line.waiting:
                del self._lines[delivery.target]
            return []
        tried.tries += 1
        if not result.reason or result.final:
            # That it was refused is an answer, too: the target is there.
            line.failures, line.not_before = 0, 0.0
            self.drop(delivery.delivery_id)
            return [SettledDelivery(delivery, result.reason, tried.tries)]
        line.failures += 1
        longest = min(LONGEST_S, FIRST_S * 2.0 ** min(line.failures - 1, 30))
        pause_s = max(longest * (1.0 - self._random() / 2), min(result.wait_s, ASKED_MAX_S))
        line.not_before = now + pause_s
        tried.last_failure = result.reason
        line.waiting.move_to_end(delivery.delivery_id)
        old = [each for each in line.waiting.values() if line.not_before > each.delivery.message.at + give_up_s]
        for each in old:
            self.drop(each.delivery.delivery_id)
        return [SettledDelivery(each.delivery, each.last_failure or result.reason, each.tries) for each in old]

    def next_at(self) -> float | None:
        """When the next message is due, of lines that are not busy; ``None``: never."""
        return min((line.not_before for line in self._lines.values() if line.waiting and not line.busy), default=None)

    def state_of(self, delivery_id: str) -> DeliveryState | None:
        """How far a message is; ``None``: it is not here."""
        target = self._target_of.get(delivery_id)
        if target is None:
            return None
        line = self._lines[target]
        tried = line.waiting[delivery_id]
        return DeliveryState(tried.tries, tried.last_failure, line.not_before or None)
