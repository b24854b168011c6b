"""Spans of what a process did, sent to an OpenTelemetry collector (OTLP over HTTP).

There is a sender only where ``monitoring.otlp_endpoint`` names a collector; elsewhere nothing of this is loaded, and
what would tell of a span is one comparison with ``None``. At most ``QUEUE_MAX`` spans wait (``otlp_sender``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actorgrid.trace_context import TraceContext

from .otlp_sender import EXPORT_S, OtlpSender, quiet_opentelemetry, resource_of

QUEUE_MAX = 4096
BATCH_MAX = 512
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


class SpanSender(OtlpSender[SpanFacts]):
    """Of one process. *resource*: attributes of all of its spans."""

    def __init__(self, endpoint: str, resource: Mapping[str, str], log: logging.Logger) -> None:
        url = endpoint.rstrip("/") + "/v1/traces"
        super().__init__(
            "spans", url, lambda: _SpanExporter(url, resource), log, queue_max=QUEUE_MAX, batch_max=BATCH_MAX
        )

    def send(self, span: SpanFacts) -> None:
        """Have *span* sent, if its trace is sampled and there is room for it. Never waits, never raises."""
        if span.place.sampled:
            self.put(span)

    def figures(self) -> dict[str, float]:
        """The figures for ``/metrics``."""
        return {"spans_sent_total": float(self.sent_total), "spans_dropped_total": float(self.dropped_total)}


class _SpanExporter:
    """OpenTelemetry's exporter, and our spans in its words. Raises ImportError where it is not installed."""

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        quiet_opentelemetry()
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S)
        self._resource = Resource.create(dict(resource))

    def export(self, batch: Sequence[SpanFacts]) -> str:
        """Send *batch*; why it was not taken, or empty."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        result = self._exporter.export([self._span(each) for each in batch])
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
    return SpanSender(endpoint, resource_of(host), logging.getLogger("actorgrid.spans"))
