"""Further steps of a graph that one of its steps gave: read, checked, and named after the step that gave them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from actorgrid.actors.ledger.exec_limits import check_exec
from actorgrid.actors.ledger.graph_checks import EXTENSIONS_MAX, FILES_MAX
from actorgrid.actors.ledger.graph_records import GraphFacts
from actorgrid.actors.ledger.record_types import HostRecord
from actorgrid.dag.hosts import HostCapacity, check_satisfiable
from actorgrid.dag.requests import GraphRequest
from actorgrid.errors import InvalidGraph, UnsatisfiableCost
from actorgrid.graph_extension import read_extension

from .decisions import Advance
from .graph_spec import GraphSpec, write_spec

EXTENDED_AT_ONCE = 64
"""Steps whose further steps one entry adds."""


@dataclass(frozen=True, slots=True)
class ReadExtension:
    """Further steps that may be added: the graph with them, and the files that say so."""

    spec: GraphSpec
    steps: int
    files: tuple[bytes, ...]
    """What describes them, and, if they call anything, what they run."""

    def to_record(self, parent: int, first: int) -> dict[str, Any]:
        """What the ledger is told."""
        digests = [hashlib.sha256(each).hexdigest() for each in self.files]
        return {"parent": parent, "first": first, "steps": self.steps, "file": digests[0], "files": digests}


def refuse_too_many(facts: GraphFacts, before: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> None:
    """Refuse what the ledger would not take, now or ever: the further steps in *record* behind those that the graph has
    and those that are to be proposed *before* them. Raises InvalidGraph."""
    files = {*facts["files"], *(file for each in (*before, record) for file in each["files"])}
    additions = len(facts["extensions"]) + len(before) + 1
    if additions > EXTENSIONS_MAX or len(files) > FILES_MAX:
        raise InvalidGraph(
            "the graph grows too large",
            asked=f"{additions} steps that give further ones, with {len(files)} files",
            found=f"at most {EXTENSIONS_MAX}, and {FILES_MAX} files",
            hint="have fewer steps give more steps each; does it come to an end?",
        )


class FurtherSteps:
    """Which steps of a graph are to be looked at, and what of them is to be proposed. *extended*: those whose further
    steps the ledger has."""

    def __init__(self, extended: Iterable[int]) -> None:
        self._extended = set(extended)
        self._advance: Advance | None = None
        self.open: dict[int, None] = {}
        """Steps that have succeeded, and were not looked at since."""

    def step_is(self, number: int, *, gave: bool) -> None:
        """Take note of a step; *gave*: it has succeeded, and may have given further ones."""
        if gave and number not in self._extended:
            self.open[number] = None
        else:
            self.open.pop(number, None)

    def looked_at(self, steps: Iterable[int], extensions: list[dict[str, Any]], failed: list[dict[str, Any]]) -> None:
        """These *extensions* are to be proposed, and that these have *failed*, what they gave being no steps. The rest
        of *steps* has given none."""
        for number in steps:
            self._extended.add(number)
            self.open.pop(number, None)
        if extensions or failed:
            self._advance = Advance(extensions=extensions, settled=failed)

    def take(self) -> Advance | None:
        """What is to be proposed, once."""
        found, self._advance = self._advance, None
        return found


def read_further_steps(
    spec: GraphSpec,
    parent: int,
    read: Callable[[int, int], bytes],
    hosts: Mapping[str, HostRecord],
    capacities: Sequence[HostCapacity],
) -> ReadExtension | None:
    """The further steps in what a step left; ``None`` if it has given none. Raises InvalidGraph, CyclicGraph,
    MissingProducer, UnsatisfiableCost."""
    found = read_extension(read)
    if found is None:
        return None
    plain, bundle = found
    own = spec.step(parent).id
    digest = hashlib.sha256(bundle).hexdigest() if bundle else None
    try:
        request = GraphRequest.model_validate(
            {**plain, "graph_id": spec.request.graph_id, "bundle": digest, "resources": spec.request.resources}
        )
    except (ValidationError, RecursionError) as error:
        raise InvalidGraph(f"the further steps of {own} are none", found=str(error)[:300]) from None
    request = request.model_copy(update={"steps": [_named(step, own, hosts) for step in request.steps]})
    for step in request.steps:
        check_exec(step.command, step.env)
    request.to_graph()  # by themselves first: they take from each other alone
    extended = spec.extended(request)
    if capacities:
        check_satisfiable(extended.graph, capacities)
    files = (write_spec(request), *((bundle,) if bundle else ()))
    return ReadExtension(extended, len(request.steps), files)


def _named(step: Any, parent: str, hosts: Mapping[str, HostRecord]) -> Any:
    """A step under its parent's name, as those are that it names; with its host by id."""

    def name(id: str) -> str:
        return f"{parent}/{id}"

    changed: dict[str, Any] = {
        "id": name(step.id),
        "inputs": [each.model_copy(update={"step": name(each.step)}) for each in step.inputs],
        "after": [name(each) for each in step.after],
        "when": [each.model_copy(update={"step": name(each.step)}) for each in step.when],
        "collocated": name(step.collocated) if step.collocated else "",
    }
    if step.cache is not None:
        changed["cache"] = step.cache.model_copy(update={"takes": [name(each) for each in step.cache.takes]})
    if step.node and step.node not in hosts:
        ids = [host_id for host_id, host in hosts.items() if host["hostname"] == step.node]
        if len(ids) != 1:
            raise UnsatisfiableCost(
                f"step {name(step.id)} is to run on a host that is not there",
                asked=step.node,
                hint="actorgrid hosts lists them, with their ids",
                step=name(step.id),
            )
        changed["node"] = ids[0]
    return step.model_copy(update=changed)
