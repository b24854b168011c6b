"""The figures of a gateway process in Prometheus' form, under the names that dashboards for models know.

Those of vLLM (``vllm:...``) for what vLLM has, those of OpenTelemetry's conventions for generative AI
(``gen_ai_...``) for the same in their words. Buckets are vLLM's.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from .token_usage import UsedTokens

if TYPE_CHECKING:
    from .exchange import Exchange
    from .gateway import ModelGateway

FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0)
TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 300.0)


class DurationHistogram:
    """Counts by upper bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.sum += seconds
        self.counts[bisect_left(self.bounds, seconds)] += 1

    def lines(self, name: str, labels: str) -> list[str]:
        """As Prometheus reads them."""
        found, total = [], 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            total += count
            found.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
        total += self.counts[-1]
        found += [f'{name}_bucket{{{labels},le="+Inf"}} {total}', f"{name}_sum{{{labels}}} {self.sum:.6f}"]
        return [*found, f"{name}_count{{{labels}}} {total}"]


class ServedModelFigures:
    """Of one model."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.requests: dict[int, int] = {}
        """By status; 0: broken off by the client before there was one."""
        self.aborted_total = self.prompt_tokens_total = self.cached_tokens_total = self.completion_tokens_total = 0
        self.first_token = DurationHistogram(FIRST_TOKEN_BUCKETS)
        self.per_token = DurationHistogram(TOKEN_BUCKETS)
        self.duration = DurationHistogram(DURATION_BUCKETS)
        self.queue = DurationHistogram(DURATION_BUCKETS)


class GatewayFigures:
    """Of all models, of which there are as many as tables allow."""

    def __init__(self) -> None:
        self.models: dict[str, ServedModelFigures] = {}
        self.refused_total = self.refused_connections_total = self.forwarded_total = self.fallbacks_total = 0

    def request_ended(
        self, service: str, model: str, exchange: Exchange, now: float, status: int, usage: UsedTokens, aborted: bool
    ) -> None:
        """A request is over."""
        found = self.models.get(model)
        if found is None:
            found = self.models[model] = ServedModelFigures(service)
        found.requests[status] = found.requests.get(status, 0) + 1
        found.aborted_total += aborted
        found.prompt_tokens_total += usage.prompt_tokens
        found.cached_tokens_total += usage.cached_tokens
        found.completion_tokens_total += usage.completion_tokens
        found.duration.add(now - exchange.started)
        if exchange.sent_at is not None:
            found.queue.add(exchange.sent_at - exchange.started)
        if exchange.first_byte_at is not None:
            found.first_token.add(exchange.first_byte_at - exchange.started)
            if usage.completion_tokens > 1 and exchange.relay is not None and exchange.relay.is_stream:
                found.per_token.add((now - exchange.first_byte_at) / (usage.completion_tokens - 1))

    def text(self, gateway: ModelGateway) -> str:
        """All figures, as Prometheus reads them."""
        lines: list[str] = []
        used = "gen_ai_client_token_usage_sum"
        for service in gateway.services.values():
            label = f'model_name="{_quoted(service.route.name)}"'
            running = sum(each.in_flight for each in service.conditions.values())
            lines += [
                f"vllm:num_requests_running{{{label}}} {running}",
                f"vllm:num_requests_waiting{{{label}}} {len(service.held)}",
                f"actorgrid_gateway_requests_elsewhere{{{label}}} {service.router.requests_elsewhere(gateway.now())}",
                f"actorgrid_gateway_prefix_blocks{{{label}}} {len(service.index)}",
                f"actorgrid_gateway_retries_total{{{label}}} {service.retries_total}",
                f"actorgrid_gateway_errors_total{{{label}}} {service.errors_total}",
                f"actorgrid_gateway_aborted_total{{{label}}} {service.aborted_total}",
            ]
        for model, figures in self.models.items():
            label = f'model_name="{_quoted(model)}"'
            named = f'gen_ai_request_model="{_quoted(model)}",gen_ai_operation_name="chat"'
            lines += [
                f'actorgrid_gateway_requests_total{{{label},status="{status}"}} {count}'
                for status, count in sorted(figures.requests.items())
            ]
            lines += [
                f"vllm:prompt_tokens_total{{{label}}} {figures.prompt_tokens_total}",
                f"vllm:generation_tokens_total{{{label}}} {figures.completion_tokens_total}",
                f"vllm:prefix_cache_queries_total{{{label}}} {figures.prompt_tokens_total}",
                f"vllm:prefix_cache_hits_total{{{label}}} {figures.cached_tokens_total}",
                f'{used}{{{named},gen_ai_token_type="input"}} {figures.prompt_tokens_total}',
                f'{used}{{{named},gen_ai_token_type="output"}} {figures.completion_tokens_total}',
            ]
            lines += figures.first_token.lines("vllm:time_to_first_token_seconds", label)
            lines += figures.first_token.lines("gen_ai_server_time_to_first_token_seconds", named)
            lines += figures.per_token.lines("vllm:time_per_output_token_seconds", label)
            lines += figures.per_token.lines("gen_ai_server_time_per_output_token_seconds", named)
            lines += figures.duration.lines("vllm:e2e_request_latency_seconds", label)
            lines += figures.duration.lines("gen_ai_server_request_duration_seconds", named)
            lines += figures.queue.lines("vllm:request_queue_time_seconds", label)
        lines += [
            f"actorgrid_gateway_connections {len(gateway.clients)}",
            f"actorgrid_gateway_requests_in_hand {gateway.requests_in_hand}",
            f"actorgrid_gateway_refused_total {self.refused_total}",
            f"actorgrid_gateway_refused_connections_total {self.refused_connections_total}",
            f"actorgrid_gateway_forwarded_total {self.forwarded_total}",
            f"actorgrid_gateway_fallbacks_total {self.fallbacks_total}",
            f"actorgrid_gateway_wrong_keys_total {gateway.keys.refused_total}",
            f"actorgrid_gateway_table_sequence {gateway.table.sequence}",
        ]
        return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
