"""Namespaces of the shared state: whose a key is, by its name alone.

``@ann/runs/7`` is of the namespace ``ann``; ``_cluster/health/HOST`` is the cluster's own; every other key is of
``default``, as all keys were before there were namespaces.
"""

from __future__ import annotations

from actorgrid.errors import BadRequest, NotAllowed

DEFAULT = "default"
CLUSTER = "_cluster"
SIGN = "@"
MAX_NAME = 128
"""Characters of a namespace's name."""


def namespace_of(key: str) -> str:
    """The namespace of a key."""
    head, slash, _ = key.partition("/")
    if slash and head == CLUSTER:
        return CLUSTER
    if slash and head.startswith(SIGN) and len(head) > 1:
        return head[1:]
    return DEFAULT


def cluster_key(subject: str, host_id: str) -> str:
    """The key under which a host tells the others about itself: ``_cluster/health/HOST_ID``."""
    return f"{CLUSTER}/{subject}/{host_id}"


def check_name(key: str) -> None:
    """Raises BadRequest for a key that looks like one of a namespace and is of none."""
    head, slash, rest = key.partition("/")
    if head.startswith(SIGN) and (not slash or not rest or len(head) < 2 or len(head) > MAX_NAME + 1):
        raise BadRequest(
            "a key that begins with @ is one of a namespace",
            asked=key[:100],
            found=f"@NAME/KEY, with a name of 1 to {MAX_NAME} characters",
            hint="begin it with another character",
        )


def check_write(key: str) -> None:
    """Raises NotAllowed for a write from outside to what the cluster says of itself."""
    check_name(key)
    if key.partition("/")[0] == CLUSTER:
        raise NotAllowed(
            "the cluster's own keys are written by its hosts alone",
            asked=key[:100],
            hint=f"they may be read by everybody; take a key outside of {CLUSTER}/",
        )


def check_read(key: str, user: str | None, shared: tuple[str, ...]) -> None:
    """Raises NotAllowed where *user* may not use the key; ``None``: an administrator, who may use all."""
    if user is not None and not may_see(key, user, shared):
        raise NotAllowed(
            f"the namespace {namespace_of(key)!r} is not {user}'s, and not shared",
            asked=key[:100],
            found=f"{user} may use {', '.join(sorted({user, *shared}))}",
            hint=f"use keys that begin with {SIGN}{user}/",
        )


def may_see(key: str, user: str | None, shared: tuple[str, ...]) -> bool:
    """Whether *user* may read the key: its own namespace, the *shared* ones, and what the cluster says of itself."""
    return user is None or namespace_of(key) in {user, CLUSTER, *shared}
