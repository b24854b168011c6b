"""Namespaces of the shared state: whose a key is, by its name alone.

``@ann/runs/7`` is of the namespace ``ann``; ``_cluster/health/HOST`` is the cluster's own; every other key is of
``default``, as all keys were before there were namespaces.
"""

from __future__ import annotations

from actorgrid.access import DEFAULT_TENANT, Scope, tenant_of
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


def check_read(key: str, scope: Scope, shared: tuple[str, ...]) -> None:
    """Raises NotAllowed where the key is of a namespace that is not in reach."""
    if may_see(key, scope, shared):
        return
    if namespace_of(key) == CLUSTER:
        raise NotAllowed(
            "what hosts say of themselves is for those who may list hosts",
            asked=key[:100],
            hint="actorgrid key roles shows who may",
        )
    whose = scope.user or f"tenant {scope.tenant}"
    mine = scope.user or f"NAME{SIGN}{scope.tenant}"
    raise NotAllowed(
        f"the namespace {namespace_of(key)!r} is not {whose}'s, and not shared",
        asked=key[:100],
        found=f"{whose} may use {', '.join(sorted({mine, *shared} - {CLUSTER}))}",
        hint=f"use keys that begin with {SIGN}{mine}/",
    )


def shared_with(scope: Scope, shared: tuple[str, ...], lists_hosts: bool) -> tuple[str, ...]:
    """The namespaces beside their own that users in *scope* have: what their tenant shares and, for those who may
    list hosts, the cluster's own.

    Those of the setting, *shared*, are the tenant ``default``'s; another tenant has one of its own: ``@@lab/KEY`` is of
    ``@lab``, whose user nobody is.
    """
    tenant = _tenant(scope)
    common = tuple(each for each in shared if each != CLUSTER) if tenant == DEFAULT_TENANT else (f"{SIGN}{tenant}",)
    return (*common, CLUSTER) if lists_hosts else common


def may_see(key: str, scope: Scope, shared: tuple[str, ...]) -> bool:
    """Whether the key is in reach: of a user in *scope*, or of a namespace of *shared* (as ``shared_with`` has it)."""
    namespace = namespace_of(key)
    if namespace == CLUSTER:
        return CLUSTER in shared
    return scope.is_all or scope.covers(namespace) or namespace in shared


def kept_key(key: str, scope: Scope) -> str:
    """The key as the state has it: a plain one of a tenant other than ``default`` is ``@@lab/KEY``.

    So programs that say ``put("k")`` have what their tenant shares, whichever it is. Also for prefixes.
    """
    tenant = _tenant(scope)
    plain = key and not key.startswith(SIGN) and key.partition("/")[0] != CLUSTER
    return f"{SIGN}{SIGN}{tenant}/{key}" if plain and not scope.is_all and tenant != DEFAULT_TENANT else key


def plain_key(key: str, scope: Scope) -> str:
    """The key as whoever asks writes it: what ``kept_key`` takes back to *key*."""
    head = f"{SIGN}{SIGN}{_tenant(scope)}/"
    short = key.removeprefix(head)
    return short if kept_key(short, scope) == key else key


def _tenant(scope: Scope) -> str:
    return scope.tenant or tenant_of(scope.user or "")
