"""The condition of a future that costs little as long as nobody waits for it: clients hold a hundred thousand.

``threading.Condition`` makes a deque (624 bytes) and five bound methods for each, most of what a waiting task takes.
Most futures are asked for their value when that is there, or by callbacks, and then nobody has ever waited on them.
"""

from __future__ import annotations

from collections import deque
from threading import Condition, RLock
from typing import Any

_NOBODY: deque[Any] = deque(maxlen=0)
"""The waiters of all that nobody waits for; nothing can be put into it."""


class LeanCondition(Condition):
    """A condition with a reentrant lock of its own."""

    def __init__(self) -> None:
        # Not that of Condition, whose attributes are these methods of its lock, made for each instance.
        self._lock: Any = RLock()
        self._waiters: deque[Any] = _NOBODY

    def acquire(self, *arguments: Any, **words: Any) -> bool:
        """As of the lock."""
        return bool(self._lock.acquire(*arguments, **words))

    def release(self) -> None:
        """As of the lock."""
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """As of every condition."""
        if self._waiters is _NOBODY and self._is_owned():
            self._waiters = deque()
        return super().wait(timeout)

    def _release_save(self) -> Any:
        return self._lock._release_save()

    def _acquire_restore(self, state: Any) -> None:
        self._lock._acquire_restore(state)

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())
