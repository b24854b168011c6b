"""Dashboards for Grafana 9 and later: rows of panels, written as tables, made into the JSON that Grafana imports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 24
"""Columns of Grafana's grid."""
HEIGHT, STAT_HEIGHT = 8, 4
SCHEMA_VERSION = 37


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """PromQL, and how its lines are called; ``{{label}}`` stands for a label."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time; as a *stat* only its last number, large. *unit* is Grafana's word for it."""

    title: str
    queries: tuple[PanelQuery, ...]
    unit: str = "short"
    stat: bool = False
    most: float | None = None
    """The end of its scale, where there is one: 1 for shares."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of rows; the panels of a row share its width."""

    uid: str
    title: str
    rows: tuple[tuple[Panel, ...], ...]


def _one(title: str, expression: str, unit: str = "short", stat: bool = False, most: float | None = None) -> Panel:
    return Panel(title, (PanelQuery(expression, "{{instance}}"),), unit, stat, most)


_HERE = 'instance=~"$instance"'

CLUSTER = Dashboard(
    "actorgrid-cluster",
    "actorgrid: cluster",
    (
        (
            _one("Hosts there", "max(actorgrid_cluster_hosts_present)", stat=True),
            _one("Hosts missing", "max(actorgrid_cluster_hosts) - max(actorgrid_cluster_hosts_present)", stat=True),
            _one("GPUs there", "max(actorgrid_cluster_gpus_present)", stat=True),
            _one(
                "GPUs given out",
                "max(actorgrid_gpu_allocated_milli) / max(actorgrid_gpu_capacity_milli)",
                "percentunit",
                True,
                1.0,
            ),
            _one("Jobs waiting", "max(actorgrid_queue_length)", stat=True),
            _one("Jobs running", "max(actorgrid_jobs_running)", stat=True),
        ),
        (
            Panel("Jobs", (PanelQuery("max by (state) (actorgrid_jobs)", "{{state}}"),)),
            Panel(
                "Jobs that end, a minute",
                (
                    PanelQuery("60 * max(rate(actorgrid_jobs_succeeded_total[5m]))", "succeeded"),
                    PanelQuery("60 * max(rate(actorgrid_jobs_failed_total[5m]))", "failed"),
                    PanelQuery("60 * max(rate(actorgrid_jobs_lost_total[5m]))", "lost"),
                ),
            ),
            Panel(
                "Grants, a minute",
                (
                    PanelQuery("60 * max(rate(actorgrid_grants_total[5m]))", "granted"),
                    PanelQuery("60 * max(rate(actorgrid_grants_refused_total[5m]))", "refused"),
                    PanelQuery("60 * max(rate(actorgrid_preemptions_total[5m]))", "preempted"),
                ),
            ),
        ),
        (
            Panel(
                "Health",
                tuple(
                    PanelQuery(f"count(actorgrid_cluster_{word} == 1) or vector(0)", word)
                    for word in ("healthy", "degraded", "not_ready", "stalled", "electing", "no_quorum")
                ),
            ),
            _one("A commit of the ledger, p99", f"actorgrid_ledger_commit_seconds_p99{{{_HERE}}}", "s"),
            _one("Commits, a second", f"rate(actorgrid_ledger_commits_total{{{_HERE}}}[5m])"),
        ),
        (
            _one("CPU of hosts", f"actorgrid_host_load_cpu_ratio{{{_HERE}}}", "percentunit", most=1.0),
            _one("Memory of hosts", f"actorgrid_host_load_memory_ratio{{{_HERE}}}", "percentunit", most=1.0),
            Panel(
                "Memory of the agent",
                (
                    PanelQuery(
                        f"sum by (instance) (actorgrid_process_proportional_memory_bytes{{{_HERE}}})", "{{instance}}"
                    ),
                ),
                "bytes",
            ),
        ),
        (
            Panel(
                "Requests, a second",
                (
                    PanelQuery(
                        f"sum by (instance) (rate(actorgrid_http_requests_total{{{_HERE}}}[5m]))", "{{instance}}"
                    ),
                ),
                "reqps",
            ),
            Panel(
                "A request, p99",
                (
                    PanelQuery(
                        "histogram_quantile(0.99, sum by (le, instance) "
                        f"(rate(actorgrid_http_request_seconds_bucket{{{_HERE}}}[5m])))",
                        "{{instance}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Gossip of the shared state, bytes a second",
                (
                    PanelQuery(f"rate(actorgrid_state_gossip_sent_bytes_total{{{_HERE}}}[5m])", "{{instance}} sent"),
                    PanelQuery(
                        f"rate(actorgrid_state_gossip_received_bytes_total{{{_HERE}}}[5m])", "{{instance}} received"
                    ),
                ),
                "Bps",
            ),
        ),
    ),
)

_GPU = "{{instance}} {{gpu}}"

GPUS = Dashboard(
    "actorgrid-gpus",
    "actorgrid: GPUs",
    (
        (
            _one("GPUs", f"count(actorgrid_gpu_memory_total_bytes{{{_HERE}}})", stat=True),
            _one(
                "In trouble",
                f'count(actorgrid_gpu_health{{{_HERE}, state=~"failed|lost|unknown"}} == 1) or vector(0)',
                stat=True,
            ),
            _one("Too hot for work", f"sum(actorgrid_gpus_heat_drained{{{_HERE}}})", stat=True),
            _one("Held without a grant", f"sum(actorgrid_gpu_processes_ungranted{{{_HERE}}})", stat=True),
            _one("Power", f"sum(actorgrid_gpu_power_watts{{{_HERE}}})", "watt", True),
        ),
        (
            Panel(
                "Given out", (PanelQuery(f"actorgrid_gpu_allocated_ratio{{{_HERE}}}", _GPU),), "percentunit", most=1.0
            ),
            Panel(
                "Utilisation",
                (PanelQuery(f"actorgrid_gpu_utilization_ratio{{{_HERE}}}", _GPU),),
                "percentunit",
                most=1.0,
            ),
        ),
        (
            Panel("Memory used", (PanelQuery(f"actorgrid_gpu_memory_used_bytes{{{_HERE}}}", _GPU),), "bytes"),
            Panel("Memory given out", (PanelQuery(f"actorgrid_gpu_memory_allocated_bytes{{{_HERE}}}", _GPU),), "bytes"),
        ),
        (
            Panel("Temperature", (PanelQuery(f"actorgrid_gpu_temperature_celsius{{{_HERE}}}", _GPU),), "celsius"),
            Panel(
                "Power and its limit",
                (
                    PanelQuery(f"actorgrid_gpu_power_watts{{{_HERE}}}", _GPU),
                    PanelQuery(f"actorgrid_gpu_power_limit_watts{{{_HERE}}}", f"{_GPU} limit"),
                ),
                "watt",
            ),
            Panel("Clock", (PanelQuery(f"actorgrid_gpu_clock_mhz{{{_HERE}}} * 1e6", _GPU),), "hertz"),
        ),
    ),
)

DASHBOARDS = (CLUSTER, GPUS)


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it (Grafana, Dashboard JSON model); its shape is Grafana's."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["actorgrid"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source_variable(), _instance_variable()]},
        "panels": _panels(dashboard.rows),
    }


def _panels(rows: Sequence[Sequence[Panel]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        width, height = WIDTH // len(row), STAT_HEIGHT if all(panel.stat for panel in row) else HEIGHT
        for place, panel in enumerate(row):
            at = {"x": place * width, "y": y, "w": width, "h": height}
            found.append(_panel(panel, len(found) + 1, at))
        y += height
    return found


def _panel(panel: Panel, number: int, at: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    options: dict[str, Any] = (
        {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}
        if panel.stat
        else {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    )
    return {
        "id": number,
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "gridPos": at,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "expr": query.expression,
                "legendFormat": query.legend,
                "datasource": _SOURCE,
            }
            for place, query in enumerate(panel.queries)
        ],
    }


_SOURCE = {"type": "prometheus", "uid": "${source}"}


def _source_variable() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _instance_variable() -> dict[str, Any]:
    return {
        "name": "instance",
        "label": "Host",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(actorgrid_up, instance)", "refId": "instance"},
        "includeAll": True,
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }
