"""The body of a request that comes in chunks (RFC 9112, 7.1), taken by the letter: no extensions, no trailers.

Both are allowed by the standard and used by nobody who asks a model; what two servers read differently is a way past
one of them. No I/O.
"""

from __future__ import annotations

import re

from .refusals import RequestRefused

_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}\r\n")
_LINE_MAX = 10


class ChunkedBody:
    """Takes pieces of the stream and gives the body, of *most* bytes at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = -1  # bytes of the chunk that are to come, with the line end behind it; -1: a size is to come
        self._is_last = False
        self.body = bytearray()

    def feed(self, held: bytearray) -> bool:
        """Take what there is from the front of *held*; whether the body is complete. Raises RequestRefused."""
        while True:
            if self._left < 0:
                found = _SIZE.match(held)
                if found is None:
                    if len(held) >= _LINE_MAX or (b"\n" in held):
                        raise RequestRefused(400, "a chunk's size is a hexadecimal number alone", "chunk", closes=True)
                    return False
                size = int(found.group()[:-2], 16)
                if len(self.body) + size > self._most:
                    raise too_large(self._most)
                del held[: found.end()]
                self._left = size + 2
                self._is_last = size == 0
            if self._left > 2:
                part = held[: self._left - 2]
                self.body += part
                del held[: len(part)]
                self._left -= len(part)
                if self._left > 2:
                    return False
            if len(held) < 2:
                return False
            if held[:2] != b"\r\n":
                what = "trailers are not taken" if self._is_last else "a chunk is longer than its size says"
                raise RequestRefused(400, what, "chunk", closes=True)
            del held[:2]
            self._left = -1
            if self._is_last:
                return True


def too_large(most: int) -> RequestRefused:
    """The refusal of a body over *most* bytes."""
    return RequestRefused(413, f"the body of a request has at most {most} bytes", "body_too_large", closes=True)
