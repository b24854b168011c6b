"""What a type of work is: a name, a model of its arguments, and the job that it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from actorgrid.errors import InvalidWork

SHOWN = 5
"""Errors of arguments that are told at once."""


class WorkArguments(BaseModel):
    """The arguments of a type of work; what they do not know is refused."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """What is to run: a function with its arguments, or a command; and with what it is to run, unless who submits it
    says otherwise (*options*, in the words of ``TaskOptions``)."""

    function: Callable[..., Any] | None = None
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    cwd: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class WorkType:
    """A type of work. Derive from it, and name the class as an entry point of ``actorgrid.work_types``."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What it does, in one line."""
    arguments: ClassVar[type[WorkArguments]]

    def plan(self, arguments: Any) -> WorkPlan:
        """What these checked arguments come to: an instance of the model *arguments*."""
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return self.arguments.model_json_schema()

    def checked(self, given: Mapping[str, Any]) -> WorkArguments:
        """The arguments as the model. Raises InvalidWork, which names the path of each that is wrong."""
        try:
            return self.arguments.model_validate(given)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False)
            told = [f"{_path(each['loc'])}: {each['msg']}" for each in wrong[:SHOWN]]
            raise InvalidWork(
                f"the arguments of {self.name} are wrong: {'; '.join(told)}",
                asked=str(wrong[0].get("input"))[:200],
                found=f"{len(wrong)} wrong" if len(wrong) > 1 else "",
                hint=f"actorgrid work show {self.name}",
                paths=[_path(each["loc"]) for each in wrong],
            ) from None


def _path(where: tuple[int | str, ...]) -> str:
    return ".".join(map(str, where)) or "(the whole)"
