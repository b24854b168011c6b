"""A collector on loopback: takes OTLP over HTTP, reads the protobuf, and keeps spans and points of metrics."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WAIT_S = 60.0


@dataclass(frozen=True)
class ReceivedSpan:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    failed: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass(frozen=True)
class ReceivedPoint:
    name: str
    unit: str
    kind: str
    """gauge, or sum of which kind."""
    value: float
    since_ns: int
    at_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


class OtlpReceiver:
    """``url`` is the endpoint; ``wait_for`` gives the spans once they are there."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[ReceivedSpan] = []
        self.points: list[ReceivedPoint] = []
        self.requests = 0
        self._came = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                outer._take(self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def _take(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            points = list(_points(ExportMetricsServiceRequest.FromString(body)))
            with self._came:
                self.requests += 1
                self.points += points
                self._came.notify_all()
            return
        request = ExportTraceServiceRequest.FromString(body)
        with self._came:
            self.requests += 1
            assert path == "/v1/traces"
            for of_resource in request.resource_spans:
                resource = _plain(of_resource.resource.attributes)
                for of_scope in of_resource.scope_spans:
                    self.spans += (_read(span, resource) for span in of_scope.spans)
            self._came.notify_all()

    def wait_for(self, *names: str) -> dict[str, ReceivedSpan]:
        """The spans of these names, by name, once all are there."""
        with self._came:
            there = self._came.wait_for(lambda: {span.name for span in self.spans} >= set(names), WAIT_S)
        assert there, f"only {sorted(span.name for span in self.spans)} came"
        return {span.name: span for span in self.spans}

    def wait_for_points(self, name: str) -> list[ReceivedPoint]:
        """The points of that name, once there are some."""
        with self._came:
            assert self._came.wait_for(lambda: any(point.name == name for point in self.points), WAIT_S), name
            return [point for point in self.points if point.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in attributes}


def _read(span: Any, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
        _plain(span.attributes),
        resource,
    )


def _points(request: Any) -> Iterator[ReceivedPoint]:
    for of_resource in request.resource_metrics:
        resource = _plain(of_resource.resource.attributes)
        for metric in (metric for scope in of_resource.scope_metrics for metric in scope.metrics):
            kind = str(metric.WhichOneof("data"))
            data = getattr(metric, kind)
            if kind == "sum":
                kind = "counter" if data.is_monotonic else "updowncounter"
            for point in data.data_points:
                value = float(getattr(point, str(point.WhichOneof("value"))))
                times = point.start_time_unix_nano, point.time_unix_nano
                yield ReceivedPoint(metric.name, metric.unit, kind, value, *times, _plain(point.attributes), resource)
