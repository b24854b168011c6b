"""Who is at the door: the bearer token, and the Host header."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from actorgrid.access import ALL_TENANTS, Identity, Role, tenant_of
from actorgrid.actors.ledger.api_keys import identity_of, key_id_of, opens
from actorgrid.actors.ledger.credential_records import ApiKeyRecord
from actorgrid.actors.ledger.names import is_loopback
from actorgrid.actors.ledger.record_types import AllocationRecord
from actorgrid.actors.security.token_rate_limit import Rate, TokenRateLimit
from actorgrid.actors.work import credentials
from actorgrid.errors import ActorDown, BadRequest, NotAllowed, WrongToken

from .door_headers import DOOR_HEADER

log = logging.getLogger("actorgrid.gateway")

WRONG_OF_ONE, WRONG_IN_ALL = Rate(20.0, 1.0), Rate(50.0, 50.0)
"""Wrong tokens answered, of one address of another machine and in all; beyond that they get Overloaded. A right token
always passes."""
ADMIN = "admin"
"""Who has the host's own token."""
HOST_TOKEN = Identity(ADMIN, ADMIN, Role.ADMIN, ALL_TENANTS)
WEBSOCKETS = "/api/ws/"
PROTOCOL = "actorgrid.v1"
BEARER_PROTOCOL = "actorgrid.bearer."
"""Before the token, where a page in a browser shows it: such a page chooses no header of a WebSocket but the names of
protocols that it offers. They are in no log and no history, as a query would be."""
LOG_INTERVAL_S = 10.0
"""Refusals are logged at most this often, with their number."""


@dataclass(frozen=True, slots=True)
class WorkGate:
    """Checks the credentials of work that runs on this host. *find_grant*: the allocation of that id, held anywhere."""

    key: bytes
    host_id: str
    find_grant: Callable[[str], AllocationRecord | None]

    def user_of(self, text: str, work_id: str) -> str | None:
        """The user for whom the work was submitted; ``None`` when *text* opens nothing (any more)."""
        grant = self.find_grant(work_id)
        if not credentials.opens(self.key, text, grant, self.host_id) or grant is None:
            return None
        return credentials.user_of(grant)


class TokenGate:
    """Lets the host's token and the cluster's API keys through, in constant time; counts and slows down wrong ones.

    *find_key*: the record of the API key with that id. It is asked in the loop's thread. *knows_ledger*: whether what
    it does not find is known not to be there.
    """

    def __init__(
        self,
        token: str,
        token_file: Path,
        find_key: Callable[[str], ApiKeyRecord | None] = lambda _: None,
        knows_ledger: Callable[[], bool] = lambda: True,
    ) -> None:
        self._token = token.encode()
        self._token_file = token_file
        self._find_key = find_key
        self._knows_ledger = knows_ledger
        self.work: WorkGate | None = None
        self._wrong = TokenRateLimit("tokens", WRONG_OF_ONE, WRONG_IN_ALL)
        self._logged_s: float | None = None
        self._unlogged = 0
        self.refused_total = 0

    def identify(self, authorization: str | None, at_s: float) -> Identity | None:
        """Whose token it is, of people or of work that runs here; ``None``: nobody's (any more). *at_s*: seconds since
        the epoch. Nothing is remembered from one time to the next, so what was taken back opens nothing at once.

        Raises ActorDown while the host cannot know, NotAllowed for a key that is for models alone.
        """
        scheme, _, text = (authorization or "").partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer":
            return None
        if hmac.compare_digest(text.encode("utf-8", "replace"), self._token):
            return HOST_TOKEN
        work_id = credentials.work_id_of(text) if self.work is not None else None
        if work_id is not None and self.work is not None:
            user = self.work.user_of(text, work_id)
            if user is None:
                self._check_ledger()
                return None
            return Identity(f"{user} (work {work_id})", user, Role.SERVICE, tenant_of(user), work_id=work_id)
        key_id = key_id_of(text)
        record = None if key_id is None else self._find_key(key_id)
        if opens(record, text, at_s) and record is not None:
            if "serving" in record:
                raise NotAllowed(
                    "this API key is for models alone",
                    asked=f"key {record['id']}",
                    hint="show it to the model gateway: actorgrid services says where that is",
                )
            return identity_of(record)
        if key_id is not None and record is None:
            self._check_ledger()
        return None

    def check(self, authorization: str | None, now_s: float, at_s: float, source: str = "") -> Identity:
        """As ``identify``; *source*: the address, if of another machine.

        Raises WrongToken, or Overloaded when there are too many wrong ones.
        """
        who = self.identify(authorization, at_s)
        if who is not None:
            return who
        self._count(now_s, source)
        text = (authorization or "").partition(" ")[2].strip()
        work_id = credentials.work_id_of(text) if self.work is not None else None
        if work_id is not None:
            raise WrongToken(
                "the credential of a job or task opens this door only while it runs on this host",
                asked=work_id[:100],
                found="it is over, or it never ran here",
                hint="from outside of work: --data-dir, or ACTORGRID_URL and ACTORGRID_TOKEN",
            )
        raise WrongToken(
            "the bearer token is missing" if not authorization else "the bearer token is wrong",
            asked="Authorization: Bearer TOKEN",
            hint="an API key of this cluster is needed, still good: actorgrid login, or key create on its hosts"
            if source
            else f"the token is in {self._token_file}; commands find it with --data-dir, or set ACTORGRID_TOKEN",
        )

    def _check_ledger(self) -> None:
        """Raises ActorDown while nobody here can say whether a key or grant is good: ask again."""
        if not self._knows_ledger():
            raise ActorDown("the host has just started, and does not know its keys and grants yet", hint="ask again")

    def _count(self, now_s: float, source: str) -> None:
        self.refused_total += 1
        self._unlogged += 1
        if self._logged_s is None or now_s - self._logged_s >= LOG_INTERVAL_S:
            log.warning("%d request(s) without the right token were refused", self._unlogged)
            self._logged_s, self._unlogged = now_s, 0
        self._wrong.check(source, now_s)
        self._wrong.count(source, now_s)


def authorization_of(request: web.Request) -> str | None:
    """What a request shows: the header ``Authorization``, or of a WebSocket a protocol that it offers."""
    given = request.headers.get("Authorization")
    if given is not None or not request.path.startswith(WEBSOCKETS):
        return given
    for name in offered_protocols(request):
        if name.startswith(BEARER_PROTOCOL):
            return f"Bearer {name.removeprefix(BEARER_PROTOCOL)}"
    return None


def offered_protocols(request: web.Request) -> list[str]:
    """The protocols of its own that a WebSocket's client offers to speak."""
    lines = request.headers.getall("Sec-WebSocket-Protocol", [])
    return [name.strip() for line in lines for name in line.split(",") if name.strip()]


def is_of_door(request: web.Request, secret: str) -> bool:
    """Whether another door of this host asks for a client of its: it knows the *secret* of this start."""
    shown = request.headers.get(DOOR_HEADER)
    if shown is None or not secret or not is_here(request.remote):
        return False
    return hmac.compare_digest(shown.encode("utf-8", "replace"), secret.encode())


def is_here(address: str | None) -> bool:
    """Whether who comes from *address* is on this machine."""
    return not address or is_loopback(address)


def allowed_names(*addresses: str) -> frozenset[str]:
    """Names a Host header may carry: loopback's, and the *addresses* we listen on."""
    own = (f"[{address}]" if ":" in address else address for address in addresses)
    return frozenset({"localhost", "127.0.0.1", "[::1]", *(name.lower() for name in own)})


def check_host(header: str | None, names: frozenset[str]) -> None:
    """Refuse a Host header that is not ours: a page may have pointed its own name at us. Raises BadRequest."""
    name = (header or "").strip().lower()
    if not name.endswith("]"):
        host, colon, port = name.rpartition(":")
        if colon and port.isdigit():
            name = host
    if name not in names:
        raise BadRequest(
            "the Host header does not name this host",
            asked=f"Host: {(header or '(none)')[:100]}",
            found=", ".join(sorted(names)),
            hint="use one of these names",
        )
