"""The document of a graph, as people write it in YAML or JSON, read and made a request.

Apart from the request: hosts take requests, and load no YAML for it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from actorgrid.errors import InvalidGraph

from .command_cache import with_command_cache
from .command_rounds import with_rounds
from .requests import GraphRequest

FILE_BYTES_MAX = 64 * 2**20
"""Of a file with a graph."""


def read_graph_file(path: Path) -> dict[str, Any]:
    """What a YAML or JSON file with a graph holds. Raises InvalidGraph for one that is none, or too large."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise InvalidGraph("the file is too large for a graph", asked=str(path), found=f"at most {FILE_BYTES_MAX}")
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise InvalidGraph(f"{path} cannot be read: {error.strerror}", asked=str(path)) from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise InvalidGraph(f"{path} is no YAML or JSON", found=re.sub(r"\s+", " ", str(error))[:300]) from None
    if not isinstance(document, dict):
        raise InvalidGraph(f"{path} holds no graph", found=type(document).__name__, hint="a map with the list `steps:`")
    return document


def checked_request(document: dict[str, Any], base: str, *, refresh: bool = False) -> dict[str, Any]:
    """The body of the request that a document makes, checked. *base* is the folder from which it names files;
    *refresh*: nothing is taken over from earlier graphs. Raises InvalidGraph, CyclicGraph, MissingProducer."""
    body = with_command_cache(with_rounds(document), base, refresh=refresh)
    request_of(body).to_graph()
    return body


def request_of(document: dict[str, Any]) -> GraphRequest:
    """The request that a document makes. Raises InvalidGraph, which names the place."""
    document = with_rounds(document)
    try:
        return GraphRequest.model_validate(document)
    except ValidationError as error:
        raise _named(document, error) from None


def _named(document: dict[str, Any], error: ValidationError) -> InvalidGraph:
    first = error.errors(include_url=False)[0]
    place = list(first["loc"])
    steps = document.get("steps")
    if place[:1] == ["steps"] and len(place) > 1 and isinstance(place[1], int) and isinstance(steps, list):
        own = steps[place[1]]
        id = own.get("id") if isinstance(own, dict) else None
        place = [f"step {id!r}" if id else f"step {place[1]}", *place[2:]]
    where = ".".join(str(part) for part in place)
    more = f", and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return InvalidGraph(
        f"{where}: {first['msg'].removeprefix('Value error, ')}{more}",
        asked=str(first.get("input"))[:200],
        hint="docs/graphs.md has the form; actorgrid dag plan FILE checks it",
    )
