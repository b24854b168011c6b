"""Functions by name, ``package.module:function``, as work types name them; found where the work runs."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

from pydantic import Field

from actorgrid.errors import InvalidWork

Target = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        max_length=300,
        description="a function that can be imported where the work runs: package.module:function",
    ),
]


def find_target(target: str) -> Any:
    """The object of that name. Raises InvalidWork, which says what is missing."""
    module, _, path = target.partition(":")
    try:
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise InvalidWork(
            f"{target} is not there",
            asked=target,
            found=f"{type(error).__name__}: {error}"[:200],
            hint="send its directory along (working_dir=), or name an environment that has its package",
        ) from error
    return found


def missing_library(error: ImportError, extra: str) -> InvalidWork:
    """The error for a library that not every host has, with what to install."""
    return InvalidWork(
        f"{error.name or 'a library'} is not installed where this work runs",
        asked=error.name or "",
        found=f"{type(error).__name__}: {error}"[:200],
        hint=f"pip install 'actorgrid[{extra}]' there, or ask for an environment that has it",
    )
