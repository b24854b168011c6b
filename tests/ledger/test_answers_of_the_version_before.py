"""What the version before answered to each entry of a log: voters of both versions have to agree, refusals included."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from actorgrid.actors.ledger.state import Ledger

ANSWERS = Path(__file__).parents[1] / "system" / "version_before" / "answers.json.xz"
"""[session, number, command, result, error, digest] of each entry; ``null``: a ledger from its first entry on."""


def test_every_command_is_answered_as_before_and_leaves_the_same_state() -> None:
    entries = json.loads(lzma.decompress(ANSWERS.read_bytes()))
    ledger, refused, kinds = Ledger(), 0, set()
    for entry in entries:
        if entry is None:
            ledger = Ledger()
            continue
        session, number, command, result, error, root = entry
        outcome = ledger.apply(ledger.index + 1, command, session, number)
        answer = {"result": outcome.result, "error": outcome.error and outcome.error.to_dict()}
        # As it is kept: in a snapshot, and in the digest that the leader has all voters compare.
        assert json.loads(json.dumps(answer)) == {"result": result, "error": error}, command
        assert ledger.digest()["root"] == root, command
        refused += error is not None
        kinds |= {str(command.get("type"))} if error is None else set()
    assert refused > 200 and len(kinds) > 35, (refused, sorted(kinds))
