"""The audit log of this host: listed, exported, proven. Each host has its own."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from actorgrid.access import Right
from actorgrid.actors.gateway.schemas.audit import (
    AuditAnswer,
    AuditExportQuery,
    AuditGrowth,
    AuditGrowthQuery,
    AuditHead,
    AuditProof,
    AuditProofQuery,
    AuditQuery,
    HeldAuditHeads,
)
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.ledger.query_answers import AuditHeadRecords
from actorgrid.actors.ledger.record_types import NO_HOST
from actorgrid.actors.security.audit_log import AuditLog
from actorgrid.actors.security.audit_records import AuditRecord
from actorgrid.actors.security.audit_tree import CHUNK, CHUNK_BITS
from actorgrid.errors import AuditGone, BadRequest

ROUTES = RouteTable(Route)


async def _settled(call: RequestContext) -> AuditLog:
    """The log, once what was asked before is on the disk."""
    await call.app.in_pool(call.app.audit.settle)
    return call.app.audit


@ROUTES.add("GET", "/api/audit", AuditAnswer, "audit", Right.READ_AUDIT, query=AuditQuery)
async def get_audit(call: RequestContext) -> Any:
    """What was asked of this host, by whom, from where, and what became of it."""
    query, audit = call.query_as(AuditQuery), await _settled(call)

    def in_reach(record: AuditRecord) -> bool:
        if call.scope.is_all:
            return True
        return record["tenant"] == call.who.tenant and call.scope.covers(record["user"])

    records, before = await call.app.in_pool(lambda: audit.newest(query.before, query.limit, in_reach))
    return {"records": records, "next": before or None, "size": audit.size, "lost": audit.lost_total}


@ROUTES.add(
    "GET",
    "/api/audit/export",
    "application/octet-stream",
    "audit",
    Right.EXPORT_AUDIT,
    query=AuditExportQuery,
    errors=(AuditGone,),
)
async def export_audit(call: RequestContext) -> Any:
    """Records as the log has them, one line each; the header X-Next says where to go on."""
    first, audit = call.query_as(AuditExportQuery).first, call.app.audit
    lines = await call.app.in_pool(lambda: audit.lines(first, CHUNK))
    headers = {"X-Next": str(first + len(lines))}
    body = b"".join(line + b"\n" for line in lines)
    return web.Response(body=body, content_type="application/octet-stream", headers=headers)


@ROUTES.add("GET", "/api/audit/head", AuditHead, "audit", Right.EXPORT_AUDIT)
async def get_audit_head(call: RequestContext) -> Any:
    """A signed head of the log of this host, and the key by which it is checked."""
    audit = await _settled(call)

    def look() -> dict[str, Any]:
        first = audit.first_kept
        roots = [root.hex() for root in audit.roots[: first >> CHUNK_BITS]]
        return {"note": audit.note(), "key": audit.verifier, "size": audit.size, "first": first, "roots": roots}

    return await call.app.in_pool(look)


@ROUTES.add("GET", "/api/audit/heads", HeldAuditHeads, "audit", Right.EXPORT_AUDIT)
async def get_audit_heads(call: RequestContext) -> Any:
    """The heads of all hosts' logs that the cluster holds: each was proven to go on from the one before."""
    found: AuditHeadRecords = await call.ask("consensus", Query("audit_heads"))
    hosts = call.app.ledger.hosts
    shown = [
        {**each, "hostname": hosts.get(each["host_id"], NO_HOST).get("hostname", each["host_id"])}
        for each in found["heads"]
    ]
    return {"heads": sorted(shown, key=lambda each: str(each["hostname"]))}


@ROUTES.add(
    "GET", "/api/audit/proof", AuditProof, "audit", Right.EXPORT_AUDIT, query=AuditProofQuery, errors=(AuditGone,)
)
async def get_audit_proof(call: RequestContext) -> Any:
    """The proof that a record is in the log."""
    query, audit = call.query_as(AuditProofQuery), await _settled(call)
    size = audit.size if query.size is None else query.size
    if not query.seq < size <= audit.size:
        raise BadRequest("there is no such record", asked=f"record {query.seq} of {size}", found=f"{audit.size}")

    def prove() -> dict[str, Any]:
        proof = [part.hex() for part in audit.inclusion(query.seq, size)]
        (line,) = audit.lines(query.seq, 1)
        return {"seq": query.seq, "size": size, "record": line.decode(), "proof": proof, "note": audit.note()}

    return {**await call.app.in_pool(prove), "key": audit.verifier}


@ROUTES.add(
    "GET",
    "/api/audit/growth",
    AuditGrowth,
    "audit",
    Right.EXPORT_AUDIT,
    query=AuditGrowthQuery,
    errors=(AuditGone,),
)
async def get_audit_growth(call: RequestContext) -> Any:
    """The proof that the log only grew between two sizes."""
    query, audit = call.query_as(AuditGrowthQuery), await _settled(call)
    second = audit.size if query.second is None else query.second
    if not query.first <= second <= audit.size:
        raise BadRequest("the log was never so long", asked=f"{query.first} to {second}", found=f"{audit.size}")

    def prove() -> dict[str, Any]:
        proof = [part.hex() for part in audit.consistency(query.first, second)]
        return {"first": query.first, "second": second, "proof": proof, "note": audit.note()}

    return {**await call.app.in_pool(prove), "key": audit.verifier}
