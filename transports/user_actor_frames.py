"""What a caller and an actor of the user's say to each other, over a socket of the actor's own.

Caller to actor::

    ["hello", {"version", "secret", "python"}]       first, and once; with it a descriptor comes over the socket
    ["call", call_id, method, args, timeout_s | nil] args: cloudpickle of (args, kwargs); ids of a caller only grow
    ["call", call_id, method, args, timeout_s | nil, [value]]   with inputs: pickled values that its arguments name
    ["cancel", call_id]                              not begun: is cancelled; an ``async def`` that runs: is cancelled
    ["stop"]                                         end when all that was read before is done

Actor to caller::

    ["welcome", {"incarnation"}]                     from 1; one more each time it was begun again
    ["refused", error]                               instead of a welcome, and before it hangs up
    ["result", call_id, status, body]                as of session tasks (task_frames.py), in the order they ended

The descriptor is of a file in memory. The actor writes the id of each call into its first eight bytes just before it
begins it, in the order of the ids. Whoever dies leaves the file: so the caller of a dead actor knows which of its calls
were begun, and sends only those again that were not.

Nothing is unpickled before the secret was compared.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from actorgrid.errors import ActorGridError, MalformedBody

from .frames import encode_frame
from .task_frames import MAX_TASK_ID, CancelTask

PROTOCOL_VERSION = 1
MAX_METHOD_CHARS = 200
MAX_INPUTS = 10_000
READY_METHOD = ""
"""The method that every actor has: it gives None, as soon as the actor is there."""
BEGUN = struct.Struct("<Q")


class ActorHello(NamedTuple):
    """The first frame of a caller."""

    version: int
    secret: str
    python: str
    objects: bool = False
    """Whether it takes what is kept in the object store for it. Earlier versions do not say."""


class MethodCall(NamedTuple):
    """One call of a method."""

    call_id: int
    method: str
    args: bytes
    timeout_s: float | None
    inputs: tuple[bytes, ...] = ()


class StopActor(NamedTuple):
    """Asks the actor to end, when it has done what it was asked for before."""


CallerFrame = ActorHello | MethodCall | CancelTask | StopActor


def encode_actor_hello(secret: str, python: str) -> bytes:
    """The first frame of a caller."""
    return encode_frame(["hello", {"version": PROTOCOL_VERSION, "secret": secret, "python": python, "objects": True}])


def encode_call(
    call_id: int, method: str, args: bytes, timeout_s: float | None = None, inputs: Sequence[bytes] = ()
) -> bytes:
    """The frame that calls a method. Raises FrameTooLarge."""
    if inputs:
        return encode_frame(["call", call_id, method, args, timeout_s, inputs])
    return encode_frame(["call", call_id, method, args, timeout_s])


def encode_stop() -> bytes:
    """The frame that asks the actor to end."""
    return encode_frame(["stop"])


def encode_actor_welcome(incarnation: int) -> bytes:
    """The frame that takes the caller."""
    return encode_frame(["welcome", {"incarnation": incarnation}])


def encode_actor_refused(error: ActorGridError) -> bytes:
    """The frame that refuses the caller; close after it."""
    return encode_frame(["refused", error.to_dict()])


def parse_caller_frame(frame: list[Any]) -> CallerFrame:
    """Read a caller's frame. Raises MalformedBody on anything outside the protocol."""
    match frame:
        case ["call", int(call_id), str(method), bytes(args), (None | float() | int()) as timeout_s]:
            return _call(call_id, method, args, timeout_s, ())
        case [
            "call",
            int(call_id),
            str(method),
            bytes(args),
            (None | float() | int()) as timeout_s,
            list(inputs),
        ] if len(inputs) <= MAX_INPUTS and all(isinstance(value, bytes) for value in inputs):
            return _call(call_id, method, args, timeout_s, tuple(inputs))
        case ["cancel", int(call_id)]:
            return CancelTask(call_id)
        case ["stop"]:
            return StopActor()
        case ["hello", {"version": int(version), "secret": str(secret), "python": str(python), **rest}]:
            return ActorHello(version, secret, python, rest.get("objects") is True)
    raise MalformedBody("not a frame of an actor's caller", found=str(frame[0])[:40] if frame else "")


def _call(call_id: int, method: str, args: bytes, timeout_s: float | None, inputs: tuple[bytes, ...]) -> MethodCall:
    if not 1 <= call_id <= MAX_TASK_ID or len(method) > MAX_METHOD_CHARS:
        raise MalformedBody("a call's id or method is out of range", found=f"{call_id}, {method[:40]!r}")
    if timeout_s is not None and not 0 < timeout_s < 1e9:
        raise MalformedBody("a call's limit is out of range", found=str(timeout_s))
    return MethodCall(call_id, method, args, timeout_s, inputs)
