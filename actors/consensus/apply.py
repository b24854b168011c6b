"""What an entry of Raft's log does to the ledger: one way for every voter, for a replay, a check and a simulation."""

from __future__ import annotations

from dataclasses import dataclass

from actorgrid.actors.ledger.entry_codec import decode_entry
from actorgrid.actors.ledger.field_checks import Plain
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.messages import Entry
from actorgrid.errors import BadRequest


@dataclass(frozen=True, slots=True)
class AppliedEntry:
    """An entry that was applied. ``session`` and ``command`` are empty where it was no proposer's.

    ``unreadable``: it is a command's, and no command.
    """

    entry: Entry
    session: str
    seq: int
    command: Plain
    outcome: Outcome
    unreadable: bool = False


def apply_entry(ledger: Ledger, entry: Entry) -> AppliedEntry:
    """Apply *entry*, which must be the next. Raises LedgerDiverged and LedgerTooNew (see ``Ledger.apply``).

    A command without data and a change of the members are Raft's own. Bytes that are no command are refused like one
    that is malformed: they are committed, so every voter has them, and has them again at each start.
    """
    if entry.kind != "command" or not entry.data:
        return AppliedEntry(entry, "", 0, {}, ledger.pass_over(entry.index, entry.term))
    try:
        session, seq, command = decode_entry(entry.data)
    except BadRequest as error:
        return AppliedEntry(entry, "", 0, {}, ledger.refuse(entry.index, error), unreadable=True)
    return AppliedEntry(entry, session, seq, command, ledger.apply(entry.index, command, session, seq))
