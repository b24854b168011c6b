"""An actor of the user's that is a job: the process of one attempt, which is one incarnation."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

from actorgrid import user_actor_context
from actorgrid.checkpoints import CheckpointPolicy
from actorgrid.errors import NotSupported, TaskCancelled
from actorgrid.objects import here
from actorgrid.task_context import ATTEMPT_NUMBER
from actorgrid.user_actor_context import ActorReference, CurrentActor

from .actor_checkpoints import JobCheckpoints
from .user_actor import UserActor


class _Termination:
    """Whether the attempt was asked to end: SIGTERM, which the main thread takes between two calls."""

    def __init__(self) -> None:
        self.wanted = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._before = signal.signal(signal.SIGTERM, self._came)

    def _came(self, _number: int, _frame: FrameType | None) -> None:
        self.wanted = True
        os.eventfd_write(self.fd, 1)

    def heard(self) -> None:
        """Take note; the loop looks at ``wanted`` then."""
        os.eventfd_read(self.fd)

    def close(self) -> None:
        """Leave the signal to others again."""
        signal.signal(signal.SIGTERM, self._before)
        os.close(self.fd)


def serve(
    reference: ActorReference,
    max_concurrency: int,
    made: type[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    policy: CheckpointPolicy | None = None,
) -> None:
    """Make the object, with the state of the last checkpoint if it keeps any, and let it be called until it is stopped.

    What ``__init__`` or ``load`` raises ends the attempt.
    """
    store, host_id = here.whereabouts()
    if not store:
        raise NotSupported("a detached actor runs on hosts with an object store", hint="set objects.enabled")
    folder = os.path.join(os.path.dirname(store), os.path.basename(os.path.dirname(reference.path)))
    path = os.path.join(folder, reference.actor_id)
    incarnation = int(os.environ.get(ATTEMPT_NUMBER, "1"))
    termination = _Termination()
    try:
        user_actor_context.begins(CurrentActor(reference, incarnation, path, host_id))
        thing = made(*args, **kwargs)
        checkpoints = None if policy is None else JobCheckpoints(thing, CheckpointPolicy(*policy))
        if checkpoints is not None:
            checkpoints.load()
        actor = UserActor(reference, incarnation, max_concurrency, thing, path, host_id, checkpoints)
        try:
            actor.serve({termination.fd: termination.heard}, lambda: not termination.wanted, _flush)
        finally:
            if checkpoints is not None and termination.wanted:
                checkpoints.last()
    except TaskCancelled:
        if not termination.wanted:
            raise
        # What the end of the attempt means, whoever has ended it knows.
        raise TaskCancelled("the actor was asked to end", found="SIGTERM") from None
    finally:
        user_actor_context.ends()
        termination.close()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
