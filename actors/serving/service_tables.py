"""The table of services that a host hands its model gateway, from the ledger's records. Decisions only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from actorgrid.access import ALL_TENANTS, tenant_of
from actorgrid.actors.ledger.api_keys import identity_of
from actorgrid.actors.ledger.credential_records import ApiKeyRecord
from actorgrid.actors.ledger.record_types import MemberRecord
from actorgrid.actors.ledger.service_records import USUAL_ROUTING, ReplicaRecord, ServiceRecord, revision_in

from .table import (
    KEYS_MAX,
    MODELS_OF_ONE_MAX,
    REPLICAS_MAX,
    LoraAdapter,
    ReplicaEndpoint,
    ReplicaState,
    RevisionWeight,
    RoutingStrategy,
    ServiceKey,
    ServiceRoute,
    ServiceTable,
)

PEERS_BEHIND_CALLS = 5
"""The port of a host's model gateway for those of other hosts: so many behind that of calls, which the ledger has."""
OPENAI = "openai"
HOSTS_MAX = 4_096
"""Of the cluster, that a table can name."""
_STATES = {
    "starting": ReplicaState.STARTING,
    "queued": ReplicaState.STARTING,
    "ready": ReplicaState.READY,
    "draining": ReplicaState.DRAINING,
}


def table_of(
    services: Mapping[str, ServiceRecord],
    members: Mapping[str, MemberRecord],
    keys: Mapping[str, ApiKeyRecord],
    host_id: str,
    sequence: int,
    now: float,
) -> ServiceTable:
    """The table for the gateway of *host_id*. A host that is alone has no *members*, and asks nobody on loopback for a
    key."""
    gateways = {name: address for name, each in members.items() if (address := gateway_of(each))}
    routes = [route_of(each, gateways, host_id) for _, each in sorted(services.items()) if is_routed(each)]
    others = tuple(address for name, address in sorted(gateways.items()) if name != host_id)[:HOSTS_MAX]
    most = REPLICAS_MAX // max(1, len(routes))
    routes = [each if len(each.replicas) <= most else _shortened(each, most) for each in routes]
    return ServiceTable(
        sequence=sequence,
        host=host_id,
        services=tuple(routes),
        keys=tuple(_keys(keys.values(), services.values(), now)),
        keys_required=bool(members),
        members=tuple(sorted(members))[:HOSTS_MAX],
        peers=others,
    )


def gateway_of(member: MemberRecord) -> str:
    """Where the gateway of a host is, for those of others; empty: that is not known."""
    address, _, port = member["addresses"].get("calls", "").rpartition(":")
    return f"{address}:{int(port) + PEERS_BEHIND_CALLS}" if address and port.isdecimal() else ""


def is_routed(record: ServiceRecord) -> bool:
    """Whether requests for a service go through the gateways: of an OpenAI-compatible server."""
    return revision_in(record, record["revision"])["serving"]["protocol"] == OPENAI


def route_of(record: ServiceRecord, gateways: Mapping[str, str], host_id: str) -> ServiceRoute:
    """One service, for the gateway of *host_id*; *gateways*: the address of each host's."""
    known = next((each["model"] for each in record["replicas"] if each["state"] == "ready" and each["model"]), "")
    served_as = revision_in(record, record["revision"])["serving"]["model"] or known
    # What waits for a place that it will not get soon is no reason to hold a request.
    routing = record.get("routing") or USUAL_ROUTING
    states = _STATES.keys() - ({"queued"} if record["problem"] else ())
    return ServiceRoute(
        name=record["name"],
        models=(record["name"],),
        replicas=tuple(_endpoint(each, gateways, host_id) for each in record["replicas"] if each["state"] in states),
        served_as=served_as,
        adapters=tuple(LoraAdapter(each["model"], each["served_as"]) for each in routing["adapters"]),
        strategy=RoutingStrategy(routing["strategy"]),
        affinity_header=routing["affinity_header"],
        fallback_models=tuple(routing["fallbacks"]),
        revisions=_weights(record),
        tenant=tenant_of(record["user_id"]),
        scales_from_zero=not record["problem"] and "removed_by" not in record,
        reason="it is being removed" if "removed_by" in record else record["problem"],
        created=record["made_at"],
    )


def _shortened(route: ServiceRoute, most: int) -> ServiceRoute:
    """*route* with no more replicas than that, those that answer first."""
    ordered = sorted(route.replicas, key=lambda each: each.state is not ReplicaState.READY)
    return replace(route, replicas=tuple(ordered[:most]))


def _endpoint(replica: ReplicaRecord, gateways: Mapping[str, str], host_id: str) -> ReplicaEndpoint:
    attempt = replica["attempt_id"]
    token = "-".join(map(str, replica["token"]))
    return ReplicaEndpoint(
        replica_id=replica["job_id"],
        host=replica["host"] or "-",
        attempt=f"{attempt}@{token}" if attempt else f"{replica['job_id']}@",
        revision=replica["revision"],
        # Until it is known where its host's gateway is, requests wait for it as for one that starts.
        state=_STATES[replica["state"]] if replica["host"] in (host_id, *gateways) else ReplicaState.STARTING,
        port=replica["port"],
        gateway=gateways.get(replica["host"], ""),
    )


def _weights(record: ServiceRecord) -> tuple[RevisionWeight, ...]:
    """Of which requests each revision gets how many; empty: they are alike."""
    ready = {each["revision"] for each in record["replicas"] if each["state"] == "ready"}
    rollout = record["rollout"]
    if rollout is not None:
        if not rollout["canary"] or not {rollout["to"], record["revision"]} <= ready:
            return ()
        new = RevisionWeight(rollout["to"], rollout["canary"])
        return (new, RevisionWeight(record["revision"], 100 - rollout["canary"]))
    # What is left over of an exchange that was given up gets nothing, once there is anything else.
    return (RevisionWeight(record["revision"], 100),) if record["revision"] in ready and len(ready) > 1 else ()


def _keys(keys: Iterable[ApiKeyRecord], services: Iterable[ServiceRecord], now: float) -> Iterable[ServiceKey]:
    """The keys that clients may show, the newest if there are too many: each for the models of its tenant."""
    names: dict[str, list[str]] = {}
    for service in services:
        adapters = (each["model"] for each in (service.get("routing") or USUAL_ROUTING)["adapters"])
        names.setdefault(tenant_of(service["user_id"]), []).extend((service["name"], *adapters))
    good = [each for each in keys if each["revoked_at"] is None and each["expires_at"] > now]
    for each in sorted(good, key=lambda key: key["made_at"])[-KEYS_MAX:]:
        who = identity_of(each)
        if who is None:
            continue  # an entry of an earlier version may hold anything in the place of a role
        tenant = "" if who.tenant == ALL_TENANTS else who.tenant
        models = tuple(sorted(names.get(tenant, ()))[:MODELS_OF_ONE_MAX]) if tenant else None
        limits = each.get("serving")
        if limits is not None and limits["models"]:
            asked = limits["models"]
            models = tuple(asked) if models is None else tuple(name for name in models if name in asked)
        yield ServiceKey(
            each["id"],
            each["sha256"],
            each["user_id"],
            tenant=tenant,
            expires_at=each["expires_at"],
            models=models,
            requests_per_minute=(limits["requests_per_minute"] or None) if limits is not None else None,
            tokens_per_minute=(limits["tokens_per_minute"] or None) if limits is not None else None,
            tokens_per_month=(limits["tokens_per_month"] or None) if limits is not None else None,
            requests_per_month=(limits.get("requests_per_month") or None) if limits is not None else None,
        )
