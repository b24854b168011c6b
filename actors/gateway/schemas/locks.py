"""Models of what the door takes and gives about locks; rules as in ``answers.py``."""

from __future__ import annotations

from pydantic import Field

from actorgrid.actors.ledger.field_checks import ID, LOCK_SLOTS_MAX, LOCK_TTL_MAX_S, LOCK_TTL_MIN_S
from actorgrid.models import AnswerBody, RequestBody, Token

WAIT_MAX_S = 600.0
OWNER = rf"^{ID.pattern}$"


class LocksQuery(RequestBody):
    """Which locks."""

    prefix: str = Field(default="", max_length=256, description="of their names")
    limit: int = Field(default=1000, ge=1, le=10_000)


class LockRequest(RequestBody):
    """Who wants to hold a lock, for how long without a renewal, and how long this request waits for it."""

    owner: str = Field(
        pattern=OWNER, description="names one holder: one thread of one program, not a user; asking again is no harm"
    )
    ttl_s: float = Field(default=10.0, ge=LOCK_TTL_MIN_S, le=LOCK_TTL_MAX_S, description="time to live of the lease")
    slots: int = Field(default=1, ge=1, le=LOCK_SLOTS_MAX, description="how many may hold it at once")
    wait_s: float = Field(default=0.0, ge=0, le=WAIT_MAX_S, allow_inf_nan=False, description="0: not at all")
    stay: bool = Field(
        default=False,
        description="when the wait is over, keep the place in line and answer with it; whoever does not ask again"
        " within the time to live (5 s at least) loses it",
    )
    user_id: str = Field(default="", max_length=128, description="whose it is, for people")
    request: int = Field(
        default=0,
        ge=0,
        lt=2**53,
        description="a number that grows each time this owner asks, so that of requests over connections that broke the"
        " last one counts; 0: unknown, then a connection that breaks after another request leaves what it had to the"
        " lease",
    )


class LockRenewal(RequestBody):
    """Who renews; with the token, a later holding under the same name is not taken for this one."""

    owner: str = Field(pattern=OWNER)
    token: Token | None = None


class LockRelease(RequestBody):
    """Who gives it back, or leaves the line. ``force`` takes it from the owner, on the word of ``user_id``."""

    owner: str = Field(pattern=OWNER)
    token: Token | None = None
    force: bool = False
    user_id: str = Field(default="", max_length=128)


class LockAnswer(AnswerBody):
    """How the owner stands. ``position`` in the line from 1; 0 for one who holds it.

    ``token`` is the fencing token, to be compared as a pair; ``fence`` is the same as one number that compares alike.
    ``expires_in_s``: when the lease ends unless it is renewed, as far as this host can tell; count from before you
    asked, and renew after a wait.
    """

    name: str
    owner: str
    held: bool
    token: tuple[int, int] | None
    fence: int | None
    position: int
    slots: int
    ttl_s: float
    expires_in_s: float


class LockReleased(AnswerBody):
    """Whether the owner held it or stood in line until now."""

    name: str
    owner: str
    released: bool


class LockWaiter(AnswerBody):
    """One who stands in line, ``since`` then (seconds since the epoch)."""

    owner: str
    user_id: str
    since: float
    ttl_s: float


class LockHolder(LockWaiter):
    """One who holds it, ``since`` it was granted."""

    token: tuple[int, int]
    fence: int


class Lock(AnswerBody):
    """A lock that somebody holds; holders and waiters in the order in which they came to be it."""

    name: str
    slots: int
    holders: list[LockHolder]
    waiters: list[LockWaiter]


class LocksAnswer(AnswerBody):
    """Locks by name; ``total`` counts those that match, listed or not."""

    locks: list[Lock]
    total: int
