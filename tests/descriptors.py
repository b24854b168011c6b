"""The descriptors of the process of tests itself, which others of it close at any time, the garbage collector too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def open_descriptors() -> dict[str, str]:
    """By number what each is of."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # of the listing itself
    return found


@contextmanager
def none_stays_open() -> Iterator[None]:
    """What is opened in the block is closed at its end. What was open before may be closed meanwhile."""
    before = open_descriptors()
    yield
    assert open_descriptors().items() <= before.items()
