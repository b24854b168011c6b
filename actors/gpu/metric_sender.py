"""Sends the readings of this host's devices to an OpenTelemetry collector, as metrics of OTLP over HTTP.

Only where ``monitoring.otlp_metrics_endpoint`` names one. One sample waits at most: a newer one takes its place, and
the other is dropped and counted, as one that the collector does not take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actorgrid.supervisors.otlp_sender import EXPORT_S, OtlpSender, quiet_opentelemetry, resource_of
from actorgrid.supervisors.server import Server

from .device import Device
from .device_listing import DeviceNow
from .hardware_metrics import HardwareMetrics, Instrument, MetricPoint

LATE_S = 0.5
"""A sample is due so much before its time: the readings come in steps of their own."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """All points of one moment, in seconds since the epoch."""

    at_s: float
    points: tuple[MetricPoint, ...]


class MetricSender(OtlpSender[MetricSample]):
    """Of one process. *resource*: attributes of all of its points."""

    def __init__(self, endpoint: str, resource: Mapping[str, str], log: logging.Logger) -> None:
        url = endpoint.rstrip("/") + "/v1/metrics"
        super().__init__(
            "samples of GPUs", url, lambda: _MetricExporter(url, resource), log, queue_max=1, batch_max=1, newest=True
        )


class GpuMetricsFeed:
    """Takes what *server*'s devices read, every ``monitoring.otlp_metrics_interval_s``, and has it sent."""

    def __init__(self, server: Server, now: Callable[[], Iterable[tuple[Device, DeviceNow]]]) -> None:
        settings = server.host.settings.monitoring
        self._server = server
        self._now = now
        self._metrics = HardwareMetrics()
        self._due_at = 0.0
        endpoint: str = settings.otlp_metrics_endpoint
        log = logging.getLogger("actorgrid.gpu_metrics")
        self.sender = MetricSender(endpoint, resource_of(server.host), log) if endpoint else None

    def take(self, at_s: float) -> None:
        """Have a sample sent where one is due; *at_s*: now, since the epoch."""
        now = self._server.runtime.monotonic()
        if self.sender is None or now < self._due_at:
            return
        self._due_at = now + self._server.host.settings.monitoring.otlp_metrics_interval_s - LATE_S
        points = tuple(self._metrics.points(self._now(), at_s))
        if points:
            self.sender.put(MetricSample(at_s, points))

    def close(self) -> None:
        """Send what waits."""
        if self.sender is not None:
            self.sender.close()

    def figures(self) -> dict[str, float]:
        """The figures for ``/metrics``."""
        if self.sender is None:
            return {}
        return {
            "gpu_metric_samples_sent_total": float(self.sender.sent_total),
            "gpu_metric_samples_dropped_total": float(self.sender.dropped_total),
        }

    @property
    def note(self) -> str:
        """What a person should know of it; empty: nothing."""
        fault = "" if self.sender is None else self.sender.fault
        return f"metrics of GPUs do not reach the collector: {fault}" if fault else ""


class _MetricExporter:
    """OpenTelemetry's exporter, and our points in its words. Raises ImportError where it is not installed."""

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import Resource

        quiet_opentelemetry()
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=EXPORT_S)
        self._resource = Resource.create(dict(resource))

    def export(self, batch: Sequence[MetricSample]) -> str:
        """Send *batch*; why it was not taken, or empty."""
        from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        for sample in batch:
            scope = ScopeMetrics(InstrumentationScope("actorgrid"), _metrics_of(sample), "")
            data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
            if self._exporter.export(data) is not MetricExportResult.SUCCESS:
                return "it does not answer, or refuses them"
        return ""


def _metrics_of(sample: MetricSample) -> list[Any]:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

    by_name: dict[str, list[MetricPoint]] = {}
    for point in sample.points:
        by_name.setdefault(point.name, []).append(point)
    at = _nanoseconds(sample.at_s)
    made = []
    for name, points in by_name.items():
        kind = points[0].kind
        told = [
            NumberDataPoint(dict(point.attributes), _nanoseconds(point.since_s or sample.at_s), at, point.value)
            for point in points
        ]
        data: Gauge | Sum = Gauge(told)
        if kind is not Instrument.GAUGE:
            data = Sum(told, AggregationTemporality.CUMULATIVE, kind is Instrument.COUNTER)
        made.append(Metric(name, "", points[0].unit, data))
    return made


def _nanoseconds(at_s: float) -> int:
    return round(at_s * 1e6) * 1000
