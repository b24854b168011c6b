"""The cluster as it is: hosts, GPUs, allocations, performance, settings."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.cluster.messages import ChangeSetting, ClusterSummary, ListHosts
from actorgrid.actors.gateway.schemas.answers import (
    AllocationsAnswer,
    ClusterAnswer,
    DecisionsAnswer,
    DecisionsQuery,
    GpusAnswer,
    HostsAnswer,
    MembersAnswer,
    PerformanceAnswer,
    SettingChanged,
    SettingsAnswer,
)
from actorgrid.actors.gateway.server.last_known import cluster_known, last_known, presence
from actorgrid.actors.gateway.server.route import RequestContext, Route
from actorgrid.actors.gpu.messages import Inventory, RecentDecisions
from actorgrid.actors.ledger.messages import Query
from actorgrid.errors import SettingNotLive, UnknownSetting
from actorgrid.models import PerformanceMetrics, SettingChange

SUMMARY_TIMEOUT_S = 15.0
"""ClusterManager asks four servers in turn; each may be restarting."""


async def get_cluster(call: RequestContext) -> Any:
    """Counts and figures of the cluster."""
    summary = await call.ask("cluster_manager", ClusterSummary(call.seen), SUMMARY_TIMEOUT_S)
    age = last_known({"known_at": summary.get("known_at"), "problems": summary.get("findings", [])})
    return {**summary, "last_known": age, "ca_fingerprint": call.app.authority}


async def get_members(call: RequestContext) -> Any:
    """Who belongs to the cluster, as this host knows it: it asks no other, so it answers when they are gone."""
    app = call.app
    ledger, enrolment = app.ledger, app.host.enrolment
    members = sorted(ledger.members.values(), key=lambda member: int(member["node"]))
    return {
        "cluster_id": None if enrolment is None else enrolment.cluster_id,
        "ca_fingerprint": app.authority,
        "here": app.host.host_id,
        "leader": ledger.leader if members else app.host.host_id,
        "members": [
            {
                "host_id": member["host_id"],
                "node": member["node"],
                "url": f"https://{member['addresses']['https']}" if "https" in member["addresses"] else None,
                "version": member["version"],
                "present": member["host_id"] not in ledger.absent,
            }
            for member in members
        ],
    }


async def get_hosts(call: RequestContext) -> Any:
    """All hosts."""
    listed = await call.ask("cluster_manager", ListHosts(call.seen), SUMMARY_TIMEOUT_S)
    return {"hosts": listed, "last_known": last_known(await cluster_known(call, fresh=False))}


async def get_gpus(call: RequestContext) -> Any:
    """All devices."""
    known = await cluster_known(call)
    devices = await call.ask("gpu_coordinator", Inventory(call.seen, everywhere=True))
    return {
        "gpus": [{**device, "presence": presence(known, str(device["host"]))} for device in devices],
        "last_known": last_known(known),
    }


async def get_allocations(call: RequestContext) -> Any:
    """All live allocations."""
    found = await call.ask("consensus", Query("allocations"))
    return {
        "allocations": sorted(found["allocations"], key=lambda record: str(record["allocation_id"])),
        "last_known": last_known(await cluster_known(call, fresh=False)),
    }


async def get_decisions(call: RequestContext) -> Any:
    """What was placed where, and how long deciding took."""
    return {"decisions": await call.ask("gpu_coordinator", RecentDecisions(call.query.limit))}


async def get_performance(call: RequestContext) -> Any:
    """The host's own performance."""
    summary = await call.ask("cluster_manager", ClusterSummary(call.seen), SUMMARY_TIMEOUT_S)
    figures = {name: value for name, value in summary["performance"].items() if name in PerformanceMetrics.model_fields}
    return {"timestamp": PerformanceMetrics.model_fields["timestamp"].get_default(call_default_factory=True), **figures}


async def get_config(call: RequestContext) -> Any:
    """All settings."""
    settings = call.app.settings
    defaults = type(settings)()
    return {
        "settings": [
            {
                "key": key,
                "value": _plain(settings.get(key)),
                "default": _plain(defaults.get(key)),
                "origin": settings.origin(key),
                "live": settings.is_live(key),
                "description": settings.describe(key),
            }
            for key in settings.keys()  # noqa: SIM118 - a method of ours, not a mapping's
        ]
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


async def put_config(call: RequestContext) -> Any:
    """Change a live setting, for good."""
    change = call.body_as(SettingChange)
    key = call.part("key")
    call.app.settings.check_live(key, change.value)
    return await call.ask("cluster_manager", ChangeSetting(key, change.value, by="http"), 35.0)


ROUTES = (
    Route("GET", "/api/cluster", "The cluster in figures", get_cluster, ClusterAnswer, "cluster"),
    Route("GET", "/api/hosts", "All hosts, with their GPUs and health", get_hosts, HostsAnswer, "cluster"),
    Route("GET", "/api/members", "Who belongs to the cluster, and where", get_members, MembersAnswer, "cluster"),
    Route("GET", "/api/gpus", "All GPUs, with their latest readings", get_gpus, GpusAnswer, "cluster"),
    Route("GET", "/api/allocations", "What is allocated, and to whom", get_allocations, AllocationsAnswer, "cluster"),
    Route(
        "GET",
        "/api/decisions",
        "The latest placements and their latencies",
        get_decisions,
        DecisionsAnswer,
        "cluster",
        query=DecisionsQuery,
    ),
    Route("GET", "/api/performance", "The host's own performance", get_performance, PerformanceAnswer, "cluster"),
    Route("GET", "/api/config", "All settings: value, default, origin", get_config, SettingsAnswer, "config"),
    Route(
        "PUT",
        "/api/config/{key}",
        "Change a live setting without a restart",
        put_config,
        SettingChanged,
        "config",
        request=SettingChange,
        errors=(UnknownSetting, SettingNotLive),
    ),
)
