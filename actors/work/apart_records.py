"""How work is kept from what is not its own, as its spec says (``work_records.WorkSpec``)."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class SocketsSpec(TypedDict):
    """The sockets of work that has a uid of its own (isolation/own_sockets.py)."""

    at: str
    """The folder in which the host has its own."""
    own: str
    """The one that the work has at that path."""


class ApartSpec(TypedDict):
    """How work is kept from what is not its own (isolation/confine.py)."""

    level: str
    """``basic`` or ``full``."""
    hidden: list[str]
    """The files and folders of the agent that it does not find; at ``full``, of these folders nothing but its own."""
    no_new_privs: bool
    uid: int
    """At ``full``: its uid and gid; 0: the agent's."""
    attempt: str
    """At ``full``: the attempt's folder, which it may enter."""
    read: list[str]
    """At ``full``: the files of the agent that it reads, and folders of such."""
    own: NotRequired[list[str]]
    """At ``full``: what it owns of its attempt's folder beside its home and its ``/tmp``."""
    environments: NotRequired[str]
    """At ``full``: the folder of its user's Python environments (isolation/user_environments.py)."""
    gang: bool
    """Whether other members of its gang may be on this host: they share memory."""
    sockets: NotRequired[SocketsSpec]
    shared_memory: NotRequired[str]
    """At ``full``, with a uid: the folder that it has for ``/dev/shm``, which its uid shares with its MPS daemons."""
    shared_memory_bytes: NotRequired[int]
    """At ``full``, with a uid: the most in its own ``/dev/shm``; 0: half of the machine's memory."""
    secrets: NotRequired[str]
    """At ``full``, with a uid: the folder of its secrets, which it finds in its own (``own_folders.SECRETS``)."""
    inputs: NotRequired[dict[str, str]]
    """At ``full``: files of other steps, by the names under which it reads them (``own_folders.INPUTS``)."""
    takers: NotRequired[bool]
    """At ``full``: whether it may give items, and is told how far those are who take them (``own_folders.TAKERS``)."""
