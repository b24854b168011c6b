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

A caller on another host says all this over a kept stream (kept_stream.py), through the agents of both hosts; one on a
machine that is no host, through the door of a host and its agent. On one line it is said first whom it wants
(``FarCaller``), and the actor's agent, which makes the file then, says::

    ["far"]                                          with the descriptor, in front of what the caller says

When the caller has no connection any more because the actor is gone, it asks that agent what was begun.
"""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from actorgrid.errors import ActorGridError, BadRequest, MalformedBody

from .frames import encode_frame
from .task_frames import MAX_TASK_ID, CancelTask

PROTOCOL_VERSION = 1
MAX_METHOD_CHARS = 200
MAX_INPUTS = 10_000
READY_METHOD = ""
"""The method that every actor has: it gives None, as soon as the actor is there."""
CHECKPOINT_METHOD = "_actorgrid_checkpoint"
"""The method of an actor that keeps checkpoints: it saves the state, and gives an ``EnteredCheckpoint``."""
BEGUN = struct.Struct("<Q")
BEGUN_UNKNOWN = 2**64 - 1
"""What that file says as long as nobody knows: then all that was sent counts as begun."""
OWNER_FILE = "owner"
"""In the folder of an actor's creator: it holds a lock on it for as long as it lives."""
DEATH_SUFFIX, PLACE_SUFFIX = ".end", ".at"
"""Files beside the socket: what an actor died of, and the host that it is on where that is another one."""
DEATH_BYTES_MAX = 2**20
FAR_ACTOR_LINE_MAX = 512
FOLDER_PREFIX = "u"
FOLDER_HEX, ACTOR_HEX, CALLER_HEX = 8, 16, 32
"""So that the path of a socket, of 107 bytes, holds both in the longest folder of sockets that a host has."""


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


class FarPrelude(NamedTuple):
    """An agent's word that the caller behind it is on another host."""


class FarCaller(NamedTuple):
    """Whom a caller on another host wants, and who it is."""

    host_id: str
    """Of the actor."""
    folder: str
    """Of the actor's creator, among those of sockets of work: ``u`` and 8 hexadecimal digits."""
    actor_id: str
    caller: str
    """32 hexadecimal digits: its kept stream."""
    asks: bool
    """Whether it only asks how many of its calls were begun; ``BEGUN`` is the answer."""


CallerFrame = ActorHello | MethodCall | CancelTask | StopActor | FarPrelude


def encode_actor_hello(secret: str, python: str, objects: bool = True) -> bytes:
    """The first frame of a caller."""
    said = {"version": PROTOCOL_VERSION, "secret": secret, "python": python, "objects": objects}
    return encode_frame(["hello", said])


def is_locked(owner_fd: int) -> bool:
    """Whether another process holds the lock on its ``OWNER_FILE``: whether that creator lives."""
    try:
        fcntl.lockf(owner_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def encode_far_prelude() -> bytes:
    """The frame that an agent says in front of a caller on another host."""
    return encode_frame(["far"])


def far_actors_path(store_path: str) -> str:
    """Where the agent takes callers of actors on other hosts: beside its host's object store."""
    return store_path + "u"


def encode_far_caller(wanted: FarCaller) -> bytes:
    """The line that says whom a caller wants."""
    word = "begun" if wanted.asks else "call"
    return f"{wanted.host_id} {wanted.folder} {wanted.actor_id} {wanted.caller} {word}\n".encode()


def parse_far_caller(said: bytes) -> tuple[FarCaller, bytes] | None:
    """Who is wanted, and what came behind the line; ``None`` while there is no line. Raises MalformedBody."""
    line, found, rest = said.partition(b"\n")
    if not found and len(said) < FAR_ACTOR_LINE_MAX:
        return None
    words = line.decode("ascii", "replace").split(" ")
    if not found or len(words) != 5 or words[4] not in ("call", "begun"):
        raise MalformedBody("not the line of a caller of an actor", found=repr(line[:60]))
    return check_far_caller(FarCaller(words[0], words[1], words[2], words[3], words[4] == "begun")), rest


def check_far_caller(wanted: FarCaller) -> FarCaller:
    """The same. Raises MalformedBody for names that cannot be: parts of paths are made of them."""
    host_id, folder, actor_id, caller, _ = wanted
    if (
        not 0 < len(host_id) <= MAX_METHOD_CHARS
        or not (host_id.isascii() and host_id.isprintable() and " " not in host_id)
        or not folder.startswith(FOLDER_PREFIX)
        or not _is_hex(folder[len(FOLDER_PREFIX) :], FOLDER_HEX)
        or not _is_hex(actor_id, ACTOR_HEX)
        or not _is_hex(caller, CALLER_HEX)
    ):
        raise MalformedBody("not an actor, or not a caller", found=repr((host_id, folder, actor_id, caller))[:200])
    return wanted


def far_caller_of(head: object) -> FarCaller:
    """Whom the head of a stream to an actor names. Raises BadRequest, MalformedBody."""
    match head:
        case {"host_id": str(host), "folder": str(folder), "actor_id": str(actor), "caller": str(caller), "asks": asks}:
            return check_far_caller(FarCaller(host, folder, actor, caller, asks is True))
    raise BadRequest("a stream to an actor says which, and whose it is", found=str(head)[:200])


def _is_hex(text: str, size: int) -> bool:
    return len(text) == size and not set(text) - set("0123456789abcdef")


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
        case ["far"]:
            return FarPrelude()
        case ["hello", {"version": int(version), "secret": str(secret), "python": str(python), **rest}]:
            return ActorHello(version, secret, python, rest.get("objects") is True)
    raise MalformedBody("not a frame of an actor's caller", found=str(frame[0])[:40] if frame else "")


def _call(call_id: int, method: str, args: bytes, timeout_s: float | None, inputs: tuple[bytes, ...]) -> MethodCall:
    if not 1 <= call_id <= MAX_TASK_ID or len(method) > MAX_METHOD_CHARS:
        raise MalformedBody("a call's id or method is out of range", found=f"{call_id}, {method[:40]!r}")
    if timeout_s is not None and not 0 < timeout_s < 1e9:
        raise MalformedBody("a call's limit is out of range", found=str(timeout_s))
    return MethodCall(call_id, method, args, timeout_s, inputs)
