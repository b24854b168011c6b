"""How checkpoints are asked for over HTTP (a field of ``models.TaskRequest``)."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from actorgrid.checkpoints import EVERY_MAX_S, EVERY_MIN_S
from actorgrid.output_paths import OUTPUT_PATH_BYTES_MAX, checked

CheckpointPath = Annotated[str, Field(max_length=OUTPUT_PATH_BYTES_MAX), AfterValidator(checked)]


class CheckpointRequest(BaseModel):
    """How checkpoints of a job are made, from which its next attempt goes on (docs/jobs.md)."""

    model_config = ConfigDict(extra="forbid")

    path: CheckpointPath | None = Field(
        default=None,
        description="a directory, relative to the job's, whose content follows the job; without it, its work makes"
        " checkpoints itself, as an actor does",
    )
    every_s: float | None = Field(
        default=None,
        ge=EVERY_MIN_S,
        le=EVERY_MAX_S,
        description="seconds from one to the next; without it, one is taken when .checkpoint-ready is written there",
    )

    @model_validator(mode="after")
    def _of_a_directory(self) -> CheckpointRequest:
        if self.every_s is not None and self.path is None:
            raise ValueError("every_s is about a directory: give path as well")
        return self
