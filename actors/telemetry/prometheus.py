"""Figures in the Prometheus text format: a host's reading, and the HTTP door's own counts.

NVIDIA devices with real readings also get the names, units and labels of DCGM, so that dashboards made for it work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from ..gpu.device_health import HealthState
from .collect import HostReading
from .gpu_names import dcgm, open_telemetry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")
_GPU_LABELS = ("gpu", "uuid", "vendor", "model", "host", "source")
HEALTH_STATES = tuple(state.value for state in HealthState)


class HttpFigures:
    """Requests and their latency by route, never by raw path. Used from one thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "actorgrid_http_requests",
            "HTTP requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "actorgrid_http_request_seconds",
            "Time to answer; streams and requests that waited on purpose are left out.",
            ("route",),
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._open = Gauge("actorgrid_http_connections", "Open HTTP connections.", registry=self.registry)
        self._refused = Counter(
            "actorgrid_http_refused_tokens", "Requests without the right token.", registry=self.registry
        )
        self._refused_before = 0
        self._counters: dict[tuple[str, str, int], Any] = {}
        self._timers: dict[str, Any] = {}

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count one answer; *seconds* is None when its length says nothing about us."""
        key = (method, route, status)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._requests.labels(method, route, str(status))
        counter.inc()
        if seconds is not None:
            timer = self._timers.get(route)
            if timer is None:
                timer = self._timers[route] = self._seconds.labels(route)
            timer.observe(seconds)

    def note(self, connections: int, refused_total: int) -> None:
        """Take figures that others count."""
        self._open.set(connections)
        self._refused.inc(refused_total - self._refused_before)
        self._refused_before = refused_total


class HostCollector(Collector):
    """Turns a reading into metric families."""

    def __init__(self, reading: HostReading, hostname: str) -> None:
        self._reading = reading
        self._hostname = hostname

    def collect(self) -> Iterator[Metric]:
        """All families, each name once: what is read here goes before a server's own figure of that name."""
        ours = [
            *self._host(),
            *self._processes(),
            *self._jobs(),
            *self._gpus(),
            *self._health(),
            *dcgm(self._reading.gpus, self._hostname),
        ]
        ours += open_telemetry(self._reading.gpus)
        yield from ours
        taken = {family.name for family in ours}
        for family in self._own_figures():
            if family.name not in taken:
                yield family

    def _own_figures(self) -> list[Metric]:
        families: dict[str, Metric] = {}
        for server, figures in self._reading.servers.items():
            for name, value in (figures or {}).items():
                self._own_figure(families, server, name, value)
        return list(families.values())

    def _host(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("actorgrid_up", "Whether the server answered in time.", labels=["server"])
        for server, figures in self._reading.servers.items():
            up.add_metric([server], 0 if figures is None else 1)
        yield up
        if self._reading.ready is not None:
            yield GaugeMetricFamily("actorgrid_ready", "Whether work is accepted.", value=float(self._reading.ready))
        restarts = CounterMetricFamily("actorgrid_server_restarts", "Restarts seen of a server.", labels=["server"])
        for server, count in self._reading.restarts.items():
            restarts.add_metric([server], count)
        yield restarts

    def _own_figure(self, families: dict[str, Metric], server: str, name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return  # not a figure; None is a reading that does not exist
        counts = name.endswith("_total")
        full = "actorgrid_" + _NOT_A_NAME.sub("_", name.removesuffix("_total"))
        kind = CounterMetricFamily if counts else GaugeMetricFamily
        family = families.get(full)
        if family is None:
            family = families[full] = kind(full, f"{name} as the server counts it.", labels=["server"])
        if isinstance(family, kind):  # two servers that disagree on what a name is: the first one is shown
            family.add_metric([server], value)

    def _processes(self) -> Iterator[Metric]:
        rss = GaugeMetricFamily(
            "actorgrid_process_resident_memory_bytes", "Memory in RAM, shared pages counted whole.", labels=["server"]
        )
        pss = GaugeMetricFamily(
            "actorgrid_process_proportional_memory_bytes", "Memory, shared pages divided.", labels=["server"]
        )
        cpu = CounterMetricFamily("actorgrid_process_cpu_seconds", "CPU time, user and system.", labels=["server"])
        for server, reading in self._reading.processes.items():
            rss.add_metric([server], reading.rss_bytes)
            cpu.add_metric([server], reading.cpu_s)
            if reading.pss_bytes is not None:
                pss.add_metric([server], reading.pss_bytes)
        yield from (rss, pss, cpu)

    def _jobs(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("actorgrid_jobs", "Jobs the ledger knows, by state.", labels=["state"])
        for state, count in self._reading.jobs.items():
            jobs.add_metric([state], count)
        yield jobs

    def _gpus(self) -> Iterator[Metric]:
        figures = (
            ("memory_total_bytes", "Device memory.", "memory_total_bytes", 1.0),
            ("memory_allocated_bytes", "Device memory given out by the scheduler.", "memory_allocated_bytes", 1.0),
            ("memory_used_bytes", "Device memory in use, as the driver says.", "memory_used_bytes", 1.0),
            ("allocated_ratio", "Share of the device given out by the scheduler.", "allocated_milli", 0.001),
            ("utilization_ratio", "Share of the time the device was busy.", "utilization_percent", 0.01),
            ("temperature_celsius", "Temperature of the device.", "temperature_celsius", 1.0),
            ("power_watts", "Power drawn by the device.", "power_usage_watts", 1.0),
            ("power_limit_watts", "Power that the device may draw.", "power_limit_watts", 1.0),
            ("clock_mhz", "Clock of the device's processors.", "clock_mhz", 1.0),
            ("memory_clock_mhz", "Clock of the device's memory.", "memory_clock_mhz", 1.0),
            ("memory_temperature_celsius", "Temperature of the device's memory.", "memory_temperature_celsius", 1.0),
            ("memory_busy_ratio", "Share of the time the memory was used.", "memory_busy_percent", 0.01),
            ("links_down", "Links to other devices that do not work.", "links_down", 1.0),
        )
        for name, text, field, factor in figures:
            family = GaugeMetricFamily(f"actorgrid_gpu_{name}", text, labels=_GPU_LABELS)
            for gpu in self._reading.gpus:
                value = gpu.get(field, (gpu.get("readings") or {}).get(field))
                if value is not None:
                    family.add_metric(self._gpu_labels(gpu), value * factor)
            yield family

    def _gpu_labels(self, gpu: dict[str, Any]) -> list[str]:
        values = (gpu["index"], gpu["device_id"], gpu["vendor"], gpu["model"], gpu["host"], gpu["source"])
        return [str(value) for value in values]

    def _health(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "actorgrid_gpu_health",
            "How the device is: 1 at its state, 0 at the others.",
            labels=(*_GPU_LABELS, "state"),
        )
        for gpu in self._reading.gpus:
            if gpu.get("health"):
                for state in HEALTH_STATES:
                    family.add_metric([*self._gpu_labels(gpu), state], float(gpu["health"] == state))
        yield family


def render(reading: HostReading, hostname: str, http: HttpFigures) -> bytes:
    """The metrics of a reading as text in the Prometheus format."""
    return generate_latest(HostCollector(reading, hostname)) + generate_latest(http.registry)
