"""A bounded queue of messages that can also be taken from its middle, in plain Python.

Most mailboxes of a million are empty, and most of the others hold one message: so the kernel keeps the oldest by itself
and makes a ring for the others when there are some. A selective receive looks through the messages with ``peek`` and
takes one out with ``take``, which costs the number of those behind it. The bound is the caller's to choose: a full
mailbox refuses.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from actorgrid.errors import BadRequest

LIMIT_MAX = 1 << 30


class Mailbox:
    """Messages in the order in which they came, at most *limit* (1 to 2**30) of them."""

    def __init__(self, limit: int) -> None:
        if not 1 <= limit <= LIMIT_MAX:
            raise BadRequest("a limit out of range", asked=str(limit), hint=f"1 to {LIMIT_MAX}")
        self._limit = limit
        self._messages: deque[Any] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def push(self, message: Any) -> bool:
        """Put *message* behind the others; ``False``, and nothing is done, when the mailbox is full."""
        if len(self._messages) >= self._limit:
            return False
        self._messages.append(message)
        return True

    def pop(self) -> Any:
        """Take out the oldest message. Raises IndexError when there is none."""
        if not self._messages:
            raise IndexError("the mailbox is empty")
        return self._messages.popleft()

    def peek(self, place: int) -> Any:
        """The message at *place*, 0 for the oldest, which stays. Raises IndexError."""
        self._check(place)
        return self._messages[place]

    def take(self, place: int) -> Any:
        """Take out the message at *place*, 0 for the oldest; those behind it move up. Raises IndexError."""
        self._check(place)
        message = self._messages[place]
        del self._messages[place]
        return message

    def clear(self) -> None:
        """Drop all messages."""
        self._messages.clear()

    def _check(self, place: int) -> None:
        if not 0 <= place < len(self._messages):
            raise IndexError(f"no message at {place}")
