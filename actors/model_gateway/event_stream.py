"""A stream of server-sent events on its way through: passed on as it is, a whole event at a time. No I/O.

An event is held until it is whole, so that where a replica breaks off an error can follow, and what clients read until
then is valid. The usage is read from the events that tell it; the event that only does so is left out where the client
has not asked for it (some crash on it). An error in a form that clients do not see as one (``event: error`` with data
of another shape) is put into the form that they raise. The bytes of all others are those of the replica, line ends and
comments too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .refusals import as_openai_error, error_event, is_openai_error, is_servers_fault
from .token_usage import UsedTokens, read_usage

HELD_MAX = 256 * 1024
"""Of an event that is not whole: a longer one is passed on in parts."""
KEEP_ALIVE = b": keep-alive\n\n"
_BOUNDARY = re.compile(rb"\r?\n\r?\n")
_TOLD = re.compile(rb'"usage"\s*:\s*\{')
_FAILS = re.compile(rb'^event: ?(?:error|response\.failed)[ \r]*$|^error:|"error"\s*:\s*[^\sn]', re.MULTILINE)
"""An event with that name, or llama.cpp's older field, or data with an error that is not null."""


class EventRelay:
    """One stream. *leaves_out_usage*: whether the event with nothing but usage is for us alone. *has_named_events*:
    whether clients know events by their names, errors too (``/v1/responses``): then they stay as they are."""

    def __init__(self, leaves_out_usage: bool, has_named_events: bool = False) -> None:
        self._leaves_out_usage = leaves_out_usage
        self._has_named_events = has_named_events
        self._held = b""
        self.usage: UsedTokens | None = None
        self.events = 0
        """Events with data: about as many as tokens."""
        self.is_between = True
        """Whether what was passed on ends with a whole event."""
        self.has_failed = False
        """Whether the replica told an error that is its own, and not the request's."""

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
        if b"error" in whole and _FAILS.search(whole):
            whole = b"".join(map(self._in_form, _events_of(whole)))
        if b'"usage"' in whole and _TOLD.search(whole):
            return b"".join(each for each in _events_of(whole) if not self._is_left_out(each))
        return whole

    def end(self) -> bytes:
        """What is left when the replica has ended its answer in order."""
        held, self._held = self._held, b""
        return self._in_form(held)

    def broken_off(self, message: str, code: str) -> bytes:
        """What to pass on when the replica broke off: what is held is of no use, the error is."""
        self._held = b""
        return (b"" if self.is_between else b"\n\n") + error_event(message, code)

    def _in_form(self, event: bytes) -> bytes:
        """*event* as clients read it, if it tells an error."""
        if not _FAILS.search(event):
            return event
        text = _data_of(event)
        is_named = event.startswith((b"event:", b"error:")) or b"\nevent:" in event or b"\nerror:" in event
        plain = _json_of(text)
        if not is_named and not (isinstance(plain, dict) and plain.get("error")):
            return event  # the words are part of what the model says
        self.has_failed |= is_servers_fault(plain)
        if self._has_named_events or is_openai_error(plain):
            return event
        return b"data: " + as_openai_error(502, text) + b"\n\n"

    def _is_left_out(self, event: bytes) -> bool:
        return bool(_TOLD.search(event)) and self._is_usage_alone(event) and self._leaves_out_usage

    def _is_usage_alone(self, event: bytes) -> bool:
        """Read the usage that *event* tells; whether it does nothing else."""
        plain = _json_of(_data_of(event))
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


def _events_of(whole: bytes) -> Iterator[bytes]:
    """The events of *whole*, each with the line ends behind it."""
    at = 0
    while at < len(whole):
        found = _BOUNDARY.search(whole, at)
        end = found.end() if found else len(whole)
        yield whole[at:end]
        at = end


def _data_of(event: bytes) -> bytes:
    """The data of an event, or what llama.cpp once gave in its place."""
    lines = event.splitlines()
    data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    return b"\n".join(data or [line[6:].strip() for line in lines if line.startswith(b"error:")])


def _json_of(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _end_of_events(data: bytes) -> int:
    """Where the last whole event of *data* ends; 0: nowhere."""
    end = data.rfind(b"\n\n") + 2
    mixed = data.rfind(b"\n\r\n") + 3
    return max(end if end > 1 else 0, mixed if mixed > 2 else 0)
