"""Who is started again, and when it is enough: the decisions of an OTP supervisor, without its processes.

Events go in (``child_exited``, ``started``, ``start_failed``), instructions come out, to be carried out in order.
A strategy is a function from the children in start order and the one that ended to the group that shares
its fate, in start order; ``one_for_one`` is here.

Intensity is OTP's: more than ``intensity`` restarts within ``period_s`` end in :class:`GiveUp`. Beyond OTP, a
start that failed is tried again after a pause that doubles (0.1 s to 2 s), so that what is only slow to become
free (a port, a lock) does not use up the intensity in an instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .child import ChildSpec, check_children

RETRY_S_FIRST = 0.1
RETRY_S_MAX = 2.0

Strategy = Callable[[Sequence[str], str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the child (again) after ``delay_s``."""

    id: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a child that shares the fate of the one that ended; its Restart follows. Not given by one_for_one."""

    id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The child ended and stays down, as its spec says."""

    id: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop everything: ``id`` ended once more than the intensity allows."""

    id: str
    restarts: int
    period_s: float


Instruction = Restart | Stop | Forget | GiveUp


def one_for_one(_order: Sequence[str], ended: str) -> Sequence[str]:
    """Only the child that ended."""
    return (ended,)


class RestartPolicy:
    """The children of one supervisor and the restarts it had."""

    def __init__(
        self,
        children: Sequence[ChildSpec],
        intensity: int = 10,
        period_s: float = 30.0,
        strategy: Strategy = one_for_one,
    ) -> None:
        self._specs = {spec.id: spec for spec in check_children(children)}
        self._order = tuple(self._specs)
        self._strategy = strategy
        self.intensity = intensity
        self.period_s = period_s
        self.gave_up = False
        self._restarts_at: deque[float] = deque(maxlen=intensity + 1)
        self._failures = dict.fromkeys(self._order, 0)
        self._counts = dict.fromkeys(self._order, 0)

    def restarts(self, child_id: str) -> int:
        """How often the child was started again."""
        return self._counts[child_id]

    def started(self, child_id: str, _now_s: float) -> list[Instruction]:
        """The child is up."""
        self._failures[child_id] = 0
        return []

    def child_exited(self, child_id: str, normal: bool, now_s: float) -> list[Instruction]:
        """The child was up and ended; *normal* when it left in order."""
        if not self._specs[child_id].wants_restart(normal):
            return [Forget(child_id)]
        return self._again(child_id, 0.0, now_s)

    def start_failed(self, child_id: str, now_s: float) -> list[Instruction]:
        """A restart did not come up. (A failed first start is not an event: it fails the supervisor's own start.)"""
        failures = self._failures[child_id] = self._failures[child_id] + 1
        if not self._specs[child_id].wants_restart(normal=False):
            return [Forget(child_id)]
        return self._again(child_id, min(RETRY_S_MAX, RETRY_S_FIRST * 2.0 ** min(failures - 1, 16)), now_s)

    def _again(self, child_id: str, delay_s: float, now_s: float) -> list[Instruction]:
        if self.gave_up:
            return []
        self._restarts_at.append(now_s)
        while self._restarts_at and self._restarts_at[0] < now_s - self.period_s:
            self._restarts_at.popleft()
        if len(self._restarts_at) > self.intensity:
            self.gave_up = True
            return [GiveUp(child_id, len(self._restarts_at) - 1, self.period_s)]
        group = self._strategy(self._order, child_id)
        instructions: list[Instruction] = [Stop(other) for other in reversed(group) if other != child_id]
        for member in group:
            self._counts[member] += 1
            instructions.append(Restart(member, delay_s))
        return instructions
