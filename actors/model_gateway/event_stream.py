"""A stream of server-sent events on its way through: passed on as it is, a whole event at a time. No I/O.

An event is held until it is whole, so that where a replica breaks off an error can follow, and what clients read until
then is valid. The usage is read from the events that tell it; the event that only does so is left out where the client
has not asked for it (some crash on it). The bytes of all others are those of the replica, line ends and comments too.
"""

from __future__ import annotations

import json
import re

from .refusals import error_event
from .token_usage import UsedTokens, read_usage

HELD_MAX = 256 * 1024
"""Of an event that is not whole: a longer one is passed on in parts."""
KEEP_ALIVE = b": keep-alive\n\n"
_BOUNDARY = re.compile(rb"\r?\n\r?\n")
_TOLD = re.compile(rb'"usage"\s*:\s*\{')


class EventRelay:
    """One stream. *leaves_out_usage*: whether the event with nothing but usage is for us alone."""

    def __init__(self, leaves_out_usage: bool) -> None:
        self._leaves_out_usage = leaves_out_usage
        self._held = b""
        self.usage: UsedTokens | None = None
        self.events = 0
        """Events with data: about as many as tokens."""
        self.is_between = True
        """Whether what was passed on ends with a whole event."""

    def feed(self, data: bytes) -> bytes:
        """What to pass on, now that *data* has come."""
        if self._held:
            data = self._held + data
        end = _end_of_events(data)
        if end == 0:
            if len(data) > HELD_MAX:
                self._held = b""
                self.is_between = False
                return data
            self._held = data
            return b""
        self._held = data[end:]
        whole = data[:end] if self._held else data
        if len(self._held) > HELD_MAX:
            whole, self._held = data, b""
            self.is_between = False
        else:
            self.is_between = True
        self.events += whole.count(b"data:")
        if b'"usage"' in whole and _TOLD.search(whole):
            return self._read(whole)
        return whole

    def end(self) -> bytes:
        """What is left when the replica has ended its answer in order."""
        held, self._held = self._held, b""
        return held

    def broken_off(self, message: str, code: str) -> bytes:
        """What to pass on when the replica broke off: what is held is of no use, the error is."""
        self._held = b""
        return (b"" if self.is_between else b"\n\n") + error_event(message, code)

    def _read(self, whole: bytes) -> bytes:
        passed: list[bytes] = []
        at = 0
        while at < len(whole):
            found = _BOUNDARY.search(whole, at)
            end = found.end() if found else len(whole)
            event = whole[at:end]
            if not (_TOLD.search(event) and self._is_usage_alone(event) and self._leaves_out_usage):
                passed.append(event)
            at = end
        return b"".join(passed)

    def _is_usage_alone(self, event: bytes) -> bool:
        """Read the usage that *event* tells; whether it does nothing else."""
        text = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError):
            return False
        if not isinstance(plain, dict):
            return False
        told = plain.get("usage")
        if told is None and isinstance(plain.get("response"), dict):
            told = plain["response"].get("usage")
        usage = read_usage(told)
        if usage is None:
            return False
        self.usage = usage
        return plain.get("choices") == []


def _end_of_events(data: bytes) -> int:
    """Where the last whole event of *data* ends; 0: nowhere."""
    end = data.rfind(b"\n\n") + 2
    mixed = data.rfind(b"\n\r\n") + 3
    return max(end if end > 1 else 0, mixed if mixed > 2 else 0)
