"""What has arrived of a stream, between the thread that reads workers and whoever takes it."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from actorgrid import task_context
from actorgrid.errors import BadRequest
from actorgrid.objects.space import Held
from actorgrid.transports.task_frames import MAX_TEXT_CHARS, MAX_WINDOW, TaskAbout

if TYPE_CHECKING:
    from .options import TaskOptions


def about(options: TaskOptions, stream: StreamItems | None) -> TaskAbout:
    """What a call can ask about itself, and whether it is a stream."""
    window = 0 if stream is None else stream.window
    return TaskAbout(str(options.name or "")[:MAX_TEXT_CHARS], 0, task_context.own_id(), window)


class StreamItems:
    """What has arrived of a stream and was not taken: pickled values, at most *window* of them."""

    def __init__(self, window: int) -> None:
        if not 1 <= window <= MAX_WINDOW:
            raise BadRequest(f"a window is from 1 to {MAX_WINDOW} values", asked=f"window={window}")
        self.window = window
        self.received = 0
        self._waiting: deque[tuple[bytes, tuple[Held, ...]]] = deque()
        self._ended = False
        self._changed = threading.Condition()

    def put(self, body: bytes, held: tuple[Held, ...] = ()) -> None:
        """Add a value that arrived, with what it needs of the object store."""
        with self._changed:
            self.received += 1
            if not self._ended:
                self._waiting.append((body, held))
                self._changed.notify()

    def end(self, forget: bool = False) -> None:
        """Note that no more will come; *forget*: what is here is not wanted either."""
        with self._changed:
            self._ended = True
            if forget:
                self._waiting.clear()
            self._changed.notify_all()

    def take(self) -> tuple[bytes, tuple[Held, ...]] | None:
        """The next value, once it is here, with what it needs; ``None`` at the end."""
        with self._changed:
            while not self._waiting and not self._ended:
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None

    @property
    def is_ready(self) -> bool:
        """Whether ``take`` has not to wait."""
        return self._ended or bool(self._waiting)
