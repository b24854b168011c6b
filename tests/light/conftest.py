"""Shards on a clock that is moved by hand, and processes that keep books."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from actorgrid.supervisors.process import GenServer, Shard


class HandClock:
    """Nanoseconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class StillShard(Shard):
    """A shard for which time passes by ``after`` alone."""

    def __init__(self, **more: Any) -> None:
        self.hand = HandClock()
        super().__init__(clock=self.hand, **more)

    def after(self, seconds: float) -> None:
        """Let time pass, as far as the next timer each time."""
        end = self.hand.now_ns + int(seconds * 1e9)
        self.run_until_idle()
        while 0 <= (due := self.core.due_in_ns()) <= end - self.hand.now_ns:
            self.hand.now_ns += due
            self.run_until_idle()
        self.hand.now_ns = end
        self.run_until_idle()


class Witness(GenServer):
    """Keeps what it is told; does what it is asked."""

    trapping = False

    def init(self, log: list[Any] | None = None, trapping: bool = False) -> None:
        self.log = [] if log is None else log
        self.trap_exit = trapping

    def handle_call(self, request: Any, caller: Any) -> Any:
        what, *arguments = request
        return getattr(self, what)(*arguments)

    def handle_cast(self, message: Any) -> None:
        what, *arguments = message
        getattr(self, what)(*arguments)

    def handle_info(self, message: Any) -> None:
        self.log.append(message)

    def crash(self, why: str = "boom") -> None:
        raise ValueError(why)

    def told(self) -> list[Any]:
        return list(self.log)


@pytest.fixture
def shard() -> Iterator[StillShard]:
    with StillShard() as made:
        yield made
