"""Locks and semaphores with fencing tokens: holders in the order of the log, and a line of those who wait.

A lock has one slot, a semaphore several; up to that many hold it, each with a token of its own. The token of a grant is
(recovery epoch, log index), so a later grant's is always higher; whoever writes something that a lock guards sends its
token along, and what is lower than the highest seen there is refused (Burrows, "The Chubby lock service", OSDI 2006,
2.4, calls it a sequencer). A lease runs out by an entry of the log, never by a replica's clock: the leader counts the
time (``lock_expiry.py``) and says which renewal it has seen last, so that an expiry which was overtaken by a renewal
does nothing.

Each time that an owner asks is a request of its own, and the record keeps which of them what it has was given to, for
as long as nobody may have been told: only under that name does a host take back what a client did not live to hear of
(``_newest``). Else the clean-up for a connection that broke takes the lock from who asked again over another one.

Bounds: 10,000 locks held at a time, of 1,000 slots; 1,000 who wait for each; leases of 0.5 s to a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from actorgrid.actors.ledger.answers import HoldAnswer, ReleaseAnswer
from actorgrid.actors.ledger.commands import AcquireLock, BreakLock, ExpireLock, ReleaseLock, RenewLock
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.field_checks import ABSENT, Plain
from actorgrid.actors.ledger.record_types import LockEntry, LockRecord
from actorgrid.errors import LockHeld, LockLost, LockSlotsDiffer, QueueFull, StaleToken, WrongState

LOCKS_MAX = 10_000
WAITERS_MAX = 1_000

_NOBODYS = [0, ""]


class Locks:
    """Part of the replicated state. *changed* is told of each lock that changed: its name, its record or
    ``None``, and what happened; *broken* of one that was taken from {owner} on the word of {by}.

    A record is {"name", "slots", "holders", "waiters"}; those are in the order in which they came to be it, each
    {"owner", "user_id", "ttl_s", "renewals", "since", "token"}, where the token of a waiter is ``None``, and
    "request", [number, id], when it was asked for with one: an empty id is nobody's. While
    somebody waits, no slot is free. Records are replaced when they change, never written into.
    """

    def __init__(
        self,
        changed: Callable[[str, LockRecord | None, str], None],
        broken: Callable[[str, Plain], None] = lambda *_: None,
    ) -> None:
        self.records: dict[str, LockRecord] = {}
        self._changed = changed
        self._broken = broken

    def load(self, records: Iterable[LockRecord]) -> None:
        """Load the records of a snapshot."""
        self.records.update((record["name"], record) for record in records)

    @applies(AcquireLock)
    def acquire(self, command: AcquireLock, entry: EntryContext) -> HoldAnswer:
        """Acquire the lock under *token*, or wait in line for it.

        Asked again by the same owner, the same answer, and a sign of life with the time to live that is said now.
        Raises LockHeld when it is taken and the command does not ask to wait, LockSlotsDiffer, and WrongState or
        QueueFull at the bounds.
        """
        name, owner, slots = command.name, command.owner, command.slots
        record = self.records.get(name)
        asker: LockEntry = {
            "owner": owner,
            "user_id": command.user_id,
            "ttl_s": command.ttl_s,
            "renewals": 0,
            "since": entry.at,
            "token": None,
        }
        if command.request is not ABSENT:
            asker["request"] = command.request
        if record is None:
            if len(self.records) >= LOCKS_MAX:
                raise WrongState("the ledger holds its maximum of locks", found=f"{LOCKS_MAX} locks")
            self._put(
                {"name": name, "slots": slots, "holders": [{**asker, "token": entry.token}], "waiters": []}, "granted"
            )
            return self._answer(name, owner)
        if record["slots"] != slots:
            raise LockSlotsDiffer(
                f"lock {name} has another number of slots",
                asked=f"{slots}",
                found=f"{record['slots']}, {_held_by(record)}",
                hint=f"ask for {record['slots']}; the number can change once nobody holds it",
            )
        mine = _find(record, owner)
        if mine is not None:
            renewed: LockEntry = {**mine, "ttl_s": command.ttl_s, "renewals": mine["renewals"] + 1}
            self._replace(record, _newest(renewed, None if command.request is ABSENT else command.request))
        elif len(record["holders"]) < slots:
            self._put({**record, "holders": [*record["holders"], {**asker, "token": entry.token}]}, "granted")
        elif not command.wait:
            raise LockHeld(
                f"lock {name} is held",
                asked=f"it for {owner}",
                found=_held_by(record),
                hint="wait for it, or ask again later",
            )
        elif len(record["waiters"]) >= WAITERS_MAX:
            raise QueueFull(f"too many wait for lock {name}", found=f"{WAITERS_MAX} waiting", hint="try again later")
        else:
            self._put({**record, "waiters": [*record["waiters"], asker]}, "awaited")
        return self._answer(name, owner)

    @applies(RenewLock)
    def renew(self, command: RenewLock, _entry: EntryContext) -> HoldAnswer:
        """Count a sign of life of a holder or waiter. Raises LockLost for anyone else, StaleToken for an old token.

        One that names its request is a host's, for a client that waits there: LockLost when that client has asked
        anew since. Any other is the owner's own, who knows from then on what it has.
        """
        name, owner = command.name, command.owner
        record = self.records.get(name)
        mine = None if record is None else _find(record, owner)
        if record is None or mine is None:
            raise LockLost(
                f"{owner} neither holds lock {name} nor waits for it",
                asked=f"to renew it for {owner}",
                found="nobody has it" if record is None else _held_by(record),
                hint="its lease ran out, or it was released: stop what it guards, then acquire it anew",
            )
        _check_token(command, mine)
        request = command.request
        if request is not ABSENT and mine.get("request", _NOBODYS)[1] not in ("", request[1]):
            raise LockLost(
                f"{owner} has asked for lock {name} again since",
                asked="to keep its place for an earlier request",
                found="a later one, which goes on in its place",
                hint="nothing, when another request of this owner is under way; else ask again",
            )
        renewed: LockEntry = {**mine, "renewals": mine["renewals"] + 1}
        self._replace(record, renewed if request is not ABSENT else _disowned(renewed))
        return self._answer(name, owner)

    @applies(ReleaseLock)
    def release(self, command: ReleaseLock, entry: EntryContext) -> ReleaseAnswer:
        """Give the lock back, or leave the line. One that is not held by *owner* is no error; StaleToken may be.

        Whoever releases for another that seems to be gone names the ``request`` that it was given to: then nothing is
        done once the owner was told, or asked again. Or the ``renewals`` it has seen: then nothing is done when the
        owner has given a sign of life since.
        """
        return {"released": self._remove(command, entry, "released")}

    @applies(BreakLock)
    def break_open(self, command: BreakLock, entry: EntryContext) -> dict[str, bool]:
        """Take the lock, or the place in line, from its owner on somebody's word."""
        return {"broken": self._take_away(command, entry)}

    @applies(ExpireLock)
    def expire(self, command: ExpireLock, entry: EntryContext) -> dict[str, bool]:
        """Take the lock, or the place in line, from one who has not renewed since the leader looked."""
        return {"expired": self._remove(command, entry, "expired")}

    def _take_away(self, command: BreakLock, entry: EntryContext) -> bool:
        broken = self._remove(command, entry, f"broken by {command.by}")
        if broken:
            self._broken(command.name, {"owner": command.owner, "by": command.by})
        return broken

    def _remove(self, command: ReleaseLock | BreakLock | ExpireLock, entry: EntryContext, word: str) -> bool:
        name, owner = command.name, command.owner
        record = self.records.get(name)
        mine = None if record is None else _find(record, owner)
        if record is None or mine is None:
            return False
        if not isinstance(command, BreakLock) and command.renewals not in (ABSENT, mine["renewals"]):
            return False
        if isinstance(command, ReleaseLock):
            if command.request is not ABSENT and mine.get("request") != command.request:
                return False
            _check_token(command, mine)
        holders = [holder for holder in record["holders"] if holder is not mine]
        waiters = [waiter for waiter in record["waiters"] if waiter is not mine]
        if waiters and len(holders) < record["slots"]:
            first = waiters.pop(0)
            # The lease counts from now: a waiter could not know earlier that it holds the lock.
            holders.append({**first, "token": entry.token, "renewals": first["renewals"] + 1, "since": entry.at})
            word = f"{word}, granted"
        if holders:
            self._put({**record, "holders": holders, "waiters": waiters}, word)
        else:
            del self.records[name]
            self._changed(name, None, word)
        return True

    def _replace(self, record: LockRecord, mine: LockEntry) -> None:
        """Put *mine* in place of the owner's former record; no event for people."""

        def renewed(those: list[LockEntry]) -> list[LockEntry]:
            return [mine if each["owner"] == mine["owner"] else each for each in those]

        if mine["token"] is None:
            self._put({**record, "waiters": renewed(record["waiters"])}, "")
        else:
            self._put({**record, "holders": renewed(record["holders"])}, "")

    def _put(self, record: LockRecord, word: str) -> None:
        self.records[record["name"]] = record
        self._changed(record["name"], record, word)

    def _answer(self, name: str, owner: str) -> HoldAnswer:
        """The answer to an owner: its token once it holds the lock; its place in line, from 1, until then."""
        record = self.records[name]
        mine = _find(record, owner)
        assert mine is not None, f"{owner} was given lock {name}, or a place in its line"
        place = 0 if mine["token"] is not None else 1 + record["waiters"].index(mine)
        answer: HoldAnswer = {
            "held": mine["token"] is not None,
            "token": mine["token"],
            "position": place,
            "slots": record["slots"],
            "ttl_s": mine["ttl_s"],
            "renewals": mine["renewals"],
        }
        if "request" in mine:
            answer["request"] = mine["request"]
        return answer


def of_one_holder(record: Plain) -> LockRecord:
    """Convert a record of formats before 5, which had one slot and one holder, to the present form."""
    return {"name": record["name"], "slots": 1, "holders": [record["holder"]], "waiters": record["waiters"]}


def _newest(mine: LockEntry, request: list[Any] | None) -> LockEntry:
    """What an owner has, after it asked for it again under *request*: [the number it gave, the id its host gave].

    A place in line goes over to a request with a higher number, so that a client which hangs up then leaves the line.
    One with a lower number was overtaken on its way here and changes nothing. In all other cases nobody knows which
    of the two was told or will be: what is held already, numbers that are equal or that are missing (0). From then on
    it is taken back by nobody but its lease.
    """
    if "request" not in mine:
        return mine
    number = 0 if request is None else request[0]
    if number and number < mine["request"][0]:
        return mine
    if request is not None and mine["token"] is None and number > mine["request"][0]:
        return {**mine, "request": request}
    return _disowned(mine, number)


def _disowned(mine: LockEntry, number: int = 0) -> LockEntry:
    """The record without a request of its own: no host may take it back any more."""
    if "request" not in mine:
        return mine
    return {**mine, "request": [max(number, mine["request"][0]), ""]}


def _find(record: LockRecord, owner: str) -> LockEntry | None:
    for those in (record["holders"], record["waiters"]):
        for each in those:
            if each["owner"] == owner:
                found: LockEntry = each
                return found
    return None


def _held_by(record: LockRecord) -> str:
    """The holders of the lock, in a few words."""
    first, *others = record["holders"]
    more = f" and {len(others)} more have it" if others else " has it"
    waiting = len(record["waiters"])
    return f"{first['owner']} of {first['user_id']}{more}, {waiting} wait{'s' if waiting == 1 else ''}"


def _check_token(command: RenewLock | ReleaseLock, mine: LockEntry) -> None:
    given = command.token
    if given is not None and given != mine["token"]:
        raise StaleToken(f"the token is not that of lock {command.name}", asked=f"{given}", found=f"{mine['token']}")
