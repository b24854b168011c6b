"""Spans of what a process did, sent to an OpenTelemetry collector (OTLP over HTTP) by a thread of their own.

There is one only where ``monitoring.otlp_endpoint`` names a collector; elsewhere nothing of this is loaded, and what
would tell of a span is one comparison with ``None``. OpenTelemetry's SDK (extra ``otel``) loads in the thread.

At most ``QUEUE_MAX`` spans wait. What comes while so many do is dropped and counted, and so is a batch that the
collector does not take within ``EXPORT_S``: whoever does the work never waits for who watches it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actorgrid.trace_context import TraceContext

QUEUE_MAX = 4096
BATCH_MAX = 512
GATHER_S = 0.5
"""So long what comes together is waited for, so that a batch has more than one."""
EXPORT_S = 5
END_S = 2.0
TELL_EVERY = 100
"""A warning for the first span that is dropped, and for each hundredth batch after it."""
Attribute = str | int | float | bool


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """A span that is over. *parent*: the span that it is part of; empty: none. Times in seconds since the epoch."""

    name: str
    place: TraceContext
    parent: str
    began: float
    ended: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    error: str = ""
    """Why what it tells of failed; empty: it did not."""


class SpanSender:
    """Of one process. *resource*: attributes of all of its spans."""

    def __init__(self, endpoint: str, resource: Mapping[str, str], log: logging.Logger) -> None:
        self.sent_total = 0
        self.dropped_total = 0
        self._endpoint = endpoint.rstrip("/") + "/v1/traces"
        self._resource = dict(resource)
        self._log = log
        self._queue: deque[SpanFacts] = deque()
        self._there = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._failures = 0

    def send(self, span: SpanFacts) -> None:
        """Have *span* sent, if its trace is sampled and there is room for it. Never waits, never raises."""
        if not span.place.sampled:
            return
        if len(self._queue) >= QUEUE_MAX:
            self.dropped_total += 1
            return
        self._queue.append(span)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
            self._thread.start()
        self._there.set()

    def close(self) -> None:
        """Send what waits, for at most ``END_S``."""
        self._closing.set()
        self._there.set()
        if self._thread is not None:
            self._thread.join(END_S)

    def figures(self) -> dict[str, float]:
        """The figures for ``/metrics``."""
        return {"spans_sent_total": float(self.sent_total), "spans_dropped_total": float(self.dropped_total)}

    # -- in the thread

    def _run(self) -> None:
        try:
            exporter = _Exporter(self._endpoint, self._resource)
        except ImportError as error:
            self._log.warning("no spans are sent: %s; pip install 'actorgrid[otel]' on this host", error)
            exporter = None
        while True:
            self._there.wait()
            self._closing.wait(GATHER_S)
            self._there.clear()
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
                self._export(exporter, batch)
            if self._closing.is_set():
                return

    def _export(self, exporter: _Exporter | None, batch: list[SpanFacts]) -> None:
        why = "OpenTelemetry is not installed" if exporter is None else exporter.export(batch)
        if not why:
            self.sent_total += len(batch)
            return
        self.dropped_total += len(batch)
        if self._failures % TELL_EVERY == 0:
            self._log.warning("%d spans are dropped: %s: %s", len(batch), self._endpoint, why)
        self._failures += 1


class _Exporter:
    """OpenTelemetry's exporter, and our spans in its words. Raises ImportError where it is not installed."""

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        # It says itself, and at length, what we count and tell once.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S)
        self._resource = Resource.create(dict(resource))

    def export(self, batch: list[SpanFacts]) -> str:
        """Send *batch*; why it was not taken, or empty."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export([self._span(each) for each in batch])
        except (OSError, ValueError) as error:
            return str(error)
        return "" if result is SpanExportResult.SUCCESS else "it does not answer, or refuses them"

    def _span(self, facts: SpanFacts) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(span_id: str, *, remote: bool) -> SpanContext:
            ids = int(facts.place.trace_id, 16), int(span_id, 16)
            return SpanContext(*ids, is_remote=remote, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        return ReadableSpan(
            facts.name,
            context(facts.place.span_id, remote=False),
            context(facts.parent, remote=True) if facts.parent else None,
            self._resource,
            attributes=dict(facts.attributes),
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, facts.error[:1000]) if facts.error else Status(StatusCode.OK),
            start_time=_nanoseconds(facts.began),
            end_time=_nanoseconds(max(facts.began, facts.ended)),
            instrumentation_scope=InstrumentationScope("actorgrid"),
        )


def _nanoseconds(at: float) -> int:
    """A time of day, which a float has to the microsecond and no further."""
    return round(at * 1e6) * 1000


def sender_for(host: Any) -> SpanSender | None:
    """The sender of a server of *host*, a HostContext; ``None`` where no collector is set."""
    endpoint: str = host.settings.monitoring.otlp_endpoint
    if not endpoint:
        return None
    resource = {"service.name": "actorgrid", "host.id": host.host_id, "host.name": host.hostname}
    return SpanSender(endpoint, resource, logging.getLogger("actorgrid.spans"))
