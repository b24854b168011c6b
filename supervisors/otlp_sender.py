"""What a process tells an OpenTelemetry collector, sent by a thread of its own: who does the work never waits for it.

What waits is bounded, what finds no room is dropped and counted, and so is a batch that the collector does not take
within ``EXPORT_S``. OpenTelemetry's SDK (extra ``otel``) loads in the thread. It is configured by variables of its own
(``OTEL_EXPORTER_OTLP_HEADERS`` and their like): with one that it refuses all is dropped, and the log says why.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

GATHER_S = 0.5
"""So long what comes together is waited for, so that a batch has more than one."""
EXPORT_S = 5
END_S = 1.0
"""So long the end of the process is held up, at most, for what waits; where the last was not taken, not at all."""
TELL_EVERY = 100
"""A warning for the first batch that is dropped, and for each hundredth after it."""
REASON_MAX = 300

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Exporter(Protocol[T_contra]):
    """Sends a batch."""

    def export(self, batch: Sequence[T_contra]) -> str:
        """Send *batch*; why it was not taken, or empty."""


class OtlpSender(Generic[T]):
    """A queue of at most *queue_max* items, which its thread sends *batch_max* at a time.

    *what*: how the items are called, in the log. *url*: where they go, for the log. *exporter* is called in the thread.
    *newest*: where there is no room, the oldest goes and not the one that comes.
    """

    def __init__(
        self,
        what: str,
        url: str,
        exporter: Callable[[], Exporter[T]],
        log: logging.Logger,
        *,
        queue_max: int,
        batch_max: int,
        newest: bool = False,
    ) -> None:
        self.sent_total = 0
        self.dropped_total = 0
        self.fault = ""
        """Why the last batch was not taken; empty: it was, or there was none."""
        self._what, self._url = what, url
        self._exporter = exporter
        self._log = log
        self._queue_max, self._batch_max, self._newest = queue_max, batch_max, newest
        self._queue: deque[T] = deque()
        self._lock = threading.Lock()
        """Of the queue and the counts: nobody has it for longer than it takes to move a batch."""
        self._there = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._failures = 0

    def put(self, item: T) -> None:
        """Have *item* sent, if there is room for it. Never waits, never raises."""
        with self._lock:
            if len(self._queue) >= self._queue_max:
                self.dropped_total += 1
                if not self._newest:
                    return
                self._queue.popleft()
            self._queue.append(item)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._what, daemon=True)
            self._thread.start()
        self._there.set()

    def close(self) -> None:
        """Send what waits, for at most ``END_S``; not where the collector did not take the last."""
        self._closing.set()
        self._there.set()
        if self._thread is not None and not self.fault:
            self._thread.join(END_S)

    # -- in the thread

    def _run(self) -> None:
        exporter, why = self._made()
        while True:
            self._there.wait()
            self._closing.wait(GATHER_S)
            self._there.clear()
            while batch := self._batch():
                self._sent(batch, why if exporter is None else _export(exporter, batch))
            if self._closing.is_set():
                return

    def _batch(self) -> list[T]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(self._batch_max, len(self._queue)))]

    def _made(self) -> tuple[Exporter[T] | None, str]:
        try:
            return self._exporter(), ""
        except ImportError as error:
            return None, f"{error}; pip install 'actorgrid[otel]' on this host"
        except Exception as error:  # noqa: BLE001 - of a variable that it takes: told, and all is dropped
            return None, f"{error}: look at the agent's OTEL_ variables"

    def _sent(self, batch: Sequence[T], why: str) -> None:
        self.fault = why[:REASON_MAX]
        with self._lock:
            if not why:
                self.sent_total += len(batch)
                return
            self.dropped_total += len(batch)
        if self._failures % TELL_EVERY == 0:
            self._log.warning("%d %s are dropped: %s: %s", len(batch), self._what, self._url, self.fault)
        self._failures += 1


def _export(exporter: Exporter[T], batch: Sequence[T]) -> str:
    try:
        return exporter.export(batch)
    except Exception as error:  # noqa: BLE001 - the thread goes on, whatever its library or a proxy comes up with
        return f"{type(error).__name__}: {error}"


def quiet_opentelemetry() -> None:
    """Have OpenTelemetry's own log be still: it says at length what is counted and told once, and shows headers."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


def resource_of(host: Any) -> dict[str, str]:
    """What all that a process of *host*, a HostContext, tells is about."""
    return {"service.name": "actorgrid", "host.id": host.host_id, "host.name": host.hostname}
