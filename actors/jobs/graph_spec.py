"""The file that describes a graph: the request as it was accepted, and the checked graph that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgpack
from pydantic import ValidationError

from actorgrid.actors.ledger.graph_records import GraphFacts
from actorgrid.dag.model import Graph
from actorgrid.dag.requests import GraphRequest, StepRequest
from actorgrid.errors import InvalidGraph

SPEC_BYTES_MAX = 256 * 2**20
FORMAT = 1


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """A graph with all that its steps run. ``bundles``: for each step the number of the file, among the graph's, that
    has its call."""

    request: GraphRequest
    graph: Graph
    bundles: tuple[str, ...]

    def step(self, number: int) -> StepRequest:
        """A step as it was asked for."""
        return self.request.steps[number]

    def streams_of(self, number: int) -> frozenset[int]:
        """The steps whose items a step takes as they come."""
        return frozenset(self.graph.number[id] for id in self.request.steps[number].streams)

    def extended(self, more: GraphRequest) -> GraphSpec:
        """The graph with the steps of another one behind its own. Raises what ``Graph`` raises, InvalidGraph too."""
        steps = [*self.request.steps, *more.steps]
        request = self.request.model_copy(update={"steps": steps})
        bundles = (*self.bundles, *((more.bundle or "",) * len(more.steps)))
        return replace(self, request=request, graph=request.to_graph(), bundles=bundles)


def spec_of(request: GraphRequest) -> GraphSpec:
    """The spec of a request. Raises InvalidGraph, CyclicGraph, MissingProducer."""
    return GraphSpec(request, request.to_graph(), (request.bundle or "",) * len(request.steps))


def write_spec(request: GraphRequest) -> bytes:
    """The bytes of the file."""
    plain = request.model_dump(mode="json", exclude_defaults=True, by_alias=False)
    packed: bytes = msgpack.packb({"format": FORMAT, "graph": plain}, use_bin_type=True)
    return packed


def read_request(data: bytes) -> GraphRequest:
    """The request in such a file. Raises InvalidGraph for bytes that are none."""
    try:
        if len(data) > SPEC_BYTES_MAX:
            raise ValueError(f"{len(data)} bytes")
        found: Any = msgpack.unpackb(data, raw=False)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("another format")
        return GraphRequest.model_validate(found.get("graph"))
    except (ValueError, ValidationError, msgpack.UnpackException, RecursionError) as error:
        raise InvalidGraph(
            "the file that describes the graph cannot be read",
            found=f"{len(data)} bytes: {str(error)[:200]}",
            hint="submit the graph again",
        ) from None


def read_spec(contents: Sequence[bytes]) -> GraphSpec:
    """The spec in the first of these files, with the steps that the others add. Raises InvalidGraph, CyclicGraph,
    MissingProducer."""
    spec = spec_of(read_request(contents[0]))
    for content in contents[1:]:
        spec = spec.extended(read_request(content))
    return spec


def spec_files(facts: GraphFacts) -> tuple[str, ...]:
    """The digests of the files that ``read_spec`` takes, in order."""
    return (facts["files"][0], *(each["file"] for each in facts["extensions"]))
