"""Which block of uids is whose: one file for the machine, so that no two data directories give out the same uids.

A block is claimed under the file's lock when the first uid of it is wanted, and stays its data directory's while that
is there: what lies on disks belongs to its uids. A directory begins to look at the block that its path says, so that
in most cases it has the same one again where this file was lost.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path

from actorgrid.actors.files.untrusted_files import open_to_write, read_whole
from actorgrid.configs.fsync import sync_folder
from actorgrid.configs.work_uids import BLOCK, BLOCKS, FIRST_UID
from actorgrid.errors import IsolationNotGiven, NotARegularFile

REGISTRY = Path("/var/lib/actorgrid/uid_blocks.json")
"""On a disk: uids outlive a boot, and so must the word whose they are."""
REGISTRY_BYTES_MAX = 4 * 2**20
SUBORDINATE = (Path("/etc/subuid"), Path("/etc/subgid"))
LINES_MAX = 10_000


def claim_block(data_dir: Path, held: Collection[int], registry: Path = REGISTRY) -> int:
    """The block of *data_dir*, claimed now if it has none; *held*: blocks that uids of it are of already.

    Raises IsolationNotGiven where another data directory has that block, where none is left, and where what the
    machine's agents agreed on cannot be read or written: a guess would give one uid to users of two agents.
    """
    own = os.path.realpath(data_dir)
    try:
        registry.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(registry.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for a read and a write
            owners = _owners(registry)
            block = _choose(own, held, owners)
            if owners.get(block) != own:
                _write({**owners, block: own}, registry)
        finally:
            os.close(lock)
    except OSError as error:
        raise _unusable(registry, error.strerror or str(error)) from error
    return block


def _choose(own: str, held: Collection[int], owners: dict[int, str]) -> int:
    """The block for *own*: that of its uids, the one it claimed, or the next that nobody has."""
    if held:
        block = min(held)
        other = owners.get(block, own)
        if other != own and os.path.isdir(other):
            raise IsolationNotGiven(
                "another data directory of this machine has the uids that work has here",
                asked=own,
                found=other,
                hint="is one a copy of the other? Remove uids.json of the copy, and what its users left",
            )
        return block
    claimed = next((block for block, path in owners.items() if path == own), None)
    if claimed is not None:
        return claimed
    first = int.from_bytes(hashlib.sha256(os.fsencode(own)).digest()[:4], "big") % BLOCKS
    subordinate = subordinate_ranges()
    order = [(first + step) % BLOCKS for step in range(BLOCKS)]
    free = [block for block in order if not _is_subordinate(block, subordinate)]
    found = next((block for block in free if block not in owners), None)
    if found is None:
        found = next((block for block in free if not os.path.isdir(owners[block])), None)
    if found is None:
        raise IsolationNotGiven(
            "every block of uids of this machine is a data directory's",
            asked=own,
            found=f"{len(owners)} directories",
            hint="remove data directories that are not used any more",
        )
    return found


def subordinate_ranges(files: Collection[Path] = SUBORDINATE) -> list[tuple[int, int]]:
    """The ids that users of this machine may map into their user namespaces, as [first, behind the last)."""
    found = []
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[:LINES_MAX]
        except OSError:
            continue
        for line in lines:
            match line.split(":"):
                case [_, first, count] if first.isdigit() and count.isdigit():
                    found.append((int(first), int(first) + int(count)))
    return found


def _is_subordinate(block: int, ranges: list[tuple[int, int]]) -> bool:
    first = FIRST_UID + block * BLOCK
    return any(begin < first + BLOCK and first < behind for begin, behind in ranges)


def _owners(registry: Path) -> dict[int, str]:
    try:
        data = read_whole(registry.parent, registry.name, REGISTRY_BYTES_MAX)
        table = None if data is None else json.loads(data)
    except FileNotFoundError:
        return {}
    except (ValueError, NotARegularFile):
        table = None
    if not isinstance(table, dict) or not all(
        block.isdigit() and int(block) < BLOCKS and isinstance(path, str) for block, path in table.items()
    ):
        raise _unusable(registry, "it is not what agents write there")
    return {int(block): path for block, path in table.items()}


def _write(owners: dict[int, str], registry: Path) -> None:
    fd = open_to_write(registry.parent, f"{registry.name}.tmp", os.O_TRUNC)
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps({str(block): path for block, path in sorted(owners.items())}).encode())
        file.flush()
        os.fsync(fd)
    os.replace(registry.with_name(f"{registry.name}.tmp"), registry)
    sync_folder(registry.parent)


def _unusable(registry: Path, why: str) -> IsolationNotGiven:
    return IsolationNotGiven(
        "whose uids are whose on this machine cannot be settled",
        asked=str(registry),
        found=why,
        hint="the file must be root's to read and write; removed, it is made anew as agents start work",
    )
