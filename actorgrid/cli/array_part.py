"""Some indexes of an array, as people name them: ``JOB[3]``, ``JOB[0-9]``, ``JOB_3``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actorgrid.client.http import AdminHttp, segment
from actorgrid.errors import BadRequest, UnknownJob
from actorgrid.job_arrays import array_part, step_numbers

from .lookup import find_job


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """Indexes of an array that is there."""

    array_id: str
    indexes: str

    def ask(self, http: AdminHttp, verb: str) -> dict[str, Any]:
        """``cancel`` or ``retry`` them. Raises NotFound, WrongState."""
        path = f"/api/graphs/{segment(self.array_id)}/indexes/{verb}"
        answer: dict[str, Any] = http.post(path, {"indexes": self.indexes}, repeat=verb == "cancel")
        return answer


def find_part(http: AdminHttp, text: str) -> ArrayPart | None:
    """The part of an array that *text* names; ``None``: it may be a job. Raises UnknownJob, BadRequest for ``JOB[...]``
    where JOB is no array."""
    named = array_part(text)
    if named is None:
        if "[" in text:
            raise BadRequest("that is no part of an array", asked=text[:80], hint="write JOB[3] or JOB[0-9,20]")
        return None
    by_brackets = "[" in text
    if not by_brackets:
        try:
            http.get(f"/api/jobs/{segment(text)}")
            return None  # a job may be called so
        except UnknownJob:
            pass
    try:
        job = find_job(http, named[0])
    except (UnknownJob, BadRequest):
        if by_brackets:
            raise
        return None
    if not step_numbers(job):
        if by_brackets:
            raise BadRequest(f"{job['job_id']} is no array", asked=text[:80], hint="submit --array 0-9 makes one")
        return None
    return ArrayPart(str(job["job_id"]), named[1])
