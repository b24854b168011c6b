"""Calls that failed for want of inputs which are being made again: unfinished until they are sent again, or end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from actorgrid.objects.space import Held
from actorgrid.transports.task_frames import FAILED

from .dependencies import TaskInput
from .lanes import TaskCall


class Renewals:
    """*lock* is the dispatcher's. With it held, *finished* counts calls as finished and *again* has one sent."""

    def __init__(
        self,
        lock: threading.Lock,
        new_key: Callable[[], int],
        finished: Callable[[int], None],
        again: Callable[[TaskCall], None],
    ) -> None:
        self._lock = lock
        self._new_key = new_key
        self._finished = finished
        self._again = again
        self.calls: set[TaskCall] = set()

    def keep(self, done: list[tuple[TaskCall, int, bytes, Any]]) -> int:
        """Keep calls of *done* that may have failed for want of inputs; gives how many. With the lock held."""
        lacking = [call for call, status, _, _ in done if status == FAILED and call.inputs and not call.cancelled]
        for call in lacking:
            call.done = False
        self.calls.update(lacking)
        return len(lacking)

    def is_renewed(self, call: TaskCall, body: bytes, renews: Callable[[TaskCall, bytes], bool]) -> bool:
        """Whether a call is to be sent again, as *renews* takes care of what it lacked; else it has ended."""
        if call not in self.calls:
            return False
        if renews(call, body):
            return True
        with self._lock:
            if call in self.calls:  # else it was cancelled meanwhile
                self.calls.discard(call)
                self._finished(1)
                call.done = True
        return False

    def renew_input(self, used: TaskInput, body: bytes, held: tuple[Held, ...]) -> None:
        """Give an input of calls another value than the one that was lost."""
        with self._lock:
            used.body, used.held = body, held
            used.key = self._new_key()  # workers know the one before by another

    def send_again(self, call: TaskCall) -> None:
        """Send a call whose inputs are there again."""
        with self._lock:
            if call in self.calls:  # else it was cancelled meanwhile
                self.calls.discard(call)
                self._again(call)

    def give_up(self, call: TaskCall, error: BaseException) -> None:
        """End a call whose inputs cannot be made again."""
        with self._lock:
            if call not in self.calls:
                return
            self.calls.discard(call)
            self._finished(1)
            call.done = True
        call.future.set_exception(error)
