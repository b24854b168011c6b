"""A lock has one holder in the order of the log, and every grant a higher token than the one before."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from actorgrid.actors.consensus.commands import decode_entry
from actorgrid.actors.consensus.outcome import Outcome
from actorgrid.actors.consensus.raft.messages import Entry
from actorgrid.errors import LockHeld

from .checker import Call, Checker, Host
from .linearizability import UNKNOWN, Operation, check

TAKES_AWAY = ("release_lock", "expire_lock")


class LockGrants(Checker):
    """Nobody gets a lock from its holder but by the holder's release or the expiry of its lease; tokens only grow."""

    def __init__(self) -> None:
        self._next = 0
        self._holders: dict[str, str] = {}
        self._tokens: dict[str, tuple[int, int]] = {}

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
        before = self._holders.get(name, "")
        after = "" if record is None else record["holder"]["owner"]
        if before and before != after and not (command["type"] in TAKES_AWAY and command["owner"] == before):
            self.fail("a lock changed hands", asked=f"entry {entry.index}: {command}", found=f"{before} holds {name}")
        if record is not None:
            token = (record["holder"]["token"][0], record["holder"]["token"][1])
            last = self._tokens.get(name, (0, 0))
            if token < last or (token == last and after != before):
                self.fail("a token that does not grow", asked=f"{name}: {token} to {after}", found=f"{last} before")
            self._tokens[name] = token
        self._holders[name] = after


class LockAnswers(Checker):
    """What clients were told of locks that nobody waits for and that never expire is linearizable: each is a mutex."""

    def __init__(self) -> None:
        self._open: dict[str, Call] = {}
        self._other: set[str] = set()
        self._history: list[Operation] = []

    def called(self, call: Call) -> None:
        """Until it is answered, it may have taken effect or not."""
        if call.command is not None and call.command["type"] in ("acquire_lock", "release_lock"):
            self._open[call.client] = call
            if call.command.get("wait", False):
                self._other.add(call.key)

    def answered(self, call: Call, answer: Any, index: int, now_us: int) -> None:
        """Held or not, released or not."""
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
        """Locks that change hands by themselves are no plain mutexes: LockGrants looks after them."""
        if b"expire_lock" in entry.data:
            self._other.add(decode_entry(entry.data)[2]["name"])

    def finish(self, states: Mapping[int, Any], now_us: int) -> None:
        """Search for an order."""
        for call in self._open.values():
            self._note(call, UNKNOWN, None)
        plain = [operation for operation in self._history if operation.key not in self._other]
        verdict = check(plain, None, apply_mutex)
        if verdict.linearizable is False:
            self.fail(
                "no order of the calls explains who held a lock",
                asked=f"{verdict.key}, {verdict.explained} calls explained",
                found="; ".join(f"{each.call} -> {each.answer}" for each in verdict.stuck),
            )

    def _note(self, call: Call, answer: Any, returned_us: int | None) -> None:
        assert call.command is not None, "locks are not read"
        what = (call.command["type"], call.command["owner"])
        self._history.append(Operation(call.key, what, answer, call.called_us, returned_us, call.client))


def apply_mutex(state: Hashable, call: Any, answer: Any) -> tuple[bool, Hashable]:
    """(verb, owner) answers whether the owner holds it now, or gave it back; the state is who holds it."""
    verb, owner = call
    if verb == "acquire_lock":
        held = state in (None, owner)
        return answer is UNKNOWN or answer == held, owner if held else state
    released = state == owner
    return answer is UNKNOWN or answer == released, None if released else state
