"""What an actor of the user's knows of itself, in the process that it has to itself."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

MARK = "ACTORGRID_USER_ACTOR"
"""The variable that an actor's process, and each child of it, has: its id, a colon, and the number of its incarnation.
As a lease's variables are part of what it asks for, each incarnation has a lease and a process of its own."""


JOB_PREFIX = "job:"
AFAR_PREFIX = "afar:"


class ActorReference(NamedTuple):
    """What it takes to call an actor: whoever has it may."""

    actor_id: str
    """16 hexadecimal digits."""
    path: str
    """Where its socket is, on the host that it runs on: in a folder of its creator's, which only that user may read."""
    secret: str
    class_name: str
    methods: frozenset[str]
    """What may be called."""
    max_pending: int
    """How many calls of one process may be unfinished."""
    host_id: str = ""
    """The host of its creator, where the folder is; empty where only processes of that machine can call it. Of a
    detached actor ``job:`` and the id of its job, which has a folder of that name wherever it runs; of one that was
    made from a machine that is no host, ``afar:`` and the namespace of the shared state that says where it is."""

    @property
    def job_id(self) -> str:
        """Of a detached actor, its job; else empty."""
        return self.host_id[len(JOB_PREFIX) :] if self.host_id.startswith(JOB_PREFIX) else ""

    @property
    def made_afar_by(self) -> str:
        """Of one that was made from a machine that is no host, its creator's user; else empty."""
        return self.host_id[len(AFAR_PREFIX) :] if self.host_id.startswith(AFAR_PREFIX) else ""

    @property
    def is_asked_about(self) -> bool:
        """Whether where it is has to be asked for, as no host's folder says it."""
        return bool(self.job_id or self.made_afar_by)


class CurrentActor(NamedTuple):
    """The actor that this process holds."""

    reference: ActorReference
    incarnation: int
    """1, and one more each time it was begun again."""
    path: str = ""
    """Where its socket is: on its creator's host, as of the reference; on another one, in a folder of that name."""
    host_id: str = ""
    """The host that it runs on, as far as is known."""


here: CurrentActor | None = None


def begins(actor: CurrentActor) -> None:
    """Note which actor this process holds from now on."""
    global here
    here = actor


def ends() -> None:
    """Note that this process holds no actor any more."""
    global here
    here = None


def serve_detached(*call: Any) -> None:
    """Be a detached actor: what its job calls. (Clients and servers import nothing of each other.)"""
    importlib.import_module("actorgrid.actors.work.detached_actor").serve(*call)


def mark(actor_id: str, incarnation: int) -> str:
    """What an actor's process finds in ``MARK``."""
    return f"{actor_id}:{incarnation}"


def incarnation_of(text: str) -> int:
    """The number of the incarnation in a ``MARK``; 1 where there is none."""
    number = text.rpartition(":")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 1
