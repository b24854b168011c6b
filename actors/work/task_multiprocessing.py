"""``multiprocessing`` inside of tasks: what a user's script defines also reaches the processes that a task starts.

A task's functions and classes of ``__main__`` came by value: no module has them, and ``multiprocessing`` names what it
sends by its module. So whatever its module does not have is sent by value here as well.
"""

from __future__ import annotations

import sys
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

import cloudpickle

from actorgrid import code_pickler


def install() -> None:
    """Let ``multiprocessing`` send by value, from now on in this process and in those that it forks."""
    ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign, assignment]


def _reduce(_pickler: ForkingPickler, value: Any) -> Any:
    if isinstance(value, FunctionType | type) and not _is_importable(value):
        return rebuild, (code_pickler.dumps(value),)
    return NotImplemented


def _is_importable(value: Any) -> bool:
    """Whether another process finds the very same under its name."""
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def rebuild(data: bytes) -> Any:
    """The function or class, in the process that was started: what that one sends back may be of it."""
    install()
    return cloudpickle.loads(data)  # nosec B301 - from the task to its own children
