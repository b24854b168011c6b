"""No job is lost: what was accepted is known to the end, ends once, and stays as it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorgrid.actors.ledger.commands import SubmitJobs
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.raft.messages import Entry
from actorgrid.models import JobState

from .checker import Checker, ClientCall, Host


class LostJobs(Checker):
    """Checks that every job a client was told is accepted is in every voter's ledger at the end, and has ended."""

    def __init__(self) -> None:
        self._accepted: set[str] = set()
        self._ended: dict[str, tuple[int, str]] = {}

    def answered(self, call: ClientCall, answer: Any, index: int, now_us: int) -> None:
        """Remember what was promised."""
        if isinstance(call.command, SubmitJobs) and isinstance(answer, dict):
            self._accepted.update(job["job_id"] for job in answer["jobs"])

    def applied(self, host: Host, entry: Entry, outcome: Outcome, state: Any) -> None:
        """Check that a job that ended stays as it ended."""
        for kind, id, record in outcome.changes:
            if kind != "job" or record is None:
                continue
            before = self._ended.get(id)
            # That another attempt of it had succeeded as well may still be noted.
            if before is not None and entry.index > before[0] and record["state"] != before[1]:
                self.fail(
                    "a job that had ended changed again",
                    asked=f"{id} is {record['state']} at entry {entry.index}",
                    found=f"{before[1]} at entry {before[0]}",
                )
            if JobState(record["state"]).final and before is None:
                self._ended[id] = (entry.index, record["state"])

    def finish(self, states: Mapping[int, Any], now_us: int) -> None:
        """Look for each of them."""
        for host_id, state in states.items():
            for job_id in sorted(self._accepted):
                job = state.jobs.get(job_id)
                if job is None:
                    self.fail("an accepted job is forgotten", asked=job_id, found=f"unknown on host {host_id}")
                if not JobState(job["state"]).final:
                    self.fail("an accepted job never ended", asked=job_id, found=f"{job['state']} on host {host_id}")
