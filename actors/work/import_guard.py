"""Keeps pickling a result from importing modules.

Plain pickle imports the module that a class names, to see whether the class is found there. The user's own modules
travel by value, so a worker has their classes without their modules; but in the client's directory that import would
succeed, and run the user's script anew. A result whose classes are not found so goes by value, as it came.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType


class _ImportGuard(MetaPathFinder):
    """Finds nothing; in the thread that it is closed for, it says that there is nothing to be found."""

    def __init__(self) -> None:
        self.closed_for = 0

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See MetaPathFinder. Raises ModuleNotFoundError while it is closed."""
        if self.closed_for == get_ident():
            raise ModuleNotFoundError(f"{fullname} is not imported for the sake of a result", name=fullname)
        return None


_guard = _ImportGuard()


@contextmanager
def no_imports() -> Iterator[None]:
    """Within it, this thread finds only modules that were imported before. One thread at a time."""
    if not sys.meta_path or sys.meta_path[0] is not _guard:
        if _guard in sys.meta_path:
            sys.meta_path.remove(_guard)
        sys.meta_path.insert(0, _guard)
    _guard.closed_for = get_ident()
    try:
        yield
    finally:
        _guard.closed_for = 0
