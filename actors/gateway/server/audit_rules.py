"""Which requests the audit log tells of, and what it says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from actorgrid.access import Right
from actorgrid.actors.security.audit_records import AuditFacts
from actorgrid.errors import NotAllowed, WrongToken

from .auth import is_here

if TYPE_CHECKING:
    from .route import RequestState, Route

READS = frozenset(
    {
        Right.READ_OUTPUT,
        Right.READ_SETTINGS,
        Right.LIST_KEYS,
        Right.LIST_SECRETS,
        Right.MANAGE_TRUST,
        Right.SEE_SERVERS,
        Right.HOLD_SERVERS,
        Right.READ_AUDIT,
        Right.EXPORT_AUDIT,
    }
)
"""Reads that are told of, beside whatever changes something."""
OFTEN = frozenset({Right.WRITE_STATE, Right.USE_LOCKS, Right.USE_WORKERS, Right.LIST_JOBS})
"""What programs do all the time: of these only ``OPENS`` is told, and what is refused."""
OPENS = frozenset({"open_session", "relay"})
FIRST = frozenset(
    {
        Right.MAKE_KEYS,
        Right.REVOKE_KEYS,
        Right.MANAGE_TRUST,
        Right.WRITE_SETTINGS,
        Right.WRITE_QUOTAS,
        Right.REMOVE_HOSTS,
        Right.WRITE_SECRETS,
        Right.SIGN_IN,
    }
)
"""Nobody is told that these are done before the record is on the disk."""
REFUSALS = frozenset({WrongToken.__name__, NotAllowed.__name__})


def is_told(route: Route | None, outcome: str) -> bool:
    """Whether a request is told of; *outcome*: the name of its error, or empty."""
    if outcome in REFUSALS:
        return True
    if route is not None and route.right is Right.SIGN_IN:
        return route.method == "POST" and not outcome  # a stranger's, too many of which would fill the disk
    if route is None or not route.token:
        return False
    if route.method == "GET":
        return route.right in READS or route.operation in OPENS
    return route.right not in OFTEN or route.operation in OPENS


def facts_of(request: web.Request, state: RequestState, status: int) -> AuditFacts:
    """What the log says of a request."""
    who, route = state.who, state.route
    return AuditFacts(
        who.user,
        who.key_id or who.work_id or "",
        who.role.value if who.user and who.tenant else "",
        who.tenant if who.user else "",
        "" if is_here(state.address) else str(state.address),
        request.method,
        "unmatched" if route is None else route.documented_path,
        request.path,
        status,
        state.outcome or ("done" if status < 400 else "ended"),
    )
