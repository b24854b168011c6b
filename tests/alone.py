"""Counts by tracing, which CPython 3.11 does safely only where no other thread is about."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable

WAIT_S = 60.0


def count_alone(count: Callable[[], int]) -> int:
    """What *count* gives, which traces or profiles what it does.

    CPython 3.11 may trace the first step of a function for ever when another thread wants its turn just then, with the
    lock held, so that no timeout of a test is ever handled. A child that was forked has its one thread alone.
    """
    if sys.version_info >= (3, 12):
        return count()
    forked = multiprocessing.get_context("fork")
    ours, theirs = forked.Pipe(duplex=False)
    child = forked.Process(target=lambda: theirs.send(count()))
    child.start()
    theirs.close()
    try:
        assert ours.poll(WAIT_S), "nothing was counted"
        return int(ours.recv())
    finally:
        child.kill()
        child.join()
        ours.close()
