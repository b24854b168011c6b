"""A lock has as many holders as it has slots, in the order of the log, and every grant a higher token than the last."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from actorgrid.actors.ledger.commands import AcquireLock, ReleaseLock
from actorgrid.actors.ledger.entry_codec import decode_entry
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.raft.messages import Entry
from actorgrid.errors import LockHeld

from .checker import Checker, ClientCall, Host
from .linearizability import UNKNOWN, Operation, check

TAKES_AWAY = ("release_lock", "expire_lock")
Token = tuple[int, int]


@dataclass(slots=True)
class _Lock:
    """A lock as it was after the last entry about it."""

    slots: int = 1
    holders: dict[str, Token] = field(default_factory=dict)
    waiters: list[str] = field(default_factory=list)
    last: Token = (0, 0)


class LockGrants(Checker):
    """Checks that nobody loses a slot but by its own release or expiry, that tokens grow, and that the line is kept."""

    def __init__(self) -> None:
        self._next = 0
        self._locks: dict[str, _Lock] = {}

    def applied(self, host: Host, entry: Entry, outcome: Outcome, state: Any) -> None:
        """Read each entry once, from whoever applies it first."""
        if entry.index <= self._next:
            return
        self._next = entry.index
        for kind, name, record in outcome.changes:
            if kind == "lock":
                self._changed(entry, name, record)

    def _changed(self, entry: Entry, name: str, record: dict[str, Any] | None) -> None:
        _, _, command = decode_entry(entry.data)
        lock = self._locks.setdefault(name, _Lock())
        asked = f"entry {entry.index}: {command}"
        holders: dict[str, Token] = {}
        waiters: list[str] = []
        if record is not None:
            holders = {each["owner"]: (each["token"][0], each["token"][1]) for each in record["holders"]}
            waiters = [each["owner"] for each in record["waiters"]]
        if not lock.holders:
            lock.slots = command.get("slots", 1)
        taken = {command["owner"]} if command["type"] in TAKES_AWAY else set()
        for gone in lock.holders.keys() - holders.keys() - taken:
            self.fail("a lock changed hands", asked=asked, found=f"{gone} holds {name}")
        if len(holders) > lock.slots:
            self.fail("more hold a lock than it has slots", asked=asked, found=f"{len(holders)} of {lock.slots}")
        if waiters and len(holders) < lock.slots:
            self.fail("somebody waits for a free slot", asked=asked, found=f"{waiters[0]} waits for {name}")
        for owner, token in holders.items():
            if token == lock.holders.get(owner):
                continue
            if token <= lock.last:
                self.fail(
                    "a token that does not grow", asked=f"{name}: {token} to {owner}", found=f"{lock.last} before"
                )
            ahead = [waiter for waiter in lock.waiters if waiter not in taken]
            if ahead and ahead[0] != owner:
                self.fail("a lock went past its line", asked=asked, found=f"{ahead[0]} is first, {owner} has {name}")
            lock.last = token
        lock.holders, lock.waiters = holders, waiters


class LockBeliefs(Checker):
    """Whoever was told that it holds a lock holds it for as long as its own clock says, and no more than its slots.

    Nobody breaks locks open here, so a holder that renews in time loses it to nothing, not even loudly.
    """

    def __init__(self) -> None:
        self._next = 0
        self._holders: dict[str, dict[str, Token]] = {}
        self._beliefs: dict[str, dict[str, Token]] = {}

    def applied(self, host: Host, entry: Entry, outcome: Outcome, state: Any) -> None:
        """Read each entry once, from whoever applies it first."""
        if entry.index <= self._next:
            return
        self._next = entry.index
        for kind, name, record in outcome.changes:
            if kind == "lock":
                held = [] if record is None else record["holders"]
                self._holders[name] = {each["owner"]: (each["token"][0], each["token"][1]) for each in held}
                for owner in self._beliefs.get(name, {}):
                    self._look(name, owner, f"entry {entry.index}: {decode_entry(entry.data)[2]}")

    def believes(self, lock: str, owner: str, token: tuple[int, ...], slots: int) -> None:
        """Note that a client was told, in time, that it holds a lock."""
        believers = self._beliefs.setdefault(lock, {})
        believers[owner] = (token[0], token[1])
        if len(believers) > slots:
            self.fail("more believe in a lock than it has slots", asked=lock, found=f"{believers}")
        self._look(lock, owner, "the answer")

    def disbelieves(self, lock: str, owner: str) -> None:
        """Note that a client holds a lock no more."""
        self._beliefs.get(lock, {}).pop(owner, None)

    def _look(self, name: str, owner: str, what: str) -> None:
        believed, held = self._beliefs[name][owner], self._holders.get(name, {}).get(owner)
        if held != believed:
            self.fail(
                "a live holder has lost its lock",
                asked=f"{owner} was told {believed} of {name}",
                found=f"{held} by {what}",
            )


class LockAnswers(Checker):
    """What clients were told of locks that nobody waits for and that never expire is linearizable."""

    def __init__(self) -> None:
        self._open: dict[str, ClientCall] = {}
        self._other: set[str] = set()
        self._history: list[Operation] = []

    def called(self, call: ClientCall) -> None:
        """Until it is answered, it may have taken effect or not."""
        if isinstance(call.command, AcquireLock | ReleaseLock):
            self._open[call.client] = call
            if isinstance(call.command, AcquireLock) and call.command.wait:
                self._other.add(call.key)

    def answered(self, call: ClientCall, answer: Any, index: int, now_us: int) -> None:
        """Note the answer: held or not, released or not."""
        if self._open.pop(call.client, None) is None or call.command is None:
            return
        if isinstance(answer, dict):
            yes = bool(answer.get("held", answer.get("released")))
        elif isinstance(answer, LockHeld):
            yes = False
        else:
            return
        self._note(call, yes, now_us)

    def applied(self, host: Host, entry: Entry, outcome: Outcome, state: Any) -> None:
        """Locks that change hands by themselves are no plain ones: LockGrants looks after them."""
        if b"expire_lock" in entry.data:
            self._other.add(decode_entry(entry.data)[2]["name"])

    def finish(self, states: Mapping[int, Any], now_us: int) -> None:
        """Search for an order."""
        for call in self._open.values():
            self._note(call, UNKNOWN, None)
        plain = [operation for operation in self._history if operation.key not in self._other]
        verdict = check(plain, frozenset(), apply_slots)
        if verdict.linearizable is False:
            self.fail(
                "no order of the calls explains who held a lock",
                asked=f"{verdict.key}, {verdict.explained} calls explained",
                found="; ".join(f"{each.call} -> {each.answer}" for each in verdict.stuck),
            )

    def _note(self, call: ClientCall, answer: Any, returned_us: int | None) -> None:
        command = call.command
        assert isinstance(command, AcquireLock | ReleaseLock), "nothing else is noted"
        what = (command.verb, command.owner, command.slots if isinstance(command, AcquireLock) else 1)
        self._history.append(Operation(call.key, what, answer, call.called_us, returned_us, call.client))


def apply_slots(state: Hashable, call: Any, answer: Any) -> tuple[bool, Hashable]:
    """(verb, owner, slots) answers whether the owner holds it now, or gave it back; the state is who holds it."""
    verb, owner, slots = call
    assert isinstance(state, frozenset), "the holders, none at first"
    if verb == "acquire_lock":
        held = owner in state or len(state) < slots
        return answer is UNKNOWN or answer == held, state | {owner} if held else state
    return answer is UNKNOWN or answer == (owner in state), state - {owner}
