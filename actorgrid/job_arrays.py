"""Arrays of jobs: one command, run once for each of many indexes. An array is a graph whose steps have no arrows.

Indexes are written as Slurm writes them: ``0-999``, ``1,3,5-7``, ``0-90:10``; ``%50`` behind them says how many may run
at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from actorgrid.errors import BadRequest

INDEX_MAX = 10**9
INDEXES_MAX = 100_000
"""As many as a graph has steps."""
TEXT_CHARS_MAX = 2_000
NOTE = "array"
"""The annotation of an array with its indexes: by it an index is found among the steps."""
INDEX, ARRAY_ID, COUNT = "ACTORGRID_ARRAY_INDEX", "ACTORGRID_ARRAY_ID", "ACTORGRID_ARRAY_COUNT"
_PART = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?")
_OF_THE_ARRAY = (
    "user_id",
    "name",
    "priority",
    "max_isolation_s",
    "preemptible",
    "labels",
    "notify",
    "notify_on",
    "working_dir",
    "environment",
)
_OF_EACH = (
    "gpus",
    "gpu_memory_bytes",
    "gpu_models",
    "gpu_affinity",
    "gpu_topology",
    "cpus",
    "memory_bytes",
    "retries",
    "max_execution_time_s",
    "pool",
    "gang",
    "spread",
    "min_isolation",
    "cwd",
)


@dataclass(frozen=True, slots=True)
class JobArray:
    """The indexes of an array, as text and one by one, and how many of them may run at once (0: any number)."""

    text: str
    indexes: tuple[int, ...]
    at_once: int = 0

    @classmethod
    def parse(cls, text: str) -> JobArray:
        """An array as people write it. Raises BadRequest."""
        parts, limit, at_once = text.partition("%")
        found: dict[int, None] = {}
        if len(text) > TEXT_CHARS_MAX or (limit and not (at_once.isdecimal() and 0 < int(at_once) <= INDEXES_MAX)):
            raise _none(text)
        for part in parts.split(","):
            said = _PART.fullmatch(part.strip())
            if said is None:
                raise _none(text)
            first = int(said[1])
            last, step = int(said[2] or first), int(said[3] or 1)
            if last < first or last > INDEX_MAX or not step:
                raise _none(text)
            each = range(first, last + 1, step)
            if len(each) + len(found) > INDEXES_MAX:
                raise BadRequest("the array is too large", asked=text[:80], hint=f"at most {INDEXES_MAX:,} indexes")
            found.update(dict.fromkeys(each))
        return cls(parts, tuple(found), int(at_once or 0))

    @classmethod
    def of(cls, indexes: str | Iterable[int], at_once: int = 0) -> JobArray:
        """An array of a text, or of numbers. Raises BadRequest."""
        if isinstance(indexes, str):
            array = cls.parse(indexes)
            return cls(array.text, array.indexes, at_once or array.at_once)
        listed = indexes if isinstance(indexes, range) else list(indexes)
        if isinstance(listed, range) and listed.step > 0 and len(listed) > 1:
            return cls.of(f"{listed[0]}-{listed[-1]}:{listed.step}", at_once)
        return cls.of(",".join(map(str, listed)), at_once)


def array_request(
    job: Mapping[str, Any],
    array: JobArray,
    variables: Callable[[int], Mapping[str, str]] = lambda _index: {},
) -> dict[str, Any]:
    """The body of the request for a graph that runs the command of *job* (the body of a request for one) once for each
    index, which goes on when some of them fail. *variables* gives an index further ones.

    Raises BadRequest for what the members of an array cannot have.
    """
    known = {*_OF_THE_ARRAY, *_OF_EACH, "task_id", "env", "annotations", "kind", "command", "checkpoint"}
    more = sorted(name for name, value in job.items() if name not in known and value)
    if more or job.get("kind", "command") != "command":
        raise BadRequest(
            f"an array has no {', '.join(more) or 'functions'}",
            asked=", ".join(more),
            hint="submit such jobs one by one; functions: client.map(function, indexes, durable=True)",
        )
    shared = {name: job[name] for name in _OF_EACH if name in job}
    array_id = str(job["task_id"])
    common = {ARRAY_ID: array_id, COUNT: str(len(array.indexes))}
    return {
        "graph_id": array_id,
        "on_failure": "continue",
        "in_parallel": array.at_once,
        **{name: job[name] for name in _OF_THE_ARRAY if name in job},
        "annotations": {**job.get("annotations", {}), NOTE: array.text},
        "env": {**job.get("env", {}), **common},
        "steps": [
            {
                "id": str(index),
                "command": list(job["command"]),
                "env": {INDEX: str(index), **variables(index)},
                **shared,
                **_checkpoint(job.get("checkpoint"), index),
            }
            for index in array.indexes
        ],
    }


def _checkpoint(wish: Mapping[str, Any] | None, index: int) -> dict[str, Any]:
    """The field of an index with its checkpoints: each has a directory of its own below that of the array."""
    return {} if not wish else {"checkpoint": {**wish, "path": f"{wish['path']}/{index}"}}


def step_numbers(job: Mapping[str, Any]) -> dict[int, int]:
    """The numbers of the steps that run the indexes of an array, which *job* is; none, where it is none."""
    text = (job.get("annotations") or {}).get(NOTE)
    if job.get("kind") != "graph" or not isinstance(text, str):
        return {}
    try:
        return {index: number for number, index in enumerate(JobArray.parse(text).indexes)}
    except BadRequest:
        return {}


def step_of_index(job: Mapping[str, Any], index: int) -> int | None:
    """The number of the step that runs *index* of an array, which *job* is; ``None`` where it has none, or is none."""
    return step_numbers(job).get(index)


def array_part(text: str) -> tuple[str, str] | None:
    """The array and the indexes of ``ARRAY[0-9]`` or ``ARRAY_7``; ``None`` for anything else.

    The second may be the id of a job, too: whoever has to know looks whether there is such a job.
    """
    name, bracket, rest = text.partition("[")
    if bracket:
        return (name, rest[:-1]) if name and rest.endswith("]") and len(rest) > 1 else None
    name, _, digits = text.rpartition("_")
    return (name, digits) if name and digits.isdecimal() and len(digits) <= 10 else None


def _none(text: str) -> BadRequest:
    return BadRequest(
        "these are no indexes of an array",
        asked=text[:80],
        hint="write 0-999, 1,3,5-7 or 0-90:10; with %50 behind them, at most 50 run at once",
    )
