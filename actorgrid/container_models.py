"""How a container is asked for over HTTP (a field of ``models.TaskRequest``)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from actorgrid.container_words import IMAGE_CHARS_MAX, MOUNTS_MAX, PATH_CHARS_MAX


class ContainerMount(BaseModel):
    """A path of the host that a container sees."""

    model_config = ConfigDict(extra="forbid")

    source: str = Field(max_length=PATH_CHARS_MAX, description="absolute, on the host")
    target: str = Field(max_length=PATH_CHARS_MAX, description="absolute, in the container")
    read_only: bool = False


class ContainerRequest(BaseModel):
    """The container that a command is to run in."""

    model_config = ConfigDict(extra="forbid")

    image: str = Field(max_length=IMAGE_CHARS_MAX, description="as the runtime takes it")
    runtime: Literal["apptainer", "podman", "docker"] | None = Field(
        default=None, description="None: the first that the host has, in this order"
    )
    mounts: list[ContainerMount] = Field(default_factory=list, max_length=MOUNTS_MAX)
