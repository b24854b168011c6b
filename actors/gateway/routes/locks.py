"""Locks and semaphores: who holds what; acquire, renew, release.

A request that waits is held open here: this host keeps its place in line alive for as long as the client is
connected, and gives it up when the client goes away. When this host goes away instead, the place stays for as long as
its lease, and the client that asks again, here or elsewhere, stands where it stood.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable
from time import time
from typing import Any, cast

from actorgrid.access import SIGN, Right, Role
from actorgrid.actors.gateway.lock_wait import CommitLeave, CommitRequest, GiveAnswer, LockWait, WaitTerms
from actorgrid.actors.gateway.schemas.locks import (
    LockAnswer,
    LockRelease,
    LockReleased,
    LockRenewal,
    LockRequest,
    LocksAnswer,
    LocksQuery,
)
from actorgrid.actors.gateway.server.auth import ADMIN
from actorgrid.actors.gateway.server.rights import tenant_prefix, user_for
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.ledger.answers import HoldAnswer
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import BreakLock, ReleaseLock, RenewLock
from actorgrid.actors.ledger.field_checks import LOCK_NAME_MAX
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.ledger.record_types import LockEntry, LockRecord
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    DiskFull,
    HostsTooOld,
    HostUnreachable,
    LockHeld,
    LockLost,
    LockSlotsDiffer,
    LockTimeout,
    NoQuorum,
    NotAllowed,
    NotFound,
    QueueFull,
    StaleToken,
    WrongState,
)

ROUTES = RouteTable(Route)

EPOCH_BITS = 48
"""``fence`` is (epoch << 48) + index: 64 bits hold it for 32,767 recoveries of 2.8e14 entries each."""
REQUEST_ID_BYTES = 8
READ_S = 10.0
Plain = dict[str, Any]

log = logging.getLogger("actorgrid.gateway")


@ROUTES.add("GET", "/api/locks", LocksAnswer, "locks", Right.LIST_LOCKS, query=LocksQuery)
async def get_locks(call: RequestContext) -> Any:
    """What is held, and who waits."""
    wanted = call.query_as(LocksQuery)
    locks = (await call.ask("consensus", Query("locks"), 10.0))["locks"]
    prefix = tenant_prefix(call)
    found = [lock for lock in locks if lock["name"].startswith(prefix + wanted.prefix)]
    if not prefix and not call.scope.is_all:
        found = [lock for lock in found if not is_of_tenant(lock["name"])]
    return {"locks": [_shown(call, lock) for lock in found[: wanted.limit]], "total": len(found)}


@ROUTES.add(
    "POST",
    "/api/locks/{name:.+}/acquire",
    LockAnswer,
    "locks",
    Right.USE_LOCKS,
    request=LockRequest,
    errors=(LockHeld, LockTimeout, LockLost, LockSlotsDiffer, WrongState, QueueFull, DiskFull, NoQuorum),
    waits=True,
)
async def post_acquire(call: RequestContext) -> Any:
    """Hold a lock or a slot of a semaphore; wait for it in line."""
    wanted, name = call.body_as(LockRequest), _name(call)
    if await _is_others(call, name, wanted.owner):
        raise WrongState(
            "that owner of a lock is another user's", asked=wanted.owner, hint="take another name for the owner"
        )
    return await _Wait(call, name, wanted).through()


@ROUTES.add(
    "POST",
    "/api/locks/{name:.+}/renew",
    LockAnswer,
    "locks",
    Right.USE_LOCKS,
    request=LockRenewal,
    errors=(LockLost, StaleToken, NoQuorum),
    unlimited=True,
)
async def post_renew(call: RequestContext) -> Any:
    """Renew the lease of a holder, or the place of one who waits."""
    wanted = call.body_as(LockRenewal)
    asked_s = asyncio.get_running_loop().time()
    name = _name(call)
    if await _is_others(call, name, wanted.owner):
        raise LockLost(
            f"{wanted.owner} of {call.who.user} neither holds lock {call.part('name')} nor waits for it",
            asked=wanted.owner,
            hint="acquire it anew, for an owner of one's own",
        )
    answer = await _commit(call, RenewLock(name, wanted.owner, at=time(), token=_listed(wanted.token)))
    return _answer(call, name, wanted.owner, answer, asked_s)


@ROUTES.add(
    "POST",
    "/api/locks/{name:.+}/release",
    LockReleased,
    "locks",
    Right.USE_LOCKS,
    request=LockRelease,
    errors=(StaleToken, NotFound, NoQuorum),
    unlimited=True,
)
async def post_release(call: RequestContext) -> Any:
    """Give a lock back, leave the line, or (force) take it from its owner."""
    wanted = call.body_as(LockRelease)
    name, owner = _name(call), wanted.owner
    if not wanted.force:
        if await _is_others(call, name, owner):
            return {"name": call.part("name"), "owner": owner, "released": False}
        answer = await _commit(call, ReleaseLock(name, owner, at=time(), token=_listed(wanted.token)))
        return {"name": call.part("name"), "owner": owner, "released": answer["released"]}
    if call.who.scope(Right.BREAK_LOCKS) is None:
        raise NotAllowed(
            f"{'a job or task' if call.who.role is Role.SERVICE else 'the role ' + call.who.role.value} may not take a"
            " lock from its owner",
            asked=owner,
            hint="do it from outside of work: actorgrid lock release --force",
        )
    by = call.caller if call.caller not in ("", ADMIN) else user_for(call, wanted.user_id)
    if not by.isprintable():
        raise BadRequest("not the name of a user", asked=ascii(by)[:100], hint="letters that can be printed")
    answer = await _commit(call, BreakLock(name, owner, by, at=time()))
    if not answer["broken"]:
        raise NotFound(
            f"{owner} neither holds lock {name} nor waits for it",
            asked=owner,
            hint="actorgrid lock list shows who does",
        )
    return {"name": call.part("name"), "owner": owner, "released": True}


class _Wait:
    """One request to hold a lock, from the first question to the answer: does what ``LockWait`` says."""

    def __init__(self, call: RequestContext, name: str, wanted: LockRequest) -> None:
        self._call = call
        self._terms = WaitTerms(
            name,
            wanted.owner,
            wanted.ttl_s,
            wanted.slots,
            wanted.wait_s,
            wanted.stay,
            user_for(call, wanted.user_id),
            wanted.request,
        )
        self._loop = asyncio.get_running_loop()
        self._wait = LockWait(self._terms, os.urandom(REQUEST_ID_BYTES).hex(), self._loop.time())
        self._asked: asyncio.Future[HoldAnswer] | None = None

    async def through(self) -> Plain:
        """The answer. Raises LockHeld, LockTimeout, LockLost when it was taken out of the line, and what others do."""
        try:
            # Listened to before it is asked for: no change in between is missed.
            with self._call.app.hub.watch("lock", self._terms.name) as watch:
                await self._begin()
                while True:
                    step = self._wait.next(self._loop.time(), time())
                    if isinstance(step, GiveAnswer):
                        return _answer(self._call, self._terms.name, self._terms.owner, step.answer, step.asked_s)
                    if isinstance(step, CommitRequest):
                        await self._ask(step.command)
                    elif isinstance(step, CommitLeave):
                        self._wait.left(await _commit(self._call, step.command))
                    else:
                        changed = await watch.wait(max(0.0, step.at_s - self._loop.time()))
                        if self._call.app.stopping:
                            raise HostUnreachable("this host is stopping", hint="ask again: the place in line is kept")
                        if changed:
                            self._wait.changed(cast("LockRecord | None", watch.record), self._loop.time())
        except asyncio.CancelledError:
            if self._asked is not None:
                if self._call.app.stopping:
                    self._asked.cancel()  # the place is kept for who asks again
                else:
                    self._call.app.in_background(self._clean_up(self._asked))
            raise

    async def _begin(self) -> None:
        try:
            await self._ask(self._wait.acquire(time()))
        except HostsTooOld:
            self._wait = LockWait(self._terms, None, self._loop.time())
            await self._ask(self._wait.acquire(time()))

    async def _ask(self, command: Command) -> None:
        asked_s = self._loop.time()
        self._asked = asyncio.ensure_future(_commit(self._call, command))
        try:
            # It is carried out although the client goes away meanwhile; what it gave then has to be given back.
            answer = await asyncio.shield(self._asked)
        except LockLost as error:
            self._wait.lost(error)
        else:
            self._wait.answered(answer, asked_s)

    async def _clean_up(self, asked: asyncio.Future[HoldAnswer]) -> None:
        """The client is gone: so is what this request of its was given. Only once it was given, or never is."""
        terms = self._terms
        with contextlib.suppress(ActorGridError):
            await asked
        try:
            command = self._wait.clean_up(time())
            if command is not None:
                await _commit(self._call, command)
        except ActorGridError as error:
            log.info("lock %s of %s, who left, is given back by its lease: %s", terms.name, terms.owner, error)


async def _commit(call: RequestContext, command: Command) -> Any:
    return await call.propose(command)


async def _is_others(call: RequestContext, name: str, owner: str) -> bool:
    """Whether that place in a lock is another user's than of whoever asks, who may not take it from its owner.

    Owners are shown to all of a tenant. The leader is asked: whoever has read of a place on one host could else use it
    by way of another, which has not heard of it yet.
    """
    if call.who.scope(Right.BREAK_LOCKS) is not None:
        return False
    ledger = call.app.ledger

    async def read() -> Any:
        return await ledger.read("lock", {"name": name}, READ_S)

    record: LockRecord | None = await call.app.bridge.run(read, READ_S, "a lock")
    places = () if record is None else (*record["holders"], *record["waiters"])
    return any(each["owner"] == owner and each["user_id"] != call.who.user for each in places)


def _name(call: RequestContext) -> str:
    name = call.part("name")
    if len(name) > LOCK_NAME_MAX or not name.isprintable():
        raise BadRequest(
            "not the name of a lock",
            asked=ascii(name)[:100],
            hint=f"at most {LOCK_NAME_MAX} letters that can be printed",
        )
    prefix = tenant_prefix(call)
    if len(prefix) + len(name) > LOCK_NAME_MAX:
        raise BadRequest("the name of the lock is too long", asked=name[:100], found=f"{LOCK_NAME_MAX - len(prefix)}")
    if not prefix and not call.scope.is_all and is_of_tenant(name):
        raise BadRequest("locks whose names begin with @NAME/ are those of a tenant", asked=name[:100])
    return prefix + name


def is_of_tenant(name: str) -> bool:
    """Whether a lock of that name in the ledger is one of a tenant other than ``default``."""
    return name.startswith(SIGN) and "/" in name


def _listed(token: tuple[int, int] | None) -> list[int] | None:
    return None if token is None else list(token)


def fence(token: list[int]) -> int:
    """A fencing token as one number: of two tokens the higher one has the higher number."""
    return (token[0] << EPOCH_BITS) + token[1]


def _answer(call: RequestContext, name: str, owner: str, answer: HoldAnswer, asked_s: float) -> Plain:
    token = answer["token"]
    spent_s = asyncio.get_running_loop().time() - asked_s
    return {
        "name": name.removeprefix(tenant_prefix(call)),
        "owner": owner,
        "held": answer["held"],
        "token": token,
        "fence": None if token is None else fence(token),
        "position": answer["position"],
        "slots": answer["slots"],
        "ttl_s": answer["ttl_s"],
        "expires_in_s": max(0.0, answer["ttl_s"] - spent_s),
    }


def _fields(place: LockEntry, names: Iterable[str]) -> Plain:
    return {name: place.get(name) for name in names}


def _shown(call: RequestContext, lock: LockRecord) -> Plain:
    """A lock's record as the answer shows it."""
    fields = ("owner", "user_id", "since", "ttl_s")
    return {
        "name": lock["name"].removeprefix(tenant_prefix(call)),
        "slots": lock["slots"],
        "holders": [
            {**_fields(each, fields), "token": each["token"], "fence": fence(each["token"] or [])}
            for each in lock["holders"]
        ],
        "waiters": [_fields(each, fields) for each in lock["waiters"]],
    }
