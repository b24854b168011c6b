"""How many items of a stream its client has granted, and waiting until it grants more."""

from __future__ import annotations

import os
import select
import socket


class ItemGrants:
    """The grants for the one stream that a worker runs at a time.

    The main thread gives items; grants arrive there or with the thread that listens while a task runs, so each of the
    two counts is written by one side, and the other is woken.
    """

    def __init__(self) -> None:
        self._task_id = 0
        self._granted = 0
        self._given = 0
        self._wake_fd = -1

    def begin(self, task_id: int, window: int) -> None:
        """Begin the stream of a task, whose first *window* items are granted."""
        if self._wake_fd < 0:
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._task_id, self._granted, self._given = task_id, window, 0

    def grant(self, task_id: int, count: int) -> None:
        """Note a grant; with the lock held under which the client is read."""
        if task_id == self._task_id:
            self._granted += count
            self.wake()

    def wake(self) -> None:
        """Let who waits look again."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def give(self) -> int:
        """Note that an item was given. Gives how many that makes."""
        self._given += 1
        return self._given

    @property
    def is_used_up(self) -> bool:
        """Whether no more may be given now."""
        return self._given >= self._granted

    def wait(self, *others: socket.socket) -> set[int]:
        """Wait for a wake, or for something to read on *others*; the descriptors on which there is."""
        poll = select.poll()
        for fd in (self._wake_fd, *(one.fileno() for one in others)):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll()}
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
            ready.discard(self._wake_fd)
        return ready
