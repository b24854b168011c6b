"""What the routes of AMD's partitions take and answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody
from actorgrid.sizes import NAME_MAX


class PartitionRequest(RequestBody):
    """How a GPU is to be cut."""

    gpu: str = Field(max_length=NAME_MAX, description="its place on the bus, without the function: 0000:0c:00")
    change: Literal["compute", "memory"]
    mode: str = Field(pattern=r"^(SPX|DPX|TPX|QPX|CPX|NPS[1248])$", description="SPX to CPX, or NPS1 to NPS8")


class PartitionRow(AnswerBody):
    """A part of a GPU; the one of a GPU that is whole."""

    uuid: str
    index: int
    memory_bytes: int
    jobs: list[str]


class PartitionedGpuRow(AnswerBody):
    """A GPU that can be cut."""

    host: str
    gpu: str
    model: str
    mode: str = Field(description="SPX (whole), or as CPX/NPS4")
    parts: list[PartitionRow]


class PartitionsAnswer(AnswerBody):
    """All GPUs of AMD's that can be cut, of hosts that answered."""

    gpus: list[PartitionedGpuRow]


class PartitionSet(AnswerBody):
    """It is cut so now."""

    host: str
    gpu: str
    mode: str
