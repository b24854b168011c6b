"""What clients were told: linearizable, fresh, never going back, each command once.

A client has one call at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorgrid.actors.ledger.commands import SetSetting
from actorgrid.actors.ledger.entry_codec import decode_entry
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.raft.messages import Entry
from actorgrid.errors import ActorGridError

from .checker import Checker, ClientCall, Host
from .linearizability import UNKNOWN, Operation, apply_register, check


class Linearizability(Checker):
    """Checks that reads and swaps of the settings, each key a register, are linearizable."""

    def __init__(self) -> None:
        self._open: dict[str, ClientCall] = {}
        self._history: list[Operation] = []

    def called(self, call: ClientCall) -> None:
        """Note a call: until it is answered, it may have taken effect or not."""
        if call.kind == "read" or isinstance(call.command, SetSetting):
            self._open[call.client] = call

    def answered(self, call: ClientCall, answer: Any, index: int, now_us: int) -> None:
        """Note an answer: the call took effect between the two moments."""
        if self._open.pop(call.client, None) is None:
            return
        if isinstance(answer, ActorGridError):
            self.fail("the ledger refused a write", asked=f"{call.client}: {call.command}", found=str(answer))
        self._note(call, answer if call.command is None else answer["previous"], now_us)

    def finish(self, states: Mapping[int, Any], now_us: int) -> None:
        """Search for an order that explains all answers."""
        for call in self._open.values():
            if call.command is not None:
                self._note(call, UNKNOWN, None)
        verdict = check(self._history, None, apply_register)
        if verdict.linearizable is False:
            stuck = "; ".join(
                f"{each.who} {each.call} -> {each.answer} ({each.called_us} to {each.returned_us} us)"
                for each in verdict.stuck
            )
            self.fail(
                "no order of the calls explains the answers",
                asked=f"key {verdict.key}, {verdict.explained} calls explained",
                found=stuck,
            )

    def _note(self, call: ClientCall, answer: Any, returned_us: int | None) -> None:
        what = ("swap", call.command.value) if isinstance(call.command, SetSetting) else ("read",)
        self._history.append(Operation(call.key, what, answer, call.called_us, returned_us, call.client))


class Freshness(Checker):
    """Checks that a call sees all that anyone was told before it began, and that a client's reads never go back.

    For reads, ReadIndex promises it; a write stands in the log after every write answered before it was asked.
    """

    def __init__(self) -> None:
        self._told = 0
        self._floor: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def called(self, call: ClientCall) -> None:
        """Note what was told by now: the call must see it."""
        self._floor[call.client] = self._told

    def answered(self, call: ClientCall, answer: Any, index: int, now_us: int) -> None:
        """Compare indexes."""
        floor = self._floor.pop(call.client, None)
        if call.kind == "write" and floor is not None and index < floor:
            self.fail("a write before its time", asked=f"{call.client} at {index}", found=f"{floor} was told before it")
        if call.kind == "read" and floor is not None:
            if index < floor:
                self.fail(
                    "a stale read", asked=f"{call.client} reads {call.key}", found=f"state of {index}, {floor} was told"
                )
            if index < self._seen.get(call.client, 0):
                self.fail("reads go back", asked=call.client, found=f"{index} after {self._seen[call.client]}")
            self._seen[call.client] = index
        self._told = max(self._told, index)


class ExactlyOnce(Checker):
    """Checks that a (session, number) takes effect at one index, which is the one its client is told."""

    def __init__(self) -> None:
        self._effects: dict[tuple[str, int], int] = {}

    def applied(self, host: Host, entry: Entry, outcome: Outcome, state: Any) -> None:
        """Note where each took effect."""
        if outcome.repeated or entry.kind != "command" or not entry.data:
            return
        session, seq, _ = decode_entry(entry.data)
        if not session:
            return
        first = self._effects.setdefault((session, seq), entry.index)
        if first != entry.index:
            self.fail(
                "a command took effect twice",
                asked=f"{session} number {seq}",
                found=f"entries {first} and {entry.index}",
            )

    def answered(self, call: ClientCall, answer: Any, index: int, now_us: int) -> None:
        """Check that the client was told of that very effect."""
        if call.kind == "write" and self._effects.get((call.session, call.seq)) != index:
            self.fail(
                "an answer for what never took effect there",
                asked=f"{call.session} number {call.seq} at {index}",
                found=f"{self._effects.get((call.session, call.seq))}",
            )
