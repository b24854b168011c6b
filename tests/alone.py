"""Counts by tracing and by profiling, in a child of its own."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable

from actorgrid.hotpath.interrupts import take_back_interrupt

WAIT_S = 60.0


def count_alone(count: Callable[[], int]) -> int:
    """What *count* gives, which traces or profiles what it does.

    CPython 3.11 traces the first step of a function for ever while an exception that one thread raises in another has
    not come, with the lock held, so that no timeout of a test is ever handled. A child that was forked has one thread.
    """
    if sys.version_info >= (3, 12):
        return count()
    forked = multiprocessing.get_context("fork")
    ours, theirs = forked.Pipe(duplex=False)

    def run() -> None:
        take_back_interrupt()
        theirs.send(count())

    child = forked.Process(target=run)
    child.start()
    theirs.close()
    try:
        assert ours.poll(WAIT_S), "nothing was counted"
        return int(ours.recv())
    finally:
        child.kill()
        child.join()
        ours.close()
