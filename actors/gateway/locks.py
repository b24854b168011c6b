"""Locks and semaphores: who holds what; acquire, renew, release.

A request that waits is held open here: this host keeps its place in line alive for as long as the client is
connected, and gives it up when the client goes away. When this host goes away instead, the place stays for as long as
its lease, and the client that asks again, here or elsewhere, stands where it stood.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import time
from typing import Any

from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    DiskFull,
    HostUnreachable,
    LockHeld,
    LockLost,
    LockSlotsDiffer,
    LockTimeout,
    NoQuorum,
    NotFound,
    QueueFull,
    StaleToken,
    WrongState,
)

from ..consensus.command_checks import LOCK_NAME_MAX
from ..consensus.commands import acquire_lock, break_lock, leave_line, release_lock, renew_lock
from ..consensus.lock_expiry import WAITER_LEASE_S
from ..consensus.messages import Query
from ..consensus.records import UNKNOWN_USER
from .auth import ADMIN
from .lock_answers import LockAnswer, LockRelease, LockReleased, LockRenewal, LockRequest, LocksAnswer, LocksQuery
from .route import Call, Route

EPOCH_BITS = 48
"""``fence`` is (epoch << 48) + index: 64 bits hold it for 32,767 recoveries of 2.8e14 entries each."""
RENEWS_A_LEASE = 3
Plain = dict[str, Any]

log = logging.getLogger("actorgrid.gateway")


async def get_locks(call: Call) -> Any:
    """What is held, by name."""
    wanted = call.query_as(LocksQuery)
    locks = (await call.ask("consensus", Query("locks"), 10.0))["locks"]
    found = [lock for lock in locks if lock["name"].startswith(wanted.prefix)]
    return {"locks": [_shown(lock) for lock in found[: wanted.limit]], "total": len(found)}


async def post_acquire(call: Call) -> Any:
    """Hold it, wait for it."""
    wanted = call.body_as(LockRequest)
    return await _Wait(call, _name(call), wanted).through()


async def post_renew(call: Call) -> Any:
    """Give a sign of life."""
    wanted = call.body_as(LockRenewal)
    asked_s = asyncio.get_running_loop().time()
    name = _name(call)
    answer = await _commit(call, renew_lock(name, wanted.owner, time(), _listed(wanted.token)))
    return _answer(name, wanted.owner, answer, asked_s)


async def post_release(call: Call) -> Any:
    """Give it back; take it from somebody."""
    wanted = call.body_as(LockRelease)
    name, owner = _name(call), wanted.owner
    if not wanted.force:
        answer = await _commit(call, release_lock(name, owner, time(), _listed(wanted.token)))
        return {"name": name, "owner": owner, "released": answer["released"]}
    by = call.visitor if call.visitor not in ("", ADMIN) else wanted.user_id or UNKNOWN_USER
    if not by.isprintable():
        raise BadRequest("not the name of a user", asked=ascii(by)[:100], hint="letters that can be printed")
    answer = await _commit(call, break_lock(name, owner, by, time()))
    if not answer["broken"]:
        raise NotFound(
            f"{owner} neither holds lock {name} nor waits for it",
            asked=owner,
            hint="actorgrid lock list shows who does",
        )
    return {"name": name, "owner": owner, "released": True}


class _Wait:
    """One request to hold a lock, from the first question to the answer."""

    def __init__(self, call: Call, name: str, wanted: LockRequest) -> None:
        self._call = call
        self._name = name
        self._wanted = wanted
        self._loop = asyncio.get_running_loop()
        self._asked: asyncio.Future[Plain] | None = None
        self._asked_s = 0.0

    async def through(self) -> Plain:
        """The answer. Raises LockHeld, LockTimeout, LockLost when it was taken out of the line, and what others do."""
        wanted, name = self._wanted, self._name
        ends_s = self._loop.time() + wanted.wait_s
        asks_to_wait = wanted.wait_s > 0 or wanted.stay
        try:
            # Listened to before it is asked for: no change in between is missed.
            with self._call.door.hub.watch("lock", name) as watch:
                answer = await self._ask(
                    lambda: acquire_lock(
                        name,
                        wanted.owner,
                        wanted.ttl_s,
                        time(),
                        wait=asks_to_wait,
                        slots=wanted.slots,
                        user_id=wanted.user_id,
                    )
                )
                renew_s = max(wanted.ttl_s, WAITER_LEASE_S) / RENEWS_A_LEASE
                while not answer["held"]:
                    now_s = self._loop.time()
                    if now_s >= ends_s:
                        return await self._give_up(answer)
                    changed = await watch.wait(max(0.0, min(ends_s, self._asked_s + renew_s) - now_s))
                    if self._call.door.stopping:
                        raise HostUnreachable("this host is stopping", hint="ask again: the place in line is kept")
                    place = _place(watch.record, wanted.owner) if changed else None
                    if place is not None and place["token"] is None:
                        continue  # others came and went
                    if place is not None:
                        self._asked_s = self._loop.time()  # the lease counts from the grant
                        answer = {**answer, "held": True, "token": place["token"], "position": 0}
                    elif changed or self._loop.time() >= self._asked_s + renew_s:
                        answer = await self._ask(lambda: renew_lock(name, wanted.owner, time()))
                return self._answer(answer)
        except asyncio.CancelledError:
            if self._asked is not None:
                if self._call.door.stopping:
                    self._asked.cancel()  # the place is kept for who asks again
                else:
                    self._call.door.in_background(self._leave(self._asked))
            raise

    async def _ask(self, make: Callable[[], Plain]) -> Plain:
        self._asked_s = self._loop.time()
        self._asked = asyncio.ensure_future(_commit(self._call, make()))
        # It is carried out although the client goes away meanwhile; what it gave then has to be given back.
        return await asyncio.shield(self._asked)

    def _answer(self, answer: Plain) -> Plain:
        return _answer(self._name, self._wanted.owner, answer, self._asked_s)

    async def _give_up(self, answer: Plain) -> Plain:
        """The time is over: the place, for one who stays; the lock, for one who got it at the last moment."""
        if self._wanted.stay and not self._wanted.wait_s:
            return self._answer(answer)
        if self._wanted.stay:
            return self._answer(await self._ask(lambda: renew_lock(self._name, self._wanted.owner, time())))
        command = leave_line(self._name, self._wanted.owner, answer["renewals"], time())
        left = await _commit(self._call, command)
        if not left["released"]:
            try:
                last = await self._ask(lambda: renew_lock(self._name, self._wanted.owner, time()))
            except LockLost:
                last = answer
            if last["held"]:
                return self._answer(last)
        raise LockTimeout(
            f"lock {self._name} was held all the time",
            asked=f"it for {self._wanted.owner} within {self._wanted.wait_s:g} s",
            found=f"{answer['position']} in line at the last look",
            hint="wait longer, or ask again later; actorgrid lock list shows who holds it",
        )

    async def _leave(self, asked: asyncio.Future[Plain]) -> None:
        """The client is gone: so are its place and what it was given, unless it has asked again since."""
        try:
            seen = (await asked)["renewals"]
            left = await _commit(self._call, leave_line(self._name, self._wanted.owner, seen, time()))
            if left["released"]:
                return
            mine = _place(await self._call.ask("consensus", Query("lock", {"name": self._name})), self._wanted.owner)
            # The grant counts as one renewal; this one was told to nobody.
            if mine is not None and mine["token"] is not None and mine["renewals"] == seen + 1:
                command = leave_line(self._name, self._wanted.owner, seen + 1, time(), mine["token"])
                await _commit(self._call, command)
        except ActorGridError as error:
            log.info("lock %s of %s, who left, is given back by its lease: %s", self._name, self._wanted.owner, error)


def _place(record: Plain | None, owner: str) -> Plain | None:
    """What a lock's record says of *owner*."""
    those = () if record is None else (*record["holders"], *record["waiters"])
    return next((each for each in those if each["owner"] == owner), None)


async def _commit(call: Call, command: Plain) -> Plain:
    answer: Plain = await call.propose(command)
    return answer


def _name(call: Call) -> str:
    name = call.part("name")
    if len(name) > LOCK_NAME_MAX or not name.isprintable():
        raise BadRequest(
            "not the name of a lock",
            asked=ascii(name)[:100],
            hint=f"at most {LOCK_NAME_MAX} letters that can be printed",
        )
    return name


def _listed(token: tuple[int, int] | None) -> list[int] | None:
    return None if token is None else list(token)


def fence(token: list[int]) -> int:
    """A token as one number: of two tokens the higher one's is higher."""
    return (token[0] << EPOCH_BITS) + token[1]


def _answer(name: str, owner: str, answer: Plain, asked_s: float) -> Plain:
    token = answer["token"]
    spent_s = asyncio.get_running_loop().time() - asked_s
    return {
        "name": name,
        "owner": owner,
        "held": answer["held"],
        "token": token,
        "fence": None if token is None else fence(token),
        "position": answer["position"],
        "slots": answer["slots"],
        "ttl_s": answer["ttl_s"],
        "expires_in_s": max(0.0, answer["ttl_s"] - spent_s),
    }


def _shown(lock: Plain) -> Plain:
    """A record as people see it."""
    fields = ("owner", "user_id", "since", "ttl_s")
    return {
        "name": lock["name"],
        "slots": lock["slots"],
        "holders": [
            {**{field: each[field] for field in fields}, "token": each["token"], "fence": fence(each["token"])}
            for each in lock["holders"]
        ],
        "waiters": [{field: each[field] for field in fields} for each in lock["waiters"]],
    }


ROUTES = (
    Route("GET", "/api/locks", "What is held, and who waits", get_locks, LocksAnswer, "locks", query=LocksQuery),
    Route(
        "POST",
        "/api/locks/{name:.+}/acquire",
        "Hold a lock or a slot of a semaphore; wait for it in line",
        post_acquire,
        LockAnswer,
        "locks",
        request=LockRequest,
        errors=(LockHeld, LockTimeout, LockLost, LockSlotsDiffer, WrongState, QueueFull, DiskFull, NoQuorum),
        waits=True,
    ),
    Route(
        "POST",
        "/api/locks/{name:.+}/renew",
        "Renew the lease of a holder, or the place of one who waits",
        post_renew,
        LockAnswer,
        "locks",
        request=LockRenewal,
        errors=(LockLost, StaleToken, NoQuorum),
    ),
    Route(
        "POST",
        "/api/locks/{name:.+}/release",
        "Give a lock back, leave the line, or (force) take it from its owner",
        post_release,
        LockReleased,
        "locks",
        request=LockRelease,
        errors=(StaleToken, NotFound, NoQuorum),
    ),
)
