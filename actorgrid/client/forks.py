"""What a forked child may go on with: objects that live on in it with what is the child's own.

A fork copies the memory and the sockets of a process, and of its threads only the one that called it. A lock that
another thread held stays held for ever in the child, a connection would be spoken on by both, and nobody reads what
workers answer. So in the child, before anything else runs, each renewable object lets go of what is the parent's.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from actorgrid.errors import WrongState


class Renewable(Protocol):
    """An object that can begin anew in a forked child."""

    def after_fork(self) -> None:
        """Forget the parent's locks, connections and threads, without a word to anybody. Must not wait."""


class _Process:
    """This process, told from those that were forked of it by identity alone."""


_renewable: weakref.WeakSet[Renewable] = weakref.WeakSet()
_process = _Process()


def renew_in_children(thing: Renewable) -> None:
    """Have ``after_fork`` of *thing* called in each forked child, for as long as somebody holds it."""
    _renewable.add(thing)


def this_process() -> object:
    """What stands for this process: compare by ``is``."""
    return _process


def of_the_parent(what: str) -> WrongState:
    """The error for what only the parent process hears of."""
    return WrongState(
        f"{what} belongs to the process that was forked, which alone hears of its end",
        asked=f"its value in process {os.getpid()}",
        hint="ask for it before the fork, or submit it again here",
    )


def _begin_anew() -> None:
    global _process
    _process = _Process()
    for thing in list(_renewable):
        thing.after_fork()


os.register_at_fork(after_in_child=_begin_anew)
