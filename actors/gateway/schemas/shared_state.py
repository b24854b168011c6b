"""Models of what the doors take and give of the shared state, beyond ``actorgrid.state_models``."""

from __future__ import annotations

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody
from actorgrid.state_models import StateEntry


class StateQuery(RequestBody):
    """Which keys."""

    prefix: str = Field(default="", max_length=1024)
    limit: int = Field(default=1000, ge=1, le=10_000)
    behind: str = Field(default="", max_length=1024, description="only keys behind this one: the last of a page")


class WatchQuery(RequestBody):
    """Which keys, and whether to begin with what is there."""

    prefix: str = Field(default="", max_length=1024)
    initial: bool = Field(default=False, description="first send what is there")


class UsageQuery(RequestBody):
    """Prefixes of so many parts under one, and how many rows of each kind."""

    prefix: str = Field(default="", max_length=1024)
    depth: int = Field(default=1, ge=1, le=16)
    rows: int = Field(default=20, ge=1, le=1000)


class StateNamespace(AnswerBody):
    """What a namespace takes."""

    namespace: str
    keys: int
    bytes: int


class StatePrefix(AnswerBody):
    """What the keys under a prefix take."""

    prefix: str
    keys: int
    bytes: int


class StatePeer(AnswerBody):
    """Another host: bytes since this host's start, deltas that it is not known to hold, seconds since its last packet.

    ``behind`` is null where it has told nothing yet.
    """

    host_id: str
    sent_bytes: int
    received_bytes: int
    behind: int | None
    heard_s: float | None


class StateOrigin(AnswerBody):
    """A host whose writes are held here: under how many names, one for each of its starts, and how many."""

    host_id: str
    starts: int
    deltas: int


class StateUsageAnswer(AnswerBody):
    """Sizes and traffic, the largest, slowest and busiest first."""

    keys: int
    bytes: int
    namespaces: list[StateNamespace]
    prefixes: list[StatePrefix]
    peers: list[StatePeer]
    origins: list[StateOrigin]


class StateAnswer(AnswerBody):
    """Entries by key."""

    entries: list[StateEntry]
