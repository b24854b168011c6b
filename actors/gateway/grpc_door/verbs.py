"""Which request of the HTTP API each method of the gRPC API is: the one table that both the door and its tests read.

What a method may, what it is refused with and how often it may be asked is decided where that request is served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

UNARY_S = 60.0
"""A request whose client sets no deadline is given up after this long, and the time that it says it waits."""


@dataclass(frozen=True, slots=True)
class HttpVerb:
    """One request. Parts of *path* in braces are fields of the message; the others go where *place* says."""

    method: Literal["GET", "POST"]
    path: str
    place: Literal["query", "body"] = "query"


@dataclass(frozen=True, slots=True)
class EventVerb:
    """A stream of what the ledger says: changes of *kind*, or of all."""

    kind: str = ""
    path: str = "/api/events"


@dataclass(frozen=True, slots=True)
class StateVerb:
    """A stream of entries of the shared state."""

    path: str = "/api/state-watch"


@dataclass(frozen=True, slots=True)
class OutputVerb:
    """A stream of a job's output."""

    path: str = "/api/jobs/{job_id}/logs"
    job_path: str = "/api/jobs/{job_id}"


@dataclass(frozen=True, slots=True)
class ChatVerb:
    """A stream of what a model answers: begun at *begin_path*, read at *path*."""

    path: str = "/api/token-streams/{stream_id}"
    begin_path: str = "/api/token-streams"


Verb = HttpVerb | EventVerb | StateVerb | OutputVerb | ChatVerb

VERBS: Final[dict[str, Verb]] = {
    "Jobs.Submit": HttpVerb("POST", "/api/jobs", "body"),
    "Jobs.Get": HttpVerb("GET", "/api/jobs/{job_id}"),
    "Jobs.List": HttpVerb("GET", "/api/jobs"),
    "Jobs.Cancel": HttpVerb("POST", "/api/jobs/{job_id}/cancel"),
    "Jobs.Logs": OutputVerb(),
    "Jobs.Watch": EventVerb("job"),
    "Cluster.Get": HttpVerb("GET", "/api/cluster"),
    "Cluster.ListHosts": HttpVerb("GET", "/api/hosts"),
    "Cluster.ListGpus": HttpVerb("GET", "/api/gpus"),
    "Cluster.Watch": EventVerb(),
    "State.Get": HttpVerb("GET", "/api/state/{key}"),
    "State.List": HttpVerb("GET", "/api/state"),
    "State.Put": HttpVerb("POST", "/api/state/{key}", "body"),
    "State.Watch": StateVerb(),
    "Locks.List": HttpVerb("GET", "/api/locks"),
    "Locks.Acquire": HttpVerb("POST", "/api/locks/{name}/acquire", "body"),
    "Locks.Renew": HttpVerb("POST", "/api/locks/{name}/renew", "body"),
    "Locks.Release": HttpVerb("POST", "/api/locks/{name}/release", "body"),
    "Services.List": HttpVerb("GET", "/api/services"),
    "Services.Get": HttpVerb("GET", "/api/services/{name}"),
    "Services.Scale": HttpVerb("POST", "/api/services/{name}/scale", "body"),
    "Services.Watch": EventVerb("service"),
    "Services.Chat": ChatVerb(),
}
"""By service and method."""
