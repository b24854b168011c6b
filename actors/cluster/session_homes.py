"""Sessions that are open on other hosts: what their clients ask of this one goes to the host that has the session.

A client on another machine speaks to whichever host answers, and its session stays where it was opened. While that host
is not reached, as it restarts perhaps, its client is told so and asks again; it has lost the session only when that has
gone on for as long as the session lives without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

from actorgrid.access import EVERYTHING, Scope
from actorgrid.actors.ledger.record_types import ResourcesRecord
from actorgrid.errors import (
    ActorDown,
    BadRequest,
    CallTimeout,
    HostUnreachable,
    NotSupported,
    PeerGone,
    UnknownSession,
)
from actorgrid.supervisors.server import Server

from ..ledger.client import LedgerClient
from ..ledger.command import read_command
from ..ledger.commands import GrantLease
from ..links.messages import AskHost
from .messages import AcquireWorker, CloseSession, LeaseEnd, RenewSession, ReturnWorker

SERVICE = "session"
MARGIN_S = 1.0
TEXT_MAX = 1000
WAIT_S_MAX = 300.0
Request = RenewSession | CloseSession | AcquireWorker | ReturnWorker | LeaseEnd
_KINDS: dict[str, type[Request]] = {
    "renew": RenewSession,
    "close": CloseSession,
    "acquire": AcquireWorker,
    "return": ReturnWorker,
    "end": LeaseEnd,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class SessionHomes:
    """Asks the hosts that have the sessions. *expire_s*: how long a session of that id lives without its client."""

    def __init__(self, server: Server, ledger: LedgerClient, expire_s: Callable[[str], float]) -> None:
        self._server = server
        self._ledger = ledger
        self._expire_s = expire_s
        self._unreached: dict[str, float] = {}  # since when, by host; of members only

    def elsewhere(self, session_id: str) -> str | None:
        """The member on which a session is open, unless it is this host."""
        home = session_id.rpartition(".")[0]
        return home if home != self._server.host.host_id and home in self._ledger.members else None

    async def ask(self, home: str, request: Request, timeout_s: float) -> Any:
        """Ask the host that has the session.

        Raises what that does, UnknownSession when it has been away for too long, or ActorDown: ask again.
        """
        now_s = self._server.runtime.monotonic()
        try:
            fields = {"request": _NAMES[type(request)], **asdict(request)}
            answer = await self._server.call("links", AskHost(home, SERVICE, fields, timeout_s), timeout_s + MARGIN_S)
        except NotSupported as error:  # a host of the version before
            raise UnknownSession("the session is open on another host", asked=request.session_id) from error
        except (HostUnreachable, CallTimeout, PeerGone) as error:
            since_s = self._unreached.setdefault(home, now_s)
            if now_s - since_s > self._expire_s(request.session_id):
                raise UnknownSession(
                    "the host of the session has not been reached for too long",
                    asked=request.session_id,
                    found=error.message,
                    hint="open a new one and send unfinished tasks again",
                ) from error
            raise ActorDown(
                f"the host of the session is not reached now: {error.message}", asked=home, hint="ask again"
            ) from error
        finally:
            self._unreached = {host: at for host, at in self._unreached.items() if host in self._ledger.members}
        self._unreached.pop(home, None)
        return answer


def read_request(fields: dict[str, Any]) -> Request:
    """The request of another host's client, from the wire. Raises BadRequest."""
    kind = _KINDS.get(str(fields.get("request"))[:80])
    if kind is None:
        raise BadRequest("not what is asked about a session", asked=str(fields.get("request"))[:80])
    session_id = _text(fields, "session_id")
    scope = _scope(fields.get("scope"))
    if kind is RenewSession or kind is CloseSession:
        return kind(session_id, scope)
    lease_id = _text(fields, "lease_id")
    if kind is ReturnWorker or kind is LeaseEnd:
        return kind(session_id, lease_id, scope)
    wait_s, pool = fields.get("wait_s"), fields.get("pool")
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s <= WAIT_S_MAX:
        raise BadRequest("wait_s is a number of seconds", asked=str(wait_s)[:80])
    resources, env = fields.get("resources"), fields.get("env")
    # By the same check as the grant that is to come of it.
    grant = GrantLease(
        lease_id or "x",
        session_id,
        "",
        0,
        [],
        cast("ResourcesRecord", resources),  # looked at by read_command
        pool=pool if pool is None else _text(fields, "pool"),
        env=cast("dict[str, str]", env),
        term=0,
        at=0.0,
        user_id="",
    )
    read_command(grant.to_plain())
    amounts = cast("ResourcesRecord", {"gpu_count": 0, **grant.resources})
    return AcquireWorker(session_id, amounts, grant.pool, grant.env, float(wait_s), lease_id, scope)


def _scope(given: Any) -> Scope:
    """Whose sessions are in reach of whoever asks there. Hosts of before roles do not say: their clients reach all."""
    if given is None:
        return EVERYTHING
    if not isinstance(given, dict):
        raise BadRequest("a scope is a user or a tenant", asked=str(given)[:80])
    return Scope(*(None if given.get(name) is None else _text(given, name) for name in ("user", "tenant")))


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise BadRequest(f"{name} is a text", asked=str(value)[:80])
    return value
