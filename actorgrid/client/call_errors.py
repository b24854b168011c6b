"""The errors that end a session task: of its worker, of its leases, and of its own."""

from __future__ import annotations

from typing import Any

from actorgrid.errors import ActorGridError, NotSupported, StaleToken, TaskTimedOut, WorkerLost, error_from_dict
from actorgrid.fencing import FencingToken
from actorgrid.transports.remote_exceptions import raised_by_task
from actorgrid.transports.task_frames import decode_failure_body

from .lanes import LeasedWorker, TaskCall, Token


def only_older_tokens(call: TaskCall, token: Token | None) -> StaleToken:
    """The error when no lease will be new enough for a call that may have begun."""
    return StaleToken(
        "the task may have begun before, and the cluster grants only older tokens than that",
        asked=f"a token above {FencingToken(*call.token)}" if call.token else "",
        found=f"{FencingToken(*token)}" if token else "",
        hint="has the cluster been made anew meanwhile? then submit the task again",
    )


def past_limit(call: TaskCall) -> TaskTimedOut:
    """The error when a call ran past its limit, and its worker did not stop it."""
    return TaskTimedOut(
        "the task ran past its time limit; its worker was killed", asked=f"timeout={call.timeout_s or 0.0:g}"
    )


def worker_lost(link: LeasedWorker, found: str, call: TaskCall) -> WorkerLost:
    """The error when a call lost its worker, *link*'s, once too often, or amid its stream."""
    received = 0 if call.stream is None else call.stream.received
    if call.lane.is_actors:
        return WorkerLost("its worker died", found=f"worker {link.worker_id}: {found or 'gone'}")
    return WorkerLost(
        f"the worker died under the task, which is not begun again after {received} values of its stream came"
        if received
        else "the worker died under the task, and no retry is left",
        found=f"worker {link.worker_id}: {found or 'gone'}",
        hint="does the task crash Python, end it (os._exit), or need more memory than there is? retries= sets how often"
        " it is tried again",
    )


def takes_no_futures(link: LeasedWorker) -> NotSupported:
    """The error when the worker of a call, *link*'s, does not know inputs."""
    return NotSupported(
        "the host runs an earlier version, whose workers take no futures among arguments",
        found=f"worker {link.worker_id}",
        hint="pass future.result(), or upgrade the host",
    )


def raise_failure(body: bytes) -> Any:
    """Raise what the body of a failed result says."""
    error, exception = decode_failure_body(body)
    raise raised_by_task(error, exception)


def copy_of(error: ActorGridError | None) -> ActorGridError:
    """A copy of *error*: each future needs its own exception object, as a traceback belongs to one raise."""
    assert error is not None
    made = error_from_dict(error.to_dict())
    made.__cause__ = error.__cause__
    return made
