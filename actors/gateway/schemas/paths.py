"""What the routes of paths between hosts take and give."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody


class PathAnswer(AnswerBody):
    """One path from a host."""

    path: str = Field(description="tls: the link's one connection; tls_streams: several, for large things; rdma")
    available: bool
    reason: str = Field(description="why it is not there, or failed last")
    mb_per_s: float | None = Field(
        description="of its transfers, the newest weighing most; null: none was large enough"
    )
    transfers: int
    bytes: int


class PeerPathsAnswer(AnswerBody):
    """The paths from one host."""

    host: str
    used: str = Field(description="what large things come over; empty: there is no link")
    paths: list[PathAnswer]


class PathsAnswer(AnswerBody):
    """The paths to the host that answers."""

    here: str
    peers: list[PeerPathsAnswer] = Field(description="the first 256 by id")


class BenchRequest(RequestBody):
    """What to measure."""

    to: Annotated[str, Field(max_length=128, description="the id of the other host, which sends the bytes")]
    path: Annotated[str, Field(max_length=32, description="tls, tls_streams or rdma")]
    bytes: int = Field(64 * 2**20, ge=1, le=256 * 2**20, description="as many within 10 s")
    trips: int = Field(200, ge=1, le=10_000, description="as many within 5 s")


class TransferCostAnswer(AnswerBody):
    """What a transfer took of the processors of both ends."""

    cpu_s_per_gb_here: float = Field(description="seconds of CPU of the process that reads, for 1e9 bytes")
    cpu_s_per_gb_there: float
    cores_here: int
    cores_there: int
    same_machine: bool = Field(description="both ends share their cores")
    cpu_bound_mb_per_s: float = Field(description="as fast as these cores could do it if they did nothing else")


class BenchAnswer(AnswerBody):
    """What was measured."""

    path: str
    round_trip_us: float = Field(description="the median, of 64 bytes and their echo")
    round_trip_p99_us: float
    trips: int
    mb_per_s: float
    bytes: int
    unavailable: str = Field(description="why there is no such path; the figures are 0 then")
    cost: TransferCostAnswer | None = Field(None, description="of the bytes; null: the other host does not say")
