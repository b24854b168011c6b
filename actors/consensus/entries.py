"""What an entry of Raft's log does to the ledger: one way for every voter, for a replay, a check and a simulation."""

from __future__ import annotations

from dataclasses import dataclass

from .command_checks import Command
from .commands import decode_entry
from .ledger import Ledger
from .outcome import Outcome
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

    A command without data and a change of the members are Raft's own.
    """
    if entry.kind != "command" or not entry.data:
        return Done(entry, "", 0, {}, ledger.pass_over(entry.index, entry.term))
    session, seq, command = decode_entry(entry.data)
    return Done(entry, session, seq, command, ledger.apply(entry.index, command, session, seq))
