"""What the folders of attempts know of the ledger: each was set up for a grant that was committed before.

Apart from ``attempt_dir``, which every worker loads.
"""

from __future__ import annotations

import heapq
import os
from contextlib import suppress
from pathlib import Path

from actorgrid.actors.raft.storage.durable_watermark import KnownGrant

from .attempt_dir import AttemptDir, is_id

GRANTS_READ_MAX = 64


def newest_grant(attempts_dir: Path) -> KnownGrant | None:
    """The newest of the grants that the newest folders in *attempts_dir* were set up for; ``None`` without any.

    Looks into GRANTS_READ_MAX folders: grants grow with time, so the newest is among them unless the clock was set
    back, and then an older one is given.
    """
    with suppress(FileNotFoundError), os.scandir(attempts_dir) as entries:
        folders = [(entry.stat(follow_symlinks=False).st_mtime, entry.name) for entry in entries if is_id(entry.name)]
        found = [_grant_of(attempts_dir, name) for _, name in heapq.nlargest(GRANTS_READ_MAX, folders)]
        grants = [grant for grant in found if grant is not None]
        return max(grants, key=lambda grant: (grant.epoch, grant.index), default=None)
    return None


def _grant_of(attempts_dir: Path, attempt_id: str) -> KnownGrant | None:
    spec = AttemptDir(attempts_dir, attempt_id).read_spec()
    if spec is None or "ledger_token" not in spec:
        return None  # work may have written over it
    epoch, index = spec["ledger_token"]
    return KnownGrant(epoch, index, attempt_id)
