"""Where the results of jobs lie, told of many at once: a message for each costs more than to look it up."""

from __future__ import annotations

from collections.abc import Mapping

from actorgrid.actors.ledger.client import LedgerFollower
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.job_outcome import FINAL_STATES, deciding_attempt
from actorgrid.supervisors.server import handles

from .messages import FindResults, ResultPlace


class ResultFinder(LedgerFollower):
    """The part of ClusterManager that knows where results are: of jobs that have ended of late."""

    _recent: Mapping[str, JobRecord]

    @handles(FindResults)
    async def _find_results(self, request: FindResults) -> dict[str, ResultPlace]:
        await self._ledger.reached(request.seen)
        found: dict[str, ResultPlace] = {}
        for name in request.job_ids:
            job = self._ledger.jobs.get(name) or self._recent.get(name)
            attempt = {} if job is None or job["state"] not in FINAL_STATES else deciding_attempt(job)
            if job is not None and attempt and job.get("kind") == "function" and "members" not in attempt:
                found[name] = ResultPlace(str(job["user_id"]), str(attempt["host"]), str(attempt["attempt_id"]))
        return found
