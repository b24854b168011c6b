"""Work that is a function by name, a command, or a command in a container."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from actorgrid.container_models import ContainerMount

from .base import WorkArguments, WorkPlan, WorkType
from .targets import Target, find_target


class FunctionArguments(WorkArguments):
    """A function by its name, and what it is called with."""

    target: Target
    args: list[Any] = Field(default_factory=list, max_length=1_000)
    kwargs: dict[str, Any] = Field(default_factory=dict, max_length=1_000)


class FunctionWork(WorkType):
    """Calls a function."""

    name = "function"
    summary = "call a function by its name, package.module:function"
    arguments = FunctionArguments

    def plan(self, arguments: FunctionArguments) -> WorkPlan:
        """Call it where it can be imported."""
        return WorkPlan(call_target, (arguments.target, arguments.args, arguments.kwargs))


def call_target(target: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What the function of that name gives."""
    return find_target(target)(*args, **kwargs)


class CommandArguments(WorkArguments):
    """A command, as a list of words."""

    command: list[str] = Field(min_length=1, max_length=4_096)
    env: dict[str, str] = Field(default_factory=dict, max_length=1_024)
    cwd: str | None = Field(default=None, max_length=4_096, description="a directory of the host, from /")


class CommandWork(WorkType):
    """Runs a command."""

    name = "command"
    summary = "run a command"
    arguments = CommandArguments

    def plan(self, arguments: CommandArguments) -> WorkPlan:
        """Run it as a job."""
        options = {"env": arguments.env} if arguments.env else {}
        return WorkPlan(command=tuple(arguments.command), cwd=arguments.cwd, options=options)


class ContainerArguments(CommandArguments):
    """A command in a container."""

    image: str = Field(min_length=1, max_length=500)
    mounts: list[ContainerMount] = Field(default_factory=list, max_length=64)
    runtime: Literal["apptainer", "podman", "docker"] | None = None


class ContainerWork(WorkType):
    """Runs a command in a container."""

    name = "container"
    summary = "run a command in a container: Apptainer, Podman or Docker"
    arguments = ContainerArguments

    def plan(self, arguments: ContainerArguments) -> WorkPlan:
        """Run it as a job in that image."""
        options: dict[str, Any] = {"container": arguments.image}
        if arguments.mounts:
            options["mounts"] = [
                f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "") for mount in arguments.mounts
            ]
        if arguments.runtime is not None:
            options["container_runtime"] = arguments.runtime
        if arguments.env:
            options["env"] = arguments.env
        return WorkPlan(command=tuple(arguments.command), cwd=arguments.cwd, options=options)
