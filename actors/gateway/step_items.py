"""The items of a step that streams: from its running attempt, or from what it gave once it has succeeded."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, cast

from actorgrid.actors.cluster.messages import GetJob
from actorgrid.actors.gateway.schemas.graphs import ItemsRequest
from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.actors.ledger.record_types import AttemptRecord, JobRecord

from ..links.step_items import ITEMS_LOOK_S, ItemTaker
from .attempt_files import files_of
from .server.route import RequestContext

ANSWER_S = 10.0
RUNNING, OVER, AWAY, GONE = "running", "over", "away", "gone"


async def items_of(call: RequestContext, record: StepRecord, asked: ItemsRequest) -> dict[str, Any]:
    """The answer for a step with that *record*. Raises HostUnreachable, CallTimeout, PeerGone."""
    if record["state"] == "succeeded":
        return await _kept(call, record, asked)
    if record["state"] != "released":
        return _answer(AWAY, "")
    job: JobRecord = await call.ask("cluster_manager", GetJob(record["job_id"]), ANSWER_S)
    if job["state"] not in ("placed", "running"):
        return _answer(AWAY, "")
    attempt = job["attempts"][-1]
    if asked.attempt_id not in ("", attempt["attempt_id"]):
        return _answer(AWAY, attempt["attempt_id"])
    files = files_of(call, attempt)
    taker = ItemTaker(asked.by, asked.taken)
    if asked.size:
        piece = await files.items(asked.position, asked.size, taker, asked.wait_s)
    else:
        piece = await files.items(asked.position, 0, taker, 0.0)
        until = monotonic() + asked.wait_s
        while monotonic() < until:  # its end is waited for: who asks again hears of it
            await asyncio.sleep(ITEMS_LOOK_S)
    return _answer(RUNNING, attempt["attempt_id"], piece.size, piece.data)


async def _kept(call: RequestContext, record: StepRecord, asked: ItemsRequest) -> dict[str, Any]:
    attempt_id = record["attempt_id"]
    if asked.attempt_id not in ("", attempt_id):
        return _answer(AWAY, attempt_id)
    attempt = cast("AttemptRecord", {"host": record["host"], "attempt_id": attempt_id})
    size = min(asked.size, max(0, record["size"] - asked.position))
    if not size:
        return _answer(OVER, attempt_id, record["size"])
    piece = await files_of(call, attempt).result(record["offset"] + asked.position)
    if piece is None or not piece.data:
        return _answer(GONE, attempt_id)
    return _answer(OVER, attempt_id, record["size"], piece.data[:size])


def _answer(state: str, attempt_id: str, size: int = 0, data: bytes = b"") -> dict[str, Any]:
    return {"state": state, "attempt_id": attempt_id, "size": size, "data": data}
