"""Where an actor is, as a process sees it: a socket of this host, or a way to another one; or that it is no more."""

from __future__ import annotations

import os
from pathlib import Path

import msgpack

from actorgrid.errors import ActorDied, HostUnreachable, NotSupported, UnknownAllocation, error_from_dict
from actorgrid.objects.here import Whereabouts
from actorgrid.transports.user_actor_frames import (
    DEATH_BYTES_MAX,
    DEATH_SUFFIX,
    FOLDER_PREFIX,
    OWNER_FILE,
    PLACE_SUFFIX,
    far_actors_path,
    is_locked,
)
from actorgrid.user_actor_context import ActorReference

from .actor_deaths import refused, without_creator
from .far_actors import FarActorSocket

HOST_ID_MAX = 200


def place_of_creator(here: Whereabouts) -> tuple[str, str]:
    """The folder of host *here* in which creators of actors that other hosts may call have theirs, and that host's id;
    empty where there is none."""
    store, host_id = here
    if not store or not host_id or not os.path.exists(far_actors_path(store)):
        return "", ""
    folder = os.path.dirname(store)
    return (folder, host_id) if os.access(folder, os.W_OK | os.X_OK) else ("", "")


def relay_to(wanted: str, here: Whereabouts) -> str:
    """Where host *here* takes callers of actors on that one; empty where it is that one, or cannot."""
    store, host_id = here
    path = far_actors_path(store)
    return path if store and host_id and wanted and wanted != host_id and os.path.exists(path) else ""


def relay_here(path: str, here: Whereabouts) -> str:
    """Where host *here* takes callers of an actor of its own that is not to be found at *path*: work that is kept apart
    has other folders than we. Empty where there is no way."""
    store, host_id = here
    folder, relay = os.path.dirname(path), far_actors_path(store)
    if not store or not host_id or os.path.dirname(folder) != os.path.dirname(store) or os.path.exists(path):
        return ""
    # An agent that is not root has no other uid for work.
    is_roots = os.path.isdir(os.path.dirname(store)) and os.stat(os.path.dirname(store)).st_uid == 0
    return relay if is_roots and os.path.exists(relay) else ""


def local_path(reference: ActorReference, at: str, here: Whereabouts) -> str:
    """Where an actor of host *here* listens."""
    store, host_id = here
    if reference.job_id or (at and at == host_id and host_id != reference.host_id):
        folder = os.path.basename(os.path.dirname(reference.path))
        return os.path.join(os.path.dirname(store), folder, reference.actor_id)
    return reference.path


def found_place(reference: ActorReference, here: Whereabouts) -> str:
    """The host that an actor is on, as its creator's folder, on host *here*, says; empty for that one."""
    if not reference.host_id or here.host_id != reference.host_id:
        return ""  # it is asked for there
    try:
        with open(reference.path + PLACE_SUFFIX, encoding="ascii") as file:
            return file.read(HOST_ID_MAX)
    except (OSError, UnicodeDecodeError):
        return ""


def found_dead(reference: ActorReference, at: str, here: Whereabouts) -> ActorDied | None:
    """The end of an actor that nobody here made, from what its creator left; ``None`` while it may come (back)."""
    host_id = here.host_id
    if at or reference.job_id or (reference.host_id and host_id and host_id != reference.host_id):
        return None  # its creator's host is asked next
    try:
        with open(reference.path + DEATH_SUFFIX, "rb") as file:
            record = msgpack.unpackb(file.read(DEATH_BYTES_MAX))
        error = error_from_dict(record)
        return error if isinstance(error, ActorDied) else ActorDied(str(error))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException):
        return ActorDied("the actor is dead, and what is left of it cannot be read", asked=reference.class_name)
    try:
        fd = os.open(Path(reference.path).parent / OWNER_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        if reference.host_id and not host_id:
            return refused(
                reference,
                NotSupported(
                    "this process knows no host of the actor's cluster",
                    hint="make a client of the cluster in it: actorgrid.connect()",
                ),
            )
        return without_creator(reference)
    try:
        return None if is_locked(fd) else without_creator(reference)  # one that lives sees to it
    finally:
        os.close(fd)


def what_is_said(far: FarActorSocket, reference: ActorReference) -> tuple[str, ActorDied | None]:
    """Where to look next for an actor whose way to another host ended, or that it is no more."""
    failure = far.failure
    if isinstance(failure, ActorDied):
        return "", failure
    if isinstance(failure, UnknownAllocation):
        at = failure.details.get("actor_at")
        if isinstance(at, str) and at and at != far.host_id:
            return at[:HOST_ID_MAX], None
        if not reference.job_id and far.host_id == reference.host_id and failure.details.get("actor_folder") is False:
            return "", without_creator(reference)
        return "", None  # its creator's host knows more
    if failure is None or (reference.job_id and isinstance(failure, HostUnreachable)):
        return "", None  # the ledger is asked
    if far.host_id != reference.host_id and isinstance(failure, HostUnreachable):
        return "", None
    if isinstance(failure, HostUnreachable):
        died = ActorDied(
            f"the actor {reference.class_name} is lost: {failure.message}", asked=reference.actor_id, hint=failure.hint
        )
        died.__cause__ = failure
        return "", died
    return "", refused(reference, failure)


def folder_name(number: str) -> str:
    """The name of a creator's folder; *number*: 8 hexadecimal digits."""
    return FOLDER_PREFIX + number
