"""Figures of a replica, under the names that vLLM gave them, so that dashboards and routers know them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from .replica import ServiceReplica

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_MODEL = ["model_name"]


class ReplicaFigures:
    """Counts of one replica."""

    def __init__(self, replica: ServiceReplica, model: str) -> None:
        self.registry = CollectorRegistry()
        self._replica = replica
        self.registry.register(_Batches(replica))
        running = Gauge("vllm:num_requests_running", "Requests that run.", _MODEL, registry=self.registry)
        waiting = Gauge("vllm:num_requests_waiting", "Requests that wait.", _MODEL, registry=self.registry)
        running.labels(model).set_function(lambda: max(0, replica.in_flight - replica.waiting))
        waiting.labels(model).set_function(lambda: replica.waiting)
        self.prompt = self._count("vllm:prompt_tokens", "Tokens of prompts.").labels(model)
        self.generated = self._count("vllm:generation_tokens", "Tokens of answers.").labels(model)
        self.queried = self._count("vllm:prefix_cache_queries", "Tokens looked for in the prefix cache.").labels(model)
        self.hits = self._count("vllm:prefix_cache_hits", "Tokens found in the prefix cache.").labels(model)
        self._ended = Counter(
            "vllm:request_success", "Requests that ended.", [*_MODEL, "finished_reason"], registry=self.registry
        )
        self.first = self._seconds("vllm:time_to_first_token_seconds", "Until the first token.", _SECONDS, model)
        self.between = self._seconds("vllm:inter_token_latency_seconds", "Between two tokens.", _BETWEEN, model)
        self.each = self._seconds("vllm:time_per_output_token_seconds", "Mean of a token.", _BETWEEN, model)
        self.whole = self._seconds("vllm:e2e_request_latency_seconds", "Of a request.", _SECONDS, model)
        self._model = model

    def ended(self, reason: str) -> None:
        """Count a request that ended: stop, length, abort (its client left) or error."""
        self._ended.labels(self._model, reason).inc()

    def text(self) -> bytes:
        """All figures in Prometheus' form."""
        return generate_latest(self.registry)

    def _count(self, name: str, what: str) -> Counter:
        return Counter(name, what, _MODEL, registry=self.registry)

    def _seconds(self, name: str, what: str, buckets: tuple[float, ...], model: str) -> Histogram:
        return Histogram(name, what, _MODEL, buckets=buckets, registry=self.registry).labels(model)


class _Batches:
    """Figures of the batched methods, asked when somebody reads them."""

    def __init__(self, replica: ServiceReplica) -> None:
        self._replica = replica

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """A family for each figure, with the method as its label."""
        batches = CounterMetricFamily("actorgrid_batches", "Batches that were started.", labels=["method"])
        items = CounterMetricFamily("actorgrid_batch_items", "Items in these batches.", labels=["method"])
        waiting = GaugeMetricFamily("actorgrid_batch_waiting", "Items that wait.", labels=["method"])
        limit = GaugeMetricFamily("actorgrid_batch_rows_max", "Rows that a batch may have now.", labels=["method"])
        for name, runner in self._replica.runners.items():
            if name:
                batches.add_metric([name], runner.batches)
                items.add_metric([name], runner.items)
                waiting.add_metric([name], runner.waiting)
                limit.add_metric([name], runner.core.size.limit)
        yield from (batches, items, waiting, limit)
