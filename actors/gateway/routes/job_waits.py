"""Wait for several jobs at once, until all have ended or one has."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

from actorgrid.access import Right
from actorgrid.actors.cluster.messages import GetJob
from actorgrid.actors.gateway.schemas.jobs import JobsWaited, JobsWaitRequest
from actorgrid.actors.gateway.server.rights import check_owner, unknown_job
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.errors import UnknownJob
from actorgrid.models import JobState

ROUTES = RouteTable(Route)
ANSWER_S = 10.0
RECHECK_S = 2.0
"""How often states are asked for even where nothing was told of a change."""


@ROUTES.add(
    "POST", "/api/jobs/wait", JobsWaited, "jobs", Right.LIST_JOBS, request=JobsWaitRequest, errors=(UnknownJob,)
)
async def post_wait(call: RequestContext) -> Any:
    """Wait for up to 1,000 jobs: until all have ended, or with any one of them, or wait_s are over."""
    wanted = call.body_as(JobsWaitRequest)
    loop = asyncio.get_running_loop()
    until = loop.time() + wanted.wait_s
    states: dict[str, str] = {}
    with ExitStack() as watching:
        watches = {name: watching.enter_context(call.app.hub.watch("job", name)) for name in set(wanted.job_ids)}
        open_ones = list(watches)
        while True:
            for job_id in open_ones:
                job = await call.ask("cluster_manager", GetJob(job_id, seen=call.seen), ANSWER_S)
                check_owner(call, str(job["user_id"]), unknown_job(job_id))
                states[job_id] = str(job["state"])
            open_ones = [name for name in watches if not JobState(states[name]).final]
            done = not open_ones or (wanted.any and len(open_ones) < len(watches))
            left_s = until - loop.time()
            if done or left_s <= 0 or call.app.stopping:
                jobs = [{"job_id": name, "state": states[name]} for name in dict.fromkeys(wanted.job_ids)]
                return {"jobs": jobs, "done": done}
            # For all of them it is enough to wait for the first: it has to end as well.
            looked_at = open_ones if wanted.any else open_ones[:1]
            waits = [asyncio.ensure_future(watches[name].wait(min(left_s, RECHECK_S))) for name in looked_at]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()
            if not wanted.any:
                open_ones = open_ones[:1]
