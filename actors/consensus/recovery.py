"""A cluster goes on from one survivor, when the other voters are gone for good.

The survivor's log is taken whole: what it has may have been acknowledged, whether or not it heard of it. What it does
not have is lost. A new recovery epoch makes every token from now on newer than any that was given out before. The
other members are removed with their work, by force: who of them comes back is refused, and joins anew.

The majority must never come back as it was: it would go on by itself, as the cluster that it believes to be.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import ChangeMember, RemoveMember
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.messages import ConfState
from actorgrid.errors import WrongState

from .ledger_backup import begin_epoch, our_errors, put_in_place
from .ledger_check import Report, check

BY = "recovery from one survivor"


def recover(folder: Path, host_id: str, node: int, at: float, report: Report) -> dict[str, Any]:
    """Make the ledger in *folder*, of this host, that of a cluster with this host alone; what there is, for people.

    The caller holds the host's lock. *at* is the time now, in seconds since 1970. The ledger as it was is kept beside,
    as ``ledger.before-recovery-N``. Raises WrongState for a host that is no member, and as ``check`` does.
    """
    before = check(folder, report)
    if host_id not in before.state.members:
        raise WrongState(
            "this host's ledger does not have it for a member of a cluster",
            asked=host_id,
            found=f"{len(before.state.members)} members at entry {before.committed_index}",
            hint="a host that is alone has nothing to recover; actorgrid ledger restore takes a backup",
        )
    others = {id: record["node"] for id, record in before.state.members.items() if id != host_id}

    def also(state: Ledger) -> list[Command]:
        own: list[Command] = [] if state.members[host_id]["votes"] else [ChangeMember(host_id, at=at, votes=True)]
        return own + [RemoveMember(id, BY, at=at, force=True) for id in state.members if id != host_id]

    with our_errors(folder), tempfile.TemporaryDirectory(prefix=".recovering-", dir=folder.parent) as name:
        staging = Path(name) / "ledger"
        shutil.copytree(folder, staging, ignore=shutil.ignore_patterns("reserve", "failed"))
        done = begin_epoch(staging, at, ConfState(voters=(node,)), report, whole=True, also=also)
        kept = put_in_place(staging, folder, "before-recovery")
    unsure = before.log.last_index - before.committed_index
    return {"path": str(folder), "kept": str(kept), "removed": others, "unsure": unsure, **done}
