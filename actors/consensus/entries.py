"""What an entry of Raft's log does to the ledger: one way for every voter, for a replay, a check and a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .commands import Command, decode_entry
from .ledger import Ledger, Outcome
from .raft.messages import Entry


@dataclass(frozen=True, slots=True)
class Done:
    """An entry that was applied. ``session`` is empty, and ``command`` too, where it was none of a proposer's."""

    entry: Entry
    session: str
    seq: int
    command: Command
    outcome: Outcome


def apply_entry(ledger: Ledger, entry: Entry) -> Done:
    """Apply *entry*, which must be the next. Raises LedgerDiverged (see ``Ledger.apply``).

    A command without data begins its leader's term; a change of the members is nothing to the ledger but an index.
    """
    if entry.kind != "command":
        return Done(entry, "", 0, {}, ledger.pass_over(entry.index))
    if not entry.data:
        return Done(entry, "", 0, {}, ledger.begin_term(entry.index, entry.term))
    session, seq, command = decode_entry(entry.data)
    return Done(entry, session, seq, command, ledger.apply(entry.index, command, session, seq))
