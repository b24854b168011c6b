"""Whose the work is that a client submits, as its host has it: what its key says, and not this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from actorgrid.access import ALL_TENANTS, Role
from actorgrid.errors import NotFound

from .user import user_name

if TYPE_CHECKING:
    from .http import AdminHttp

_found: WeakKeyDictionary[AdminHttp, tuple[str, str]] = WeakKeyDictionary()
"""By door: the token that was asked with, and whose it is."""


def own_user(http: AdminHttp) -> str:
    """The user whose namespace, names and jobs are the client's own: ``ann@lab``.

    Who may act for anybody (the host's token, an administrator of all tenants) is who this process's user is. Asked
    once for each token. Raises what asking the door raises.
    """
    known = _found.get(http)
    if known is not None and known[0] == http.token:
        return known[1]
    token = http.token
    try:
        me = http.get("/api/me")
    except NotFound:  # a host of before there were roles: every key acts for anybody
        user = user_name()
    else:
        for_anybody = me["role"] == Role.ADMIN and me["tenant"] == ALL_TENANTS
        user = user_name() if for_anybody else str(me["user_id"])
    _found[http] = token, user
    return user
