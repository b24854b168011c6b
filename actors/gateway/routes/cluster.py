"""The cluster as it is: hosts, GPUs, allocations, performance, settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorgrid.access import EVERYTHING, Right
from actorgrid.actors.cluster.messages import ChangeSetting, ClusterSummary, ListHosts
from actorgrid.actors.gateway.schemas.answers import (
    AllocationsAnswer,
    ClusterAnswer,
    DecisionsAnswer,
    DecisionsQuery,
    GpusAnswer,
    GpuTotalsAnswer,
    HostsAnswer,
    PerformanceAnswer,
    SettingChanged,
    SettingsAnswer,
)
from actorgrid.actors.gateway.schemas.members import MembersAnswer
from actorgrid.actors.gateway.server.last_known import cluster_known, last_known, presence
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gpu.device_totals import TOTALS_PREFIX, DeviceTotals, read_totals, together
from actorgrid.actors.gpu.messages import Inventory, OwnTotals, RecentDecisions
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.ledger.query_answers import AllocationRecords
from actorgrid.actors.replication.messages import ReadPrefix
from actorgrid.errors import SettingNotLive, UnknownSetting
from actorgrid.models import PerformanceMetrics, SettingChange

ROUTES = RouteTable(Route)

STATE_S = 10.0
HOSTS_MAX = 10_000
SUMMARY_TIMEOUT_S = 15.0
"""ClusterManager asks four servers in turn; each may be restarting."""


@ROUTES.add("GET", "/api/cluster", ClusterAnswer, "cluster", Right.SEE_CLUSTER)
async def get_cluster(call: RequestContext) -> Any:
    """The cluster in figures."""
    summary = await call.ask("cluster_manager", ClusterSummary(call.seen), SUMMARY_TIMEOUT_S)
    age = last_known({"known_at": summary.get("known_at"), "problems": summary.get("findings", [])})
    if call.scope != EVERYTHING:  # what is wrong, and with which jobs, names what is others'
        summary = {**summary, "problems": [], "findings": [], "binding": None}
    return {**summary, "last_known": age, "ca_fingerprint": call.app.authority}


@ROUTES.add("GET", "/api/hosts", HostsAnswer, "cluster", Right.LIST_HOSTS)
async def get_hosts(call: RequestContext) -> Any:
    """All hosts, with their GPUs and health."""
    listed = await call.ask("cluster_manager", ListHosts(call.seen), SUMMARY_TIMEOUT_S)
    if not call.scope.is_all:
        jobs = _jobs_in_reach(call)
        listed = [{**host, "gpus": [_of_jobs(gpu, jobs) for gpu in host["gpus"]]} for host in listed]
    return {"hosts": listed, "last_known": last_known(await cluster_known(call, fresh=False))}


@ROUTES.add("GET", "/api/members", MembersAnswer, "cluster", Right.SEE_CLUSTER, unlimited=True)
async def get_members(call: RequestContext) -> Any:
    """Who belongs to the cluster, and where.

    It asks no other host, so it answers when they are gone.
    """
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
                "site": member.get("site") or None,
            }
            for member in members
        ],
    }


@ROUTES.add("GET", "/api/gpus", GpusAnswer, "cluster", Right.LIST_HOSTS)
async def get_gpus(call: RequestContext) -> Any:
    """All GPUs, with their latest readings."""
    known = await cluster_known(call)
    devices = await call.ask("gpu_coordinator", Inventory(call.seen, everywhere=True))
    if not call.scope.is_all:
        jobs = _jobs_in_reach(call)
        devices = [_of_jobs(device, jobs) for device in devices]
    return {
        "gpus": [{**device, "presence": presence(known, str(device["host"]))} for device in devices],
        "last_known": last_known(known),
    }


@ROUTES.add("GET", "/api/gpus/total", GpuTotalsAnswer, "cluster", Right.LIST_HOSTS)
async def get_gpu_totals(call: RequestContext) -> Any:
    """What the GPUs of all hosts read together, as each host tells the others: no other host is asked."""
    app = call.app
    found: dict[str, DeviceTotals] = {app.host.host_id: await call.ask("gpu_coordinator", OwnTotals())}
    present = app.ledger.hosts.keys() - app.ledger.absent
    if app.host.enrolment is not None:
        for entry in await call.ask("distributed_state", ReadPrefix(TOTALS_PREFIX, HOSTS_MAX), STATE_S):
            host_id, totals = entry["key"].removeprefix(TOTALS_PREFIX), read_totals(entry["value"])
            if totals is not None and host_id in present:
                found.setdefault(host_id, totals)
    total = together(found.values())
    share = total["utilization_percent"] / total["utilization_known"] if total["utilization_known"] else None
    without = {host_id for host_id in present - found.keys() if not app.ledger.hosts[host_id]["devices"]}
    return {
        "hosts": len(found) + len(without),
        "hosts_unknown": len(app.ledger.hosts.keys() - found.keys() - without),
        "gpus": total["devices"],
        "gpus_unavailable": total["unavailable"],
        "memory_bytes": total["memory_bytes"],
        "memory_used_bytes": total["memory_used_bytes"] if total["memory_known"] else None,
        "utilization_percent": share,
        "watts": total["watts"] if total["watts_known"] else None,
        "hottest_celsius": total["hottest_celsius"],
        "oldest_at": total["at"] or None,
    }


def _jobs_in_reach(call: RequestContext) -> set[str]:
    """The jobs that hold something, of users in reach."""
    held = list(call.app.ledger.allocations.values())
    mine = (each["owner"] for each in held if call.scope.covers(str(each.get("user_id") or "")))
    return {str(owner["job_id"]) for owner in mine if "job_id" in owner}


def _of_jobs(device: Mapping[str, Any], jobs: set[str]) -> dict[str, Any]:
    """The device, naming of the jobs on it those alone."""
    return {**device, "jobs": [each for each in device.get("jobs", ()) if each in jobs]}


@ROUTES.add("GET", "/api/allocations", AllocationsAnswer, "cluster", Right.LIST_LEASES)
async def get_allocations(call: RequestContext) -> Any:
    """What is allocated, and to whom."""
    found: AllocationRecords = await call.ask("consensus", Query("allocations"))
    return {
        "allocations": sorted(
            (each for each in found["allocations"] if call.scope.covers(str(each.get("user_id") or ""))),
            key=lambda record: str(record["allocation_id"]),
        ),
        "last_known": last_known(await cluster_known(call, fresh=False)),
    }


@ROUTES.add("GET", "/api/decisions", DecisionsAnswer, "cluster", Right.SEE_SERVERS, query=DecisionsQuery)
async def get_decisions(call: RequestContext) -> Any:
    """The latest placements and their latencies."""
    return {"decisions": await call.ask("gpu_coordinator", RecentDecisions(call.query.limit))}


@ROUTES.add("GET", "/api/performance", PerformanceAnswer, "cluster", Right.LIST_HOSTS)
async def get_performance(call: RequestContext) -> Any:
    """The host's own performance."""
    summary = await call.ask("cluster_manager", ClusterSummary(call.seen), SUMMARY_TIMEOUT_S)
    figures = {name: value for name, value in summary["performance"].items() if name in PerformanceMetrics.model_fields}
    return {"timestamp": PerformanceMetrics.model_fields["timestamp"].get_default(call_default_factory=True), **figures}


@ROUTES.add("GET", "/api/config", SettingsAnswer, "config", Right.READ_SETTINGS)
async def get_config(call: RequestContext) -> Any:
    """All settings: value, default, origin."""
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


@ROUTES.add(
    "PUT",
    "/api/config/{key}",
    SettingChanged,
    "config",
    Right.WRITE_SETTINGS,
    request=SettingChange,
    errors=(UnknownSetting, SettingNotLive),
)
async def put_config(call: RequestContext) -> Any:
    """Change a live setting without a restart.

    For good: the ledger keeps it.
    """
    change = call.body_as(SettingChange)
    key = call.part("key")
    call.app.settings.check_live(key, change.value)
    return await call.ask("cluster_manager", ChangeSetting(key, change.value, by="http"), 35.0)
