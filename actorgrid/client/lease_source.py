"""What a dispatcher asks of whoever has the leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from actorgrid.errors import ActorGridError, WorkerLost
from actorgrid.objects.space import Held

from .futures import TaskFuture
from .lanes import Lane, TaskCall


class LeaseSource(Protocol):
    """The source of leased workers. No method blocks."""

    def want(self, lane: Lane, first: bool) -> None:
        """Ask for a worker; ends in ``Dispatcher.add`` or ``Dispatcher.no_lease``."""

    def want_on_loan(self, lane: Lane, cpus: float) -> None:
        """Ask for a worker on *cpus* that we hold; ends in ``Dispatcher.add`` or ``Dispatcher.no_loan``."""

    def give_back(self, lease_id: str) -> None:
        """Give a worker back that is not used any more, or must die."""

    def take_gifts(self, gifts: Iterable[Any], future: TaskFuture[Any] | None = None) -> tuple[Held, ...]:
        """Take what is kept in the object store for values that came: for that of *future*."""

    def renews(self, call: TaskCall, body: bytes) -> bool:
        """Take care of a call that failed as inputs of it were lost which can be made again; ``False`` for others."""

    def tell_loss(self, lease_id: str, error: WorkerLost, settle: Callable[[ActorGridError], None]) -> None:
        """Have *settle* called with *error*, once it says how the worker ended; soon, whether that is known or not."""

    def judge_loss(self, lease_id: str, settle: Callable[[ActorGridError | None], None]) -> None:
        """Have *settle* called soon: with TaskCancelled where somebody ended the lease, so that its task is not tried
        again; else with ``None``."""
