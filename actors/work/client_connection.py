"""A worker's side of a client's connection: functions it was sent, tasks that wait, answers that go back."""

from __future__ import annotations

import contextlib
import pickle  # nosec B403 - only after the client's secret was checked
import socket
from collections import deque
from typing import Any

from actorgrid.errors import ActorGridError, TransportError, UnknownKey
from actorgrid.objects.space import ObjectSpace
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.task_frames import MAX_FUNCTIONS, TaskFrame, TaughtFunction

from .input_values import InputValues

MAX_WAITING = 10_000  # tasks read ahead; more stay in the socket, and so with the client
MAX_WAITING_BYTES = 64 * 2**20
MAX_CANCELLED = 2 * MAX_WAITING


class ClientConnection:
    """One client's connection: the functions it has sent, and what it waits for."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.decoder = FrameDecoder()
        self.welcome = False
        self.kept = False  # its socket is one end of a pair: what it says comes over a network (kept_connections.py)
        self.functions: dict[bytes, tuple[bytes, Any]] = {}
        self.waiting: deque[TaskFrame] = deque()
        self.read_bytes = 0  # of tasks that were read and not given back: written by who reads, under its lock
        self.taken_bytes = 0  # of tasks taken to be run: written by the main thread
        self.inputs = InputValues()
        self.space: ObjectSpace | None = None  # where its large values are kept
        self.cancelled: set[int] = set()  # ids of tasks whose values are not wanted; some may have ended
        self.replies: deque[bytes] = deque()
        self.replies_bytes = 0
        self.unsent = bytearray()  # the rest of what was sent in part while a task ran
        self.failure: ActorGridError | TransportError | None = None  # what it said while a task ran was no protocol

    def has_capacity(self) -> bool:
        """Whether more may be read ahead."""
        return len(self.waiting) < MAX_WAITING and self.read_bytes - self.taken_bytes < MAX_WAITING_BYTES

    def queue(self, task: TaskFrame) -> None:
        """Let a task wait that was read."""
        self.inputs.queued(task)
        self.read_bytes += self._size_bytes(task)
        self.waiting.append(task)

    def next(self) -> TaskFrame:
        """Take the next task out of the queue, to run it. Raises IndexError when there is none."""
        task = self.waiting.popleft()
        self.taken_bytes += self._size_bytes(task)
        return task

    def _size_bytes(self, task: TaskFrame) -> int:
        return len(task.args) + self.inputs.sent_bytes(task) if task.inputs else len(task.args)

    def learn(self, function: TaughtFunction) -> None:
        """Keep a function for later tasks; the one that was used longest ago gives way to it."""
        self.functions.pop(function.fn_id, None)
        self.functions[function.fn_id] = (function.code, None)
        while len(self.functions) > MAX_FUNCTIONS:
            oldest, *_ = list(self.functions)  # a copy: the other thread may look a function up in between
            self.functions.pop(oldest, None)

    def function(self, fn_id: bytes) -> Any:
        """The function of that id, unpickled at its first use. Raises UnknownKey, and what unpickling raises."""
        known = self.functions.pop(fn_id, None)
        if known is None:
            raise UnknownKey(
                "the worker does not hold that function", hint="send it again, then the task", fn_id=fn_id.hex()
            )
        code, function = known
        if function is None:
            self.functions[fn_id] = known
            function = pickle.loads(code)  # nosec B301 - from the authenticated owner of this worker
            del self.functions[fn_id]
        self.functions[fn_id] = (code, function)  # last used is last in order
        return function

    def give_back(self) -> list[int]:
        """Take all tasks out of the queue that nobody has begun: each ``pop`` is ours alone. Gives their ids."""
        given: list[int] = []
        with contextlib.suppress(IndexError):
            while True:
                task = self.waiting.pop()
                self.read_bytes -= self._size_bytes(task)
                self.inputs.given_back(task)
                self.cancelled.discard(task.task_id)
                given.append(task.task_id)
        return given

    def cancel(self, task_id: int) -> None:
        """Note that the value of a task is not wanted any more, whether it waits or runs."""
        if len(self.cancelled) >= MAX_CANCELLED:
            self.cancelled &= {task.task_id for task in list(self.waiting)}  # the others have ended
        self.cancelled.add(task_id)

    def reply(self, frame: bytes) -> None:
        """Queue a frame for the client."""
        self.replies.append(frame)
        self.replies_bytes += len(frame)

    def drain_replies(self) -> bytes:
        """All that is queued, taken out; what another thread puts in meanwhile stays."""
        replies = self.replies
        if len(replies) == 1:
            return replies.popleft()
        return b"".join([replies.popleft() for _ in range(len(replies))])
