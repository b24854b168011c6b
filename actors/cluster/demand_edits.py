"""Waiting jobs that are to ask for something else: judged as they would be if they were submitted now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from actorgrid.actors.ledger.answers import EditAnswer
from actorgrid.actors.ledger.record_types import JobRecord, ResourcesRecord
from actorgrid.demand import Demand, DemandEdit
from actorgrid.errors import UnknownJob, WrongState
from actorgrid.models import JobState
from actorgrid.supervisors.server import handles

from ..gpu.messages import CheckFeasible
from ..ledger.command import Command
from ..ledger.field_checks import ABSENT
from ..ledger.tables.job_changes import refuse_step, waits_no_more
from .core import choose_pool
from .messages import ChangeDemand
from .result_places import ResultFinder

FEASIBLE_S = 10.0
TRIES_MAX = 5
"""As often is it decided anew for a job that somebody else changed meanwhile."""


class DemandEditor(ResultFinder):
    """The part of ClusterManager that changes what waiting jobs ask for."""

    if TYPE_CHECKING:

        async def _check_feasible(self, resources: ResourcesRecord) -> None: ...

        async def _commit(self, command: Command) -> Any: ...

    @handles(ChangeDemand)
    async def _change_demand(self, request: ChangeDemand) -> EditAnswer:
        """Change it if it waits. What was decided for a job that another change reached first is decided anew."""
        await self._ledger.reached(request.seen)
        for tries_left in reversed(range(TRIES_MAX)):
            job: JobRecord | None = await self._ledger.read("job", {"job_id": request.edit.job_id})
            if job is None:
                raise UnknownJob(f"there is no job {request.edit.job_id}", asked=request.edit.job_id)
            if job["state"] != JobState.QUEUED:
                raise waits_no_more(job["job_id"], job["state"])
            refuse_step(job, "ask for something else")
            resources = await self._judged(job, request)
            pool = choose_pool(resources, job["pool"])
            edit = replace(request.edit, resources=resources, pool=pool, edits=job.get("edits", 0))
            try:
                answer: EditAnswer = await self._commit(edit)
            except WrongState:
                now: Mapping[str, Any] = await self._ledger.read("job", {"job_id": edit.job_id}) or {}
                if not tries_left or now.get("state") != JobState.QUEUED or now.get("edits", 0) == edit.edits:
                    raise
                continue
            return answer
        raise AssertionError("the last try returns or raises")

    async def _judged(self, job: JobRecord, request: ChangeDemand) -> ResourcesRecord:
        """What *job* is to ask for, if a host could ever give it that."""
        had = Demand.of(job["resources"])
        wanted = request.demand.of(had)
        resources = cast("ResourcesRecord", {**wanted.to_record(), "gpus": _spelled(request.demand, job, wanted)})
        edit = request.edit
        deadline = job.get("deadline") if edit.deadline is ABSENT else edit.deadline
        if deadline is None or job["depends_on"] or had.needs_at_least(wanted):
            await self._check_feasible(resources)
        else:
            limit = edit.max_execution_time_s
            limit_s = job.get("max_execution_time_s") if limit is ABSENT else limit
            await self.call("gpu_coordinator", CheckFeasible(resources, deadline, limit_s), timeout_s=FEASIBLE_S)
        return resources


def _spelled(edit: DemandEdit, job: JobRecord, wanted: Demand) -> float:
    """The GPUs as people spelled them."""
    if not wanted.gpu_count:
        return 0.0
    return job["resources"].get("gpus", wanted.gpus) if edit.gpus is None else edit.gpus
