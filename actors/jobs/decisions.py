"""What is told to a graph's execution of the cluster, and what it decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from actorgrid.errors import ErrorRecord

RELEASES_AT_ONCE = 256
INPUTS_AT_ONCE = 100_000
CHARS_AT_ONCE = 2 * 2**20
"""Of commands and variables. An entry takes 16 MiB, and one job has 1 MiB of them and 100,000 inputs at most."""


@dataclass(frozen=True, slots=True)
class Advance:
    """What is to be proposed: the fields of ``AdvanceGraph``."""

    releases: list[dict[str, Any]] = field(default_factory=list)
    settled: list[dict[str, Any]] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    extensions: list[dict[str, Any]] = field(default_factory=list)
    stop: bool = False
    cached: list[list[Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.releases or self.settled or self.withdrawn or self.extensions or self.stop or self.cached)


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of the graph is to be proposed."""

    state: str
    error: ErrorRecord | None


@dataclass(frozen=True, slots=True)
class ClusterCapacity:
    """What the cluster has for a graph now: *slots* that one CPU fills, the hosts that are *up*, and claims that an
    allocator made for steps that could begin (``None``: it goes by its plan alone)."""

    slots: int
    up: frozenset[str]
    claims: Callable[[Sequence[int]], dict[int, str]] | None = None


@dataclass(slots=True)
class ReleasedJob:
    """A job that is to run steps."""

    steps: list[int]
    ahead: bool
    """Whether it was released before what it takes from was over."""
    host: str = ""
    """Where it is placed, or was last; empty: nowhere yet."""
    runs: bool = False
    """Whether it holds its place now."""


class Releases:
    """The jobs that one proposal releases."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self._inputs = 0
        self._chars = 0

    def add(self, job: dict[str, Any]) -> None:
        """Release another one."""
        self.jobs.append(job)
        self._inputs += len(job["step_of"]["inputs"])
        self._chars += sum(map(len, (*job["command"], *job["env"], *job["env"].values())))

    @property
    def full(self) -> bool:
        """Whether they are so many, or so large, that others are left to the next proposal."""
        return len(self.jobs) >= RELEASES_AT_ONCE or self._inputs >= INPUTS_AT_ONCE or self._chars >= CHARS_AT_ONCE
