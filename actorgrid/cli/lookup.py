"""Which job a person means: a whole id, or the beginning of one."""

from __future__ import annotations

from typing import Any

from actorgrid.client.http import AdminHttp, segment
from actorgrid.errors import BadRequest, NotFound, UnknownJob, WrongState
from actorgrid.job_arrays import step_of_index

MAX_LISTED = 1000
SHOWN = 5


def find_job(http: AdminHttp, text: str) -> dict[str, Any]:
    """Find the job with that id, else the only one whose id begins so.

    Raises UnknownJob (with the nearest ids) or BadRequest when several begin so.
    """
    try:
        job: dict[str, Any] = http.get(f"/api/jobs/{segment(text)}")
        return job
    except UnknownJob as error:
        missing = error
    member = _member_of_array(http, text)
    if member is not None:
        return member
    found: dict[str, Any] = {"jobs": [], "total": 0}
    if text:
        found = http.get("/api/jobs", prefix=text, limit=SHOWN)
    matches, count = found["jobs"], found["total"]
    if len(matches) == 1:
        job = matches[0]
        return job
    if matches:
        shown = ", ".join(f"{job['job_id']} ({job['name']}, {job['state']})" for job in matches[:SHOWN])
        more = f" and {count - SHOWN} more" if count > SHOWN else ""
        raise BadRequest(
            f"{count} jobs begin with {text!r}", asked=text, found=shown + more, hint="write more of the id"
        )
    jobs = http.get("/api/jobs", limit=MAX_LISTED)["jobs"]
    raise UnknownJob(missing.message, asked=text, found=missing.found, hint=_nearest(text, jobs))


def _member_of_array(http: AdminHttp, text: str) -> dict[str, Any] | None:
    """The job that runs an index of an array, where *text* is ``ARRAY_INDEX``. Raises NotFound, WrongState."""
    name, _, digits = text.rpartition("_")
    if not name or not digits.isdecimal() or len(digits) > 10:
        return None
    try:
        array = find_job(http, name)
    except (UnknownJob, BadRequest):
        return None
    number = step_of_index(array, int(digits))
    if array.get("kind") != "graph" or number is None:
        raise NotFound(f"{name} has no index {digits}", asked=text, hint=f"actorgrid dag show {name} lists them")
    path = f"/api/graphs/{segment(array['job_id'])}/steps"
    step = http.get(path, first=number, limit=1)["steps"][0]
    if not step["job_id"]:
        raise WrongState(
            f"index {digits} of {name} has not begun",
            asked=text,
            found=f"it is {step['state']}",
            hint=f"what an array can be asked as a whole, it can be asked now: {name}",
        )
    job: dict[str, Any] = http.get(f"/api/jobs/{segment(step['job_id'])}")
    return job


def _nearest(text: str, jobs: list[dict[str, Any]]) -> str:
    import difflib

    ids = [job["job_id"] for job in jobs]
    close = difflib.get_close_matches(text, ids, n=3, cutoff=0.6)
    if not close and text:
        heads = {identity[: len(text)]: identity for identity in reversed(ids)}
        close = [heads[head] for head in difflib.get_close_matches(text, heads, n=3, cutoff=0.6)]
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "actorgrid ps --all lists them" if ids else "there are no jobs yet: actorgrid run -- COMMAND"


def short_ids(ids: list[str], least: int = 8) -> dict[str, str]:
    """Each id by its shortest beginning, of at least *least* letters, that no other here shares."""
    ordered = sorted(set(ids))
    shown = {}
    for place, identity in enumerate(ordered):
        shared = 0
        for other in ordered[max(0, place - 1) : place] + ordered[place + 1 : place + 2]:
            common = 0
            while common < min(len(identity), len(other)) and identity[common] == other[common]:
                common += 1
            shared = max(shared, common)
        shown[identity] = identity[: max(least, shared + 1)]
    return shown
