"""The body of a request for a job that is a function or a command, with what has to go to the door before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actorgrid.errors import BadRequest

from .environment import Environment
from .http import AdminHttp
from .options import options_of
from .working_dir import WorkingDir


def job_body(
    http: AdminHttp,
    work: Callable[..., Any] | Sequence[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    working_dir: WorkingDir | None = None,
    environment: Environment | None = None,
) -> dict[str, Any]:
    """The body. *options* are those of a durable submit, and ``cwd`` of a command.

    Raises BadRequest, UnpicklableFunction for work that takes results of other jobs or cannot be sent.
    """
    if isinstance(work, (str, bytes)):
        raise BadRequest("a command is a list of words", asked=repr(work)[:80], hint='["sh", "-c", "..."] for a shell')
    asked = dict(options)
    cwd = asked.pop("cwd", None)
    chosen = options_of({**asked, "durable": True})
    sent = working_dir if cwd is None else None
    environment = chosen.environment or environment
    more: dict[str, Any] = {} if sent is None else {"working_dir": sent.send_to_door(http)}
    if environment is not None:
        more["environment"] = environment.send_to_door(http, for_functions=callable(work))
    if not callable(work):
        if args or kwargs:
            raise BadRequest(
                "a command has no arguments beside it", asked=repr(args)[:80], hint="put them into the list"
            )
        if cwd is not None:
            more["cwd"] = os.path.abspath(cwd)
        return chosen.job_request(kind="command", command=[str(word) for word in work], **more)
    from .pickling import PYTHON, job_payload

    payload, inputs = job_payload(work, args, dict(kwargs), directory=sent is None, installed=environment is None)
    if inputs:
        raise BadRequest("this work takes no results of other jobs", asked=inputs[0], hint="client.submit does")
    called = str(getattr(work, "__name__", type(work).__name__))
    return chosen.job_request(kind="function", payload=payload, python=PYTHON, name=called, **more)
