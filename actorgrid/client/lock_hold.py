"""One holding of a lock, from the question to its end: asks, waits, renews by itself, and knows when it is over.

The holder's own clock decides first. Its deadline is the time to live after the moment *before* the last renewal that
succeeded was sent, less a hundredth; the ledger counts from the moment it took that renewal, and a tenth more, so
whoever believes in the deadline has stopped before anybody else is let in (``docs/locks.md``). The clock is one that
goes on while the machine sleeps.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from actorgrid.errors import (
    ActorDown,
    ActorGridError,
    BadRequest,
    CallTimeout,
    HostUnreachable,
    LockLost,
    NoSuchActor,
    NotLeader,
    StaleToken,
)
from actorgrid.fencing import FencingToken

from .http import AdminHttp, segment

DRIFT = 0.01
RENEWS_A_LEASE = 3
POLL_S = 20.0
"""One question that waits; then it is asked again, for the same place in line."""
ANSWER_S = 45.0
"""Beyond what a question waits: its commit may have to wait for an election."""
AWAY_S = 30.0
"""How long no host may answer before a wait is given up."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 1.0
LEAVE_S = 3.0
# For people who look at who holds it.
_HOST = re.sub(r"[^A-Za-z0-9_.-]|^[^A-Za-z0-9]", "x", socket.gethostname())[:64] or "host"
_AWAY = (HostUnreachable, CallTimeout, NotLeader, ActorDown, NoSuchActor)


LockToken = FencingToken
"""The name it had when only locks had tokens."""


def clock_s() -> float:
    """Seconds that never step, and that pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LockHold:
    """One owner's try for a lock. ``acquire`` once, then ``check`` and ``release``.

    ``on_lost`` is called once, in a thread of its own, with the LockLost that ends it. ``alive`` says whether who holds
    it still lives: when not, it is given back.
    """

    def __init__(
        self,
        http: AdminHttp,
        name: str,
        *,
        ttl_s: float,
        slots: int,
        user: str,
        on_lost: Callable[[LockLost], None] | None,
        alive: Callable[[], bool],
    ) -> None:
        self.name = name
        self.owner = f"{_HOST}:{os.getpid()}:{uuid.uuid4().hex[:16]}"
        self.token: FencingToken | None = None
        self._http = http
        self._path = f"/api/locks/{segment(name)}"
        self._ttl_s = ttl_s
        self._slots = slots
        self._user = user
        self._on_lost = on_lost
        self._alive = alive
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._sent_s = 0.0
        self._deadline_s = 0.0
        self._loss: LockLost | None = None
        self._over = threading.Event()
        self._abandoned = False
        self._released = False
        self._numbers = itertools.count(1)
        self._is_numbered = True

    # -- getting it

    def acquire(self, wait_s: float | None) -> FencingToken:
        """Hold it, within *wait_s* (``None``: whenever). Raises LockHeld (with 0), LockTimeout, and what the host says.

        When no host answers for 30 s, what the last try failed with. Interrupted, it leaves the line.
        """
        ends_s = None if wait_s is None else clock_s() + wait_s
        try:
            while True:
                left_s = None if ends_s is None else max(0.0, ends_s - clock_s())
                asked_s = clock_s()
                try:
                    answer = self._ask(left_s)
                    if answer["held"] and clock_s() - asked_s > self._ttl_s / 10:
                        # The lease began when the lock was granted, which may be any time since the question.
                        asked_s = clock_s()
                        answer = self._send("renew", self._own_token(answer), timeout_s=ANSWER_S)
                except LockLost:
                    continue  # out of the line, by its lease or by somebody: to its end
                finally:
                    if self._abandoned:
                        self._leave()
                if self._abandoned:
                    raise LockLost(f"lock {self.name} was given up while it was asked for")
                if answer["held"]:
                    return self._holds(answer, asked_s)
        except ActorGridError:
            raise
        except BaseException:
            self._leave()
            raise

    def _ask(self, left_s: float | None) -> dict[str, Any]:
        """The host's answer to one question, asked again while no host answers."""
        stay = left_s is None or left_s > POLL_S
        wait_s = POLL_S if left_s is None else min(left_s, POLL_S)
        body: dict[str, Any] = {
            "owner": self.owner,
            "ttl_s": self._ttl_s,
            "slots": self._slots,
            "wait_s": wait_s,
            "stay": stay,
            "user_id": self._user,
        }
        away_s, pause_s = 0.0, PAUSE_FIRST_S
        while True:
            began_s = clock_s()
            try:
                return self._send_numbered(body, wait_s + ANSWER_S)
            except _AWAY:
                now_s = clock_s()
                away_s = away_s or began_s
                enough_s = AWAY_S if left_s is None else min(AWAY_S, left_s)
                if self._http.closed or self._abandoned or now_s - away_s >= enough_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _send_numbered(self, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Ask under a number of its own each time it is sent: a host that finds an earlier connection broken later
        must not take back what was given to this one."""

        def numbered() -> dict[str, Any]:
            return {**body, "request": next(self._numbers)} if self._is_numbered else body

        path = f"{self._path}/acquire"
        answer: dict[str, Any]
        try:
            answer = self._http.post(path, numbered, repeat=True, timeout_s=timeout_s)
        except BadRequest as error:
            if error.details.get("field") != "request":
                raise
            self._is_numbered = False  # a host of a version that does not know them
            answer = self._http.post(path, body, repeat=True, timeout_s=timeout_s)
        return answer

    def _holds(self, answer: dict[str, Any], asked_s: float) -> FencingToken:
        self.token = FencingToken(*answer["token"])
        self._sent_s = asked_s
        self._deadline_s = asked_s + answer["ttl_s"] * (1 - DRIFT)
        for work in (self._keep_renewing, self._watch_the_clock):
            threading.Thread(target=work, name=f"lock {self.name}", daemon=True).start()
        return self.token

    def abandon(self) -> None:
        """Stop asking, from another thread than the one that asks."""
        self._abandoned = True
        self._leave()

    def _leave(self) -> None:
        """Leave the line, or give the lock back; what cannot be told now, the end of the lease tells."""
        try:
            self._send("release", {}, timeout_s=LEAVE_S)
        except ActorGridError:
            return

    # -- having it

    @property
    def lost(self) -> bool:
        """Whether the holding is over without a release: by the clock, or by the ledger's word.

        Once true, always true.
        """
        return self._find_loss() is not None and not self._released

    @property
    def left_s(self) -> float:
        """Seconds for which the lock is surely held without a renewal; 0 when it is not held."""
        return 0.0 if self._find_loss() is not None else max(0.0, self._deadline_s - clock_s())

    def check(self) -> None:
        """Raise LockLost unless it is held, by our own clock and as far as the ledger has told."""
        loss = self._find_loss()
        if loss is not None:
            raise LockLost(loss.message, asked=loss.asked, found=loss.found, hint=loss.hint)

    def _find_loss(self) -> LockLost | None:
        if os.getpid() != self._pid:
            return LockLost(f"lock {self.name} is the parent's", hint="a lock does not pass to a forked child")
        with self._guard:
            if self._loss is None and clock_s() >= self._deadline_s:
                self._loss = LockLost(
                    f"the lease of lock {self.name} is over",
                    asked=f"{self._ttl_s:g} s without a renewal",
                    found="no renewal was confirmed in time",
                    hint="stop what the lock guards, then acquire it anew; a longer ttl_s bears longer pauses",
                )
            return self._loss

    def release(self) -> None:
        """Give it back. Raises LockLost when it was not held to this moment, HostUnreachable when nobody took it."""
        if os.getpid() != self._pid:
            self.check()
        self._over.set()
        loss = self._find_loss()
        with self._guard:
            self._released = loss is None
            self._loss = self._loss or LockLost(f"lock {self.name} was released")
        if loss is not None:
            raise loss  # the ledger knows, or its clock comes to it
        answer = self._send("release", self._own_token())
        if not answer["released"]:
            raise LockLost(f"lock {self.name} was not held any more", hint="somebody broke it, or its lease ran out")

    def forget(self) -> None:
        """Stop renewing: the lease ends the holding."""
        self._over.set()

    def drop(self) -> None:
        """Give the lock back without raising: the client closes, or its owner is gone."""
        if os.getpid() == self._pid and not self._over.is_set():
            self._over.set()
            self._leave()

    # -- its two threads

    def _keep_renewing(self) -> None:
        next_s = self._sent_s + self._ttl_s / RENEWS_A_LEASE
        while not self._over.wait(max(0.0, next_s - clock_s())):
            if not self._alive():
                self.drop()
                return
            sent_s = clock_s()
            try:
                answer = self._send("renew", self._own_token(), timeout_s=max(0.5, self._ttl_s / RENEWS_A_LEASE))
            except (LockLost, StaleToken) as error:
                self._lose(LockLost(error.message, asked=error.asked, found=error.found, hint=error.hint))
                return
            except ActorGridError:
                if self.lost:
                    return
                next_s = clock_s() + min(self._ttl_s / 20, PAUSE_MAX_S)
                continue
            with self._guard:
                if self._loss is not None or clock_s() >= self._deadline_s:
                    return  # confirmed too late: whoever looks, or looked, is told that it is over
                self._deadline_s = sent_s + answer["ttl_s"] * (1 - DRIFT)
            next_s = sent_s + self._ttl_s / RENEWS_A_LEASE

    def _watch_the_clock(self) -> None:
        """Watch the deadline, in a thread apart from the one that renews, which may hang when the time is over."""
        while not self._over.wait(max(0.0, self._deadline_s - clock_s())):
            if self.lost:
                self._tell()
                return

    def _lose(self, loss: LockLost) -> None:
        with self._guard:
            if self._over.is_set():
                return
            self._loss = self._loss or loss
            self._deadline_s = 0.0  # the other thread tells; a wait of its own ends at the old deadline
        self._tell()

    def _tell(self) -> None:
        with self._guard:
            first = not self._over.is_set()
            self._over.set()
        if first and self._on_lost is not None and self._loss is not None:
            self._on_lost(self._loss)

    # -- HTTP

    def _own_token(self, answer: dict[str, Any] | None = None) -> dict[str, Any]:
        token = self.token if answer is None else answer["token"]
        return {"token": None if token is None else list(token)}

    def _send(self, verb: str, body: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        path = f"{self._path}/{verb}"
        answer: dict[str, Any] = self._http.post(path, {"owner": self.owner, **body}, repeat=True, timeout_s=timeout_s)
        return answer
