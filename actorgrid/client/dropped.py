"""What a client leaves behind that was dropped without ``close()``: its work comes to its end, then is let go.

A finalizer runs wherever the last reference goes, or the garbage collector comes by, also in a thread that holds a
lock. So it only puts a word into a queue; a thread of this file's does the rest.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable

from .forks import renew_in_children, this_process


class _Finisher:
    """Calls what is to be done after owners that are gone, each in a thread of its own: it may wait for long."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Begin anew in a forked child, which finishes nothing of its parent's."""
        self._lock = threading.Lock()
        self._dropped: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Be there for finalizers, which must not start threads."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="actorgrid-dropped", daemon=True)
                self._thread.start()

    def put(self, process: object, finish: Callable[[], None]) -> None:
        """Have *finish* called, if this is still the process that said so."""
        if process is this_process():
            self._dropped.put(finish)

    def _run(self) -> None:
        dropped = self._dropped
        while True:
            threading.Thread(target=dropped.get(), name="actorgrid-finish", daemon=True).start()


_finisher = _Finisher()
renew_in_children(_finisher)


def when_dropped(owner: object, finish: Callable[[], None]) -> None:
    """Call *finish*, which must not hold *owner*, when that was collected; not at the end of the program."""
    _finisher.start()
    weakref.finalize(owner, _finisher.put, this_process(), finish).atexit = False
