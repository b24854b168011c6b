"""RecallWatch: the thread of a worker that listens to the client while a long task has the main thread.

A worker runs one task after another, and reads its client's socket in between. When a task runs far longer than its
client expected, those sent behind it would wait for it, though other workers have nothing to do: the client asks for
them back, and somebody has to answer meanwhile. What is taken out of the queue has not begun and never will here,
because one ``pop`` of a deque gives a task to one of the two threads alone.

The thread sleeps while the worker has nothing to do, looks every ``LOOK_S`` while it has, and listens once it has seen
one task twice: short tasks, however many, cost a hundred looks a second. A task that holds the GIL keeps it out.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable

LOOK_S = 0.01
IDLE_LOOKS = 20
"""After so many looks without a task the thread sleeps until the next one: it costs an idle worker nothing."""

Listen = Callable[[], bool]
"""Takes what the client says and answers; ``False``: there is nothing more to listen to until the main thread has."""


class RecallWatch:
    """The thread, and what the main thread tells it. *socket_now*: the client's descriptor; *flush*, *listen*: act."""

    def __init__(self, socket_now: Callable[[], int], flush: Callable[[], None], listen: Listen) -> None:
        self._socket_now = socket_now
        self._flush = flush
        self._listen = listen
        # Plain attributes, each written by one thread: the other acts on them only after it has written its own, so
        # that at least one of the two sees the other's.
        self._busy = False
        self._task = 0
        self._asleep = False
        self._listening = False
        self._thread: threading.Thread | None = None
        self._wake_fd = -1

    # -- for the main thread

    def begins(self) -> None:
        """Note that there are tasks to run."""
        self._busy = True
        if self._thread is None:
            self._start()
        elif self._asleep:
            os.eventfd_write(self._wake_fd, 1)

    def next_task(self) -> None:
        """Note that the task before is over and another begins."""
        self._task += 1
        if self._listening:
            os.eventfd_write(self._wake_fd, 1)

    def ends(self) -> bool:
        """Note that there is nothing to run: the main thread listens itself. Whether the thread may just be acting."""
        self._busy = False
        if self._listening:
            os.eventfd_write(self._wake_fd, 1)
            return True
        return False

    @property
    def is_busy(self) -> bool:
        """Whether the main thread has tasks to run."""
        return self._busy

    def forget(self) -> None:
        """Forget the thread, in a process that was forked by a task: it has none."""
        self._thread, self._busy, self._listening, self._asleep = None, False, False, False

    def _start(self) -> None:
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        thread = threading.Thread(target=self._run, name="actorgrid-recalls", daemon=True)
        # Signals are the main thread's: one that came here would not interrupt what a task waits in.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        except RuntimeError:
            return  # no room for a thread: nothing is answered while a task runs, as before there was one
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._thread = thread

    # -- the thread

    def _run(self) -> None:
        idle = 0
        while True:
            if not self._busy:
                idle += 1
                if idle > IDLE_LOOKS:
                    self._asleep = True
                    if not self._busy:
                        self._wait(None)
                    self._asleep = False
                    idle = 0
                else:
                    self._wait(LOOK_S)
                continue
            idle = 0
            task = self._task
            self._wait(LOOK_S)
            if self._busy and self._task == task:
                self._listen_during(task)

    def _listen_during(self, task: int) -> None:
        self._listening = True
        try:
            if self._busy and self._task == task:
                self._flush()  # results of those before, which nobody would send before this one ends
            listens = True
            while self._busy and self._task == task:
                if self._wait(None, self._socket_now() if listens else -1):
                    listens = self._listen()
        finally:
            self._listening = False

    def _wait(self, timeout_s: float | None, fd: int = -1) -> bool:
        """Wait to be woken, or for *fd*; whether it was that."""
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        if fd >= 0:
            poll.register(fd, select.POLLIN)
        ready = {found for found, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        return fd in ready
