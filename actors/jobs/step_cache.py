"""What earlier graphs of a user gave, by what was called: so that a step that is the same need not run.

The key of a step is the digest of its call, which the client made (``actorgrid/client/cache_keys.py``), of what the
steps gave from which it takes, and of what it finds around it: the Python version, the environment, the working
directory, variables. It says nothing of hosts, CPUs or GPUs.

The index is made from what the ledger has anyway: the steps of the user's graphs that are known still, the newest
first. So nothing is kept twice, a new leader makes it anew, and what one user ran is never found by another: the
ledger itself refuses to take a result over from a graph of somebody else.

No I/O, clock or dice. Bounds: ``STEPS_MAX`` steps of ``GRAPHS_MAX`` graphs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgpack

from actorgrid.actors.ledger.graph_records import StepRecord

from .graph_spec import GraphSpec

GRAPHS_MAX = 32
"""Graphs of a user that are looked through."""
STEPS_MAX = 200_000
"""Steps of them."""


class CachedStep(NamedTuple):
    """A step of another graph that has succeeded, with its record."""

    graph_id: str
    step: int
    record: StepRecord


class StepCache:
    """Steps by their keys. One graph's: what it may take over."""

    def __init__(self) -> None:
        self._steps: dict[bytes, CachedStep] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, spec: GraphSpec, graph_id: str, records: Mapping[int, StepRecord]) -> None:
        """Have the steps of a graph that have succeeded; those that are there already stay."""
        digest_of = _digests_in(records)
        for number, record in records.items():
            if len(self._steps) >= STEPS_MAX:
                return
            if record["state"] != "succeeded" or "same_as" in record or not record.get("digest"):
                continue
            key = step_key(spec, number, digest_of) if number < len(spec.graph) else None
            if key is not None:
                self._steps.setdefault(key, CachedStep(graph_id, number, record))

    def keep_only(self, attempts: Mapping[str, Collection[str]]) -> None:
        """Forget the steps whose results are not there: *attempts* are kept, by host."""
        self._steps = {
            key: each
            for key, each in self._steps.items()
            if each.record["attempt_id"] in attempts.get(each.record["host"], ())
        }

    def attempts(self) -> dict[str, list[str]]:
        """The attempts whose results are to be there, by host."""
        found: dict[str, dict[str, None]] = {}
        for each in self._steps.values():
            found.setdefault(each.record["host"], {})[each.record["attempt_id"]] = None
        return {host: list(attempts) for host, attempts in found.items()}

    def find(self, spec: GraphSpec, number: int, records: Mapping[int, StepRecord]) -> CachedStep | None:
        """The step whose result *number* may take over, as *records* are; ``None``: it has to run."""
        request = spec.step(number)
        if request.cache is None or request.cache.refresh:
            return None
        key = step_key(spec, number, _digests_in(records))
        return None if key is None else self._steps.get(key)


NO_STEPS = StepCache()


def step_key(spec: GraphSpec, number: int, digest_of: Callable[[int], str | None]) -> bytes | None:
    """What a step is found by; ``None`` for one that is not kept, or takes what has no digest."""
    step, request = spec.step(number), spec.request
    if step.cache is None:
        return None
    taken = []
    for id in step.cache.takes:
        producer = spec.graph.number.get(id)
        digest = None if producer is None else digest_of(producer)
        if digest is None:
            return None
        taken.append(digest)
    around = [request.python, request.environment, request.working_dir, _pairs(request.env), _pairs(step.env), step.cwd]
    # What nobody asked for its word has said none: it is not there for who does.
    packed: bytes = msgpack.packb(
        [2, step.cache.call, taken, around, number in spec.graph.asked_words], use_bin_type=True
    )
    return hashlib.sha256(packed).digest()


def _pairs(variables: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(variables.items())


def _digests_in(records: Mapping[int, StepRecord]) -> Callable[[int], str | None]:
    def digest_of(number: int) -> str | None:
        record = records.get(number)
        return None if record is None or record["state"] != "succeeded" else record.get("digest")

    return digest_of
