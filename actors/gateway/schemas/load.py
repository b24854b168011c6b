"""Answers of the routes about the load of hosts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody


class LoadSampleAnswer(AnswerBody):
    """A load that was heard of."""

    age_s: float
    load: float


class LoadReading(AnswerBody):
    """What a host read of itself."""

    at: float
    cpus: int
    cpu: float
    memory: float
    gpu: float | None = None
    attempts: int
    leases: int
    waiting: int


class HostLoadAnswer(AnswerBody):
    """The load of a host, as the answering host heard of it; in requests, of which a CPU serves one."""

    host: str
    hostname: str
    state: str = Field(description="known; stale: too old to count; unknown; away: not reachable, draining or not up")
    age_s: float | None = None
    load: float | None = None
    expected: float | None = Field(None, description="what is expected now: smoothed, with its trend")
    trend_per_s: float | None = None
    reading: LoadReading | None = None
    history: list[LoadSampleAnswer] = []


class LoadAnswer(AnswerBody):
    """The load of all hosts."""

    hosts: list[HostLoadAnswer]


class RebalanceRequest(RequestBody):
    """Which hosts to empty beside those that are overloaded, and whether to do it."""

    exclude: list[Annotated[str, Field(max_length=128)]] = Field(
        [], max_length=64, description="ids of hosts that workers are to leave in any case"
    )
    dry_run: bool = Field(True, description="only say what would be done")


class LeaseMoveAnswer(AnswerBody):
    """A worker that is to leave its host."""

    lease_id: str
    home: str
    host: str
    to: str
    why: str
    done: bool


class RebalanceAnswer(AnswerBody):
    """What is to move off which hosts."""

    overloaded: list[str]
    moves: list[LeaseMoveAnswer]
    stays: int
    dry_run: bool
