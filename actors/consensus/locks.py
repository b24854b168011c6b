"""Locks with fencing tokens: one holder each in the order of the log, and a line of those who wait.

The token of a grant is (recovery epoch, log index), so a later holder's is always higher; whoever writes something that
a lock guards sends its token along, and what is lower than the highest seen there is refused (Burrows, "The Chubby lock
service", OSDI 2006, 2.4, calls it a sequencer). A lease runs out by an entry of the log, never by a replica's clock:
the leader counts the time (``lock_expiry.py``) and says which renewal it has seen last, so that an expiry which was
overtaken by a renewal does nothing.

Bounds: 10,000 locks held at a time, 1,000 who wait for each, leases of 0.5 s to a day.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorgrid.errors import LockHeld, LockLost, QueueFull, StaleToken, WrongState

LOCKS_MAX = 10_000
WAITERS_MAX = 1_000

Plain = dict[str, Any]
Answer = dict[str, Any]


class Locks:
    """Part of the replicated state. *changed* is told of each lock that changed: its name, its record or
    ``None``, and what happened.

    A record is {"name", "holder", "waiters"}; holder and waiters are {"owner", "user_id", "ttl_s", "renewals", "since",
    "token"}, the token of a waiter is ``None``. Records are replaced when they change, never written into.
    """

    def __init__(self, changed: Callable[[str, Plain | None, str], None]) -> None:
        self.records: dict[str, Plain] = {}
        self._changed = changed

    def acquire(self, command: Plain, token: list[int], at: float) -> Answer:
        """Hold the lock with *token*, or stand in line for it. Asked again by the same owner, the same answer.

        Raises LockHeld when it is taken and the command does not ask to wait, WrongState or QueueFull at the bounds.
        """
        name, owner = command["name"], command["owner"]
        record = self.records.get(name)
        asker = {
            "owner": owner,
            "user_id": command.get("user_id", "local"),
            "ttl_s": command["ttl_s"],
            "renewals": 0,
            "since": at,
            "token": None,
        }
        if record is None:
            if len(self.records) >= LOCKS_MAX:
                raise WrongState("the ledger holds its maximum of locks", found=f"{LOCKS_MAX} locks")
            record = {"name": name, "holder": {**asker, "token": token}, "waiters": []}
            self._put(record, "granted")
        elif _find(record, owner) is None:
            if not command.get("wait", False):
                raise LockHeld(
                    f"lock {name} is held",
                    asked=f"it for {owner}",
                    found=f"{record['holder']['owner']} of {record['holder']['user_id']} has it,"
                    f" {len(record['waiters'])} wait",
                    hint="wait for it, or ask again later",
                )
            if len(record["waiters"]) >= WAITERS_MAX:
                raise QueueFull(
                    f"too many wait for lock {name}", found=f"{WAITERS_MAX} waiting", hint="try again later"
                )
            record = {**record, "waiters": [*record["waiters"], asker]}
            self._put(record, "awaited")
        return _answer(record, owner)

    def renew(self, command: Plain) -> Answer:
        """Count a sign of life of a holder or waiter. Raises LockLost for anyone else, StaleToken for an old token."""
        name, owner = command["name"], command["owner"]
        record = self.records.get(name)
        mine = None if record is None else _find(record, owner)
        if record is None or mine is None:
            raise LockLost(
                f"{owner} neither holds lock {name} nor waits for it",
                asked=f"to renew it for {owner}",
                found="nobody has it" if record is None else f"{record['holder']['owner']} has it",
                hint="its lease ran out, or it was released: stop what it guards, then acquire it anew",
            )
        _check_token(command, mine)
        self._replace(record, owner, {**mine, "renewals": mine["renewals"] + 1}, "")
        return _answer(self.records[name], owner)

    def release(self, command: Plain, token: list[int], at: float) -> Answer:
        """Give the lock back, or leave the line. One that is not held by *owner* is no error; StaleToken may be."""
        return {"released": self._remove(command, token, at, "released")}

    def expire(self, command: Plain, token: list[int], at: float) -> Answer:
        """Take the lock, or the place in line, from one who has not renewed since the leader looked."""
        record = self.records.get(command["name"])
        mine = None if record is None else _find(record, command["owner"])
        if mine is None or mine["renewals"] != command["renewals"]:
            return {"expired": False}
        return {"expired": self._remove(command, token, at, "expired")}

    def _remove(self, command: Plain, token: list[int], at: float, word: str) -> bool:
        name, owner = command["name"], command["owner"]
        record = self.records.get(name)
        mine = None if record is None else _find(record, owner)
        if record is None or mine is None:
            return False
        _check_token(command, mine)
        if mine is not record["holder"]:
            self._replace(record, owner, None, word)
        elif record["waiters"]:
            first, *others = record["waiters"]
            # The lease counts from now: a waiter could not know earlier that it holds the lock.
            heir = {**first, "token": token, "renewals": first["renewals"] + 1, "since": at}
            self._put({**record, "holder": heir, "waiters": others}, "granted")
        else:
            del self.records[name]
            self._changed(name, None, word)
        return True

    def _replace(self, record: Plain, owner: str, mine: Plain | None, word: str) -> None:
        if record["holder"]["owner"] == owner:
            assert mine is not None, "a lock without a holder is none"
            self._put({**record, "holder": mine}, word)
            return
        waiters = [mine if waiter["owner"] == owner else waiter for waiter in record["waiters"]]
        self._put({**record, "waiters": [waiter for waiter in waiters if waiter is not None]}, word)

    def _put(self, record: Plain, word: str) -> None:
        self.records[record["name"]] = record
        self._changed(record["name"], record, word)


def _find(record: Plain, owner: str) -> Plain | None:
    if record["holder"]["owner"] == owner:
        holder: Plain = record["holder"]
        return holder
    return next((waiter for waiter in record["waiters"] if waiter["owner"] == owner), None)


def _answer(record: Plain, owner: str) -> Answer:
    """What an owner is told: its token once it holds the lock; its place in line, from 1, until then."""
    if record["holder"]["owner"] == owner:
        return {"held": True, "token": record["holder"]["token"], "position": 0}
    owners = [waiter["owner"] for waiter in record["waiters"]]
    return {"held": False, "token": None, "position": owners.index(owner) + 1}


def _check_token(command: Plain, mine: Plain) -> None:
    given = command.get("token")
    if given is not None and given != mine["token"]:
        raise StaleToken(f"the token is not that of lock {command['name']}", asked=f"{given}", found=f"{mine['token']}")
