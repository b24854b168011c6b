"""A pause of garbage collection: while a large state is built, every pass would look at all of it again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Context without collection of cyclic garbage: for work that makes many objects and drops few, in one go."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
