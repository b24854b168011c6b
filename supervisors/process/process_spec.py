"""Child specs of light processes: as those of OS processes, but what is started is a class or an ``async`` function."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from actorgrid.errors import StartFailed

from ..child import ChildSpec

LIGHT_CHILDREN_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class ProcessSpec(ChildSpec):
    """``ChildSpec`` for a light process.

    ``kind`` is a class that derives from Process, an ``async`` function, or where one is: ``package.module:Name``.
    ``register`` makes the id its name; it is off unless said otherwise. ``max_handler_s`` and ``memory_mib`` are of
    processes of the operating system, and mean nothing here.
    """

    kind: Any
    register: bool = False

    def check_kind(self) -> None:
        """Raises InvalidChildSpec when *kind* can be none."""
        if not callable(self.kind):
            super(ProcessSpec, self).check_kind()


def load_kind(kind: Any) -> Any:
    """The class or function of a spec. Raises StartFailed."""
    if not isinstance(kind, str):
        return kind
    module, _, name = kind.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise StartFailed(f"{kind!r} cannot be loaded: {error}", asked=kind, hint="check the child spec") from error
