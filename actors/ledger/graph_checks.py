"""What makes well formed what commands say of graphs: a graph, the jobs of its steps, how these ended."""

from typing import Annotated, Any

from actorgrid.digests import is_digest
from actorgrid.errors import BadRequest

from .field_checks import (
    Check,
    Plain,
    check_fields,
    is_job_id,
    is_number,
    is_table,
    is_text,
    is_texts,
    is_truth,
    is_whole,
    refused,
)
from .record_checks import JOB_CHECKS, check_resources

STEPS_MAX = 100_000
"""Of a graph."""
FILES_MAX = 1_000
"""Of a graph."""
RELEASES_MAX = 1_000
"""Jobs that one entry releases."""
TOGETHER_MAX = 256
"""Steps that one job runs."""
EXTENSIONS_MAX = 1_000
"""Of a graph."""
WORD_CHARS_MAX = 256
STRATEGY_CHARS_MAX = 100
SETTLED = ("waiting", "succeeded", "failed", "skipped")
FINAL = ("succeeded", "failed", "cancelled", "lost")


def is_step_number(value: Any) -> bool:
    """The number of a step."""
    return is_whole(value) and value < STEPS_MAX


def is_word(value: Any) -> bool:
    """What a step may say to its graph."""
    if isinstance(value, str):
        return len(value) <= WORD_CHARS_MAX
    return value is None or isinstance(value, bool) or is_number(value)


def is_results(value: Any) -> bool:
    """How the steps of one attempt ended."""
    return isinstance(value, list) and len(value) <= TOGETHER_MAX and all(map(_is_result, value))


def _is_result(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and is_truth(value.get("ok"))
        and is_whole(value.get("offset"))
        and is_whole(value.get("size"))
        and is_number(value.get("took_s"))
        and is_word(value.get("word"))
        and ("digest" not in value or is_digest(value["digest"]))
        and value.keys() <= {"ok", "offset", "size", "took_s", "word", "digest"}
    )


def is_steps_run(value: Any) -> bool:
    """The steps that a job runs: number, run, and the place of the call in the payload."""
    return (
        isinstance(value, list)
        and 1 <= len(value) <= TOGETHER_MAX
        and all(
            isinstance(part, list) and len(part) == 4 and all(map(is_whole, part)) and is_step_number(part[0])
            for part in value
        )
        and len({part[0] for part in value}) == len(value)
    )


def is_step_numbers(value: Any) -> bool:
    """Numbers of steps, none twice."""
    return (
        isinstance(value, list)
        and len(value) <= STEPS_MAX
        and all(map(is_step_number, value))
        and len(set(value)) == len(value)
    )


def is_cached_step(value: Any) -> bool:
    """A step of another graph: its graph, and its number there."""
    return isinstance(value, list) and len(value) == 2 and is_job_id(value[0]) and is_step_number(value[1])


def is_cached_steps(value: Any) -> bool:
    """Steps that take a result over: number, graph, number there; none twice."""
    return (
        isinstance(value, list)
        and len(value) <= STEPS_MAX
        and all(isinstance(each, list) and len(each) == 3 for each in value)
        and all(is_step_number(step) and is_job_id(graph) and is_step_number(there) for step, graph, there in value)
        and len({each[0] for each in value}) == len(value)
    )


_GRAPH: dict[str, Check] = {
    "files": lambda value: isinstance(value, list) and 1 <= len(value) <= FILES_MAX and all(map(is_digest, value)),
    "steps": lambda value: is_whole(value) and 1 <= value <= STEPS_MAX,
    "strategy": lambda value: isinstance(value, str) and len(value) <= STRATEGY_CHARS_MAX,
    "on_failure": lambda value: value in ("fail_fast", "continue"),
}
_STEP_OF: dict[str, Check] = {
    "graph_id": is_job_id,
    "steps": is_steps_run,
    "inputs": is_step_numbers,
    "order": is_whole,
}
STREAMS_SINCE = 10
"""The version from which a step may run beside those whose items it takes."""
_STEP_OF_MAY: dict[str, Check] = {"tells": is_truth, "puts_back": is_cached_step}
_STREAMS: dict[str, Check] = {"streams": is_step_numbers}
_SETTLED: dict[str, Check] = {"step": is_step_number, "state": lambda value: value in SETTLED}
_STEP_FIELDS = {**_STEP_OF, **_STEP_OF_MAY, **_STREAMS}
_SETTLED_MAY: dict[str, Check] = {"error": is_table, "same_as": is_step_number}
_EXTENSION: dict[str, Check] = {
    "parent": is_step_number,
    "first": is_step_number,
    "steps": lambda value: is_whole(value) and 1 <= value <= STEPS_MAX,
    "file": is_digest,
    "files": lambda value: isinstance(value, list) and len(value) <= FILES_MAX and all(map(is_digest, value)),
}


def steps_of(job: Plain) -> Plain | None:
    """The steps of a graph that a job runs; ``None`` for a job that runs none.

    What hosts of the version before took into a job unread may be anything, so it is looked at again.
    """
    found = job.get("step_of")
    if not isinstance(found, dict) or not _STEP_OF.keys() <= found.keys() <= _STEP_FIELDS.keys():
        return None
    return found if all(check(found[name]) for name, check in _STEP_FIELDS.items() if name in found) else None


def check_graph(job: object) -> None:
    """Check a graph that is submitted. Raises BadRequest that names the field; so do all of these."""
    if not isinstance(job, dict) or not isinstance(job.get("graph"), dict):
        raise refused("a graph is a job with the field 'graph'", found=str(job)[:200])
    check_fields("graph", job, {"job_id": is_job_id}, JOB_CHECKS)
    check_fields("graph", job["graph"], _GRAPH, {})
    _no_more("graph", job["graph"], _GRAPH)
    if "." in job["job_id"]:
        raise refused("the id of a graph has no dots", found=job["job_id"])


def releases_streams(job: object) -> bool:
    """Whether a job that is released takes items of steps that run beside it."""
    found = job.get("step_of") if isinstance(job, dict) else None
    return isinstance(found, dict) and "streams" in found


def check_release(job: object, version: int) -> None:
    """Check a job that is to run steps of a graph, in an entry of that *version*."""
    if not isinstance(job, dict) or not isinstance(job.get("step_of"), dict):
        raise refused("what is released is a job with the field 'step_of'", found=str(job)[:200])
    must: dict[str, Check] = {"job_id": is_job_id, "resources": is_table}
    check_fields("release", job, must, {**JOB_CHECKS, "near": is_text, "not_before": is_number})
    check_resources(job["resources"])
    check_fields("resources", job["resources"], {}, {"hosts": is_texts})
    may = _STEP_OF_MAY if version < STREAMS_SINCE else {**_STEP_OF_MAY, **_STREAMS}
    check_fields("step_of", job["step_of"], _STEP_OF, may)
    _no_more("step_of", job["step_of"], {**_STEP_OF, **may})
    if len(job["step_of"]["steps"]) > 1 and job["resources"].get("gang", 1) != 1:
        raise refused("a gang runs one step", found=str(job["step_of"]["steps"])[:200])


def check_settled(settled: object) -> None:
    """Check what is decided about a step without running it."""
    if not isinstance(settled, dict):
        raise refused("what is settled is a table", found=str(settled)[:200])
    check_fields("settled", settled, _SETTLED, _SETTLED_MAY)
    _no_more("settled", settled, {**_SETTLED, **_SETTLED_MAY})


def check_extension(extension: object) -> None:
    """Check further steps of a graph."""
    if not isinstance(extension, dict):
        raise refused("an extension is a table", found=str(extension)[:200])
    check_fields("extension", extension, _EXTENSION, {})
    _no_more("extension", extension, _EXTENSION)


def _no_more(what: str, given: Plain, known: dict[str, Check]) -> None:
    for name in given:
        if name not in known:
            raise BadRequest(f"{what} has no field {name!r}", found=f"known: {', '.join(sorted(known))}")


StepNumbers = Annotated[list[int], is_step_numbers]
GraphJob = Annotated[Plain, lambda value: isinstance(value, dict)]
Releases = Annotated[list[Plain], lambda value: isinstance(value, list) and len(value) <= RELEASES_MAX]
Settled = Annotated[list[Plain], lambda value: isinstance(value, list) and len(value) <= STEPS_MAX]
CachedSteps = Annotated[list[list[Any]], is_cached_steps]
Extensions = Annotated[list[Plain], lambda value: isinstance(value, list) and len(value) <= EXTENSIONS_MAX]
StepResults = Annotated[list[Plain], is_results]
Withdrawn = Annotated[list[str], lambda value: isinstance(value, list) and all(map(is_job_id, value))]
GraphEnd = Annotated[str, lambda value: value in FINAL]
