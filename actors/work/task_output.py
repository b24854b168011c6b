"""What a session task prints: to the worker's own file, and in frames to the client."""

from __future__ import annotations

import io
from time import monotonic
from typing import Any, Protocol

FLUSH_AFTER_S = 0.001
OUTPUT_HELD_BYTES = 32 * 1024


class OutputSink(Protocol):
    """Who takes it to the client: the worker."""

    last_flush: float
    """When replies were last sent, by the monotonic clock."""

    def add_output(self, stream: str, data: bytes) -> None:
        """Queue an output frame."""

    def flush_replies(self) -> None:
        """Send what is queued."""


class TaskOutput(io.TextIOBase):
    """``sys.stdout``/``sys.stderr`` of session tasks: to the worker's own file, and to the client in chunks."""

    def __init__(self, to: OutputSink, name: str, inner: Any) -> None:
        self._to = to
        self._name = name
        self._inner = inner
        self._held: list[str] = []
        self._held_chars = 0
        self.encoding_name = "utf-8"

    def write(self, text: str) -> int:
        """Keep a copy for the client; written through at a line's end."""
        self._inner.write(text)
        self._held.append(text)
        self._held_chars += len(text)
        if self._held_chars > OUTPUT_HELD_BYTES or (
            "\n" in text and monotonic() - self._to.last_flush > 10 * FLUSH_AFTER_S
        ):
            self.flush()
            self._to.flush_replies()
        return len(text)

    def flush(self) -> None:
        """Queue what is held as one output frame."""
        self._inner.flush()
        if self._held:
            text, self._held, self._held_chars = "".join(self._held), [], 0
            self._to.add_output(self._name, text.encode("utf-8", "replace"))

    def writable(self) -> bool:
        """Always."""
        return True

    def isatty(self) -> bool:
        """Never."""
        return False

    def fileno(self) -> int:
        """The worker's own file."""
        return int(self._inner.fileno())

    @property
    def buffer(self) -> Any:
        """Of the worker's own file: what is written there is not shown to the client."""
        return self._inner.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of texts that are written."""
        return self.encoding_name
