"""The command that serves a class, for whoever starts its replicas."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from actorgrid.errors import NotAService

from .endpoints import LANGUAGE, served_methods

PORT, PYTHON = "{port}", "{python}"
"""Filled in on the host that starts the command."""
HEALTH = "/health"


def class_command(
    target: str | type, *, models: Sequence[str] = (), python: str = PYTHON, port: str | int = PORT
) -> list[str]:
    """The words of a command that serves *target*: ``package.module:Class``, or a class that others can import.

    *models*: the names that a language model goes by, instead of its own; *python*: the interpreter, which has
    actorgrid. Raises NotAService for a class that no other process could import.
    """
    named = target if isinstance(target, str) else class_target(target)
    words = [python, "-m", "actorgrid.serving", named, "--port", str(port)]
    for model in models:
        words += ["--model", model]
    return words


def class_target(cls: type) -> str:
    """``package.module:Class`` of a class. Raises NotAService where that does not lead to it in another process."""
    module, name = cls.__module__, cls.__qualname__
    if module == "__main__" or "<locals>" in name:
        where = "in the program that was started" if module == "__main__" else "within a function"
        raise NotAService(
            f"{name} is made {where}, where replicas cannot import it",
            hint="put it into a module, which hosts have or which goes along as the working directory",
        )
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not cls:
        raise NotAService(
            f"{module}:{name} is not, or no longer, this class", hint="give it a name of its own in its module"
        )
    return f"{module}:{name}"


def class_protocol(cls: type) -> Literal["openai", "http"]:
    """How a served class is asked. Raises NotAService for one that cannot be served."""
    served_methods(cls)
    return "openai" if any(hasattr(cls, name) for name in LANGUAGE) else "http"
