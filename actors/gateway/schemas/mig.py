"""What the routes of MIG instances take and answer."""

from __future__ import annotations

from pydantic import Field

from actorgrid.device_words import MIG_PROFILE_PATTERN
from actorgrid.models import AnswerBody, RequestBody
from actorgrid.sizes import NAME_MAX


class MigRequest(RequestBody):
    """The instance that is to be made."""

    gpu: str = Field(max_length=NAME_MAX, description="the UUID of the whole GPU")
    profile: str = Field(min_length=1, pattern=MIG_PROFILE_PATTERN, description="as 3g.40gb")


class MigInstanceRow(AnswerBody):
    """An instance."""

    uuid: str
    index: int | None = None
    """Its place among the devices of its host; ``None``: it is given to nobody."""
    profile: str
    memory_bytes: int
    made_for_work: bool
    """Whether it goes again when no work has it (gpus.mig=dynamic)."""
    jobs: list[str]


class MigProfileRow(AnswerBody):
    """A kind of instance."""

    name: str
    memory_bytes: int
    most: int
    """How many of it an empty GPU has room for."""
    room: int | None = None
    """How many there is room for now; ``None``: it is known once MIG is on."""


class MigGpuRow(AnswerBody):
    """A GPU that can be cut."""

    host: str
    gpu: str
    index: int | None = None
    """Its place among the devices of its host; ``None``: it is cut, and its instances have places."""
    model: str
    pcie_bus_id: str | None = None
    enabled: bool
    pending: bool
    """Whether MIG will be on after a reset."""
    jobs: list[str]
    """Who has it, or instances of it."""
    instances: list[MigInstanceRow]
    profiles: list[MigProfileRow]


class MigGpusAnswer(AnswerBody):
    """All GPUs that can be cut, of hosts that answered."""

    gpus: list[MigGpuRow]


class MigCreated(AnswerBody):
    """It is there now."""

    host: str
    gpu: str
    instance: str


class MigDestroyed(AnswerBody):
    """It is gone."""

    host: str
    instance: str
