"""The state in a snapshot on this host's disk: what its start begins with, and ``ledger verify`` looks at."""

from __future__ import annotations

from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.storage.durable_watermark import REJOIN_HINT
from actorgrid.actors.raft.storage.segments import RECOVERY_HINT
from actorgrid.errors import LedgerRefused, LogCorrupted


def restore_stored(index: int, data: bytes, received_index: int) -> Ledger:
    """The ledger as of the snapshot of entry *index*. *received_index*: of the one that came from a leader, or 0.

    Raises LedgerTooNew for one of a later format. Raises LogCorrupted when it is intact and yet no state: a version
    that stored what its leader sent without looking at it may have done so. The log before it is gone then, and with
    it what this voter had acknowledged, so the leader must not refill it under its old name.
    """
    try:
        state = Ledger.restore(data)
        if state.index == index:
            return state
        found = f"state of entry {state.index}"
    except LedgerRefused as error:
        found = error.found
    from_leader = index == received_index
    raise LogCorrupted(
        f"the snapshot of entry {index} on the disk holds no state of a ledger",
        found=f"{found}; it came from " + ("the host that led then" if from_leader else "this host itself"),
        hint=REJOIN_HINT if from_leader else RECOVERY_HINT,
        index=index,
    )
