"""Commands of the ledger about locks."""

from typing import Annotated

from ..command import Command, Proposer, verb
from ..field_checks import (
    ABSENT,
    Absent,
    Id,
    LockName,
    LockRequest,
    LockSlots,
    LockTtl,
    Since,
    Text,
    Token,
    Truth,
    User,
    Whole,
)
from ..records import UNKNOWN_USER

Request = Annotated[LockRequest, Since(2)]
"""Of a lock, by a client; without one its host cannot tell one request of an owner from the next."""


@verb("acquire_lock", Proposer.DOOR, new_work=True)
class AcquireLock(Command):
    """Acquire a lock, or wait in line for it. *owner* names one holder: a thread that asks, not a user.

    *request*: [the number that a client gave its request, 0 for none; the id that its host gave it], under which
    ``ReleaseLock`` takes it back, for a client that did not hear of it.
    """

    name: LockName
    owner: Id
    ttl_s: LockTtl
    wait: Truth = False
    slots: LockSlots = 1
    user_id: Text = UNKNOWN_USER
    request: Request | Absent = ABSENT


@verb("renew_lock", Proposer.DOOR)
class RenewLock(Command):
    """Renew the lease of a holder or waiter; *request*: which request waits, as the host says where it does."""

    name: LockName
    owner: Id
    token: Token | None = None
    request: Request | Absent = ABSENT


@verb("release_lock", Proposer.DOOR)
class ReleaseLock(Command):
    """Give a lock back, or leave the line. Whoever gives up for an owner that is gone says what it knows of it: the
    *request* that it was given to, unless he was told or has asked again, or the *renewals* it has seen."""

    name: LockName
    owner: Id
    token: Token | None = None
    renewals: Whole | Absent = ABSENT
    request: Request | Absent = ABSENT


@verb("expire_lock", Proposer.LEADER)
class ExpireLock(Command):
    """End a lock's lease: the leader of *term* saw no renewal after the *renewals*-th in time."""

    name: LockName
    owner: Id
    renewals: Whole
    term: Whole


@verb("break_lock", Proposer.DOOR)
class BreakLock(Command):
    """Take a lock, or a place in line, from its owner by force, on the word of *by*."""

    name: LockName
    owner: Id
    by: User
