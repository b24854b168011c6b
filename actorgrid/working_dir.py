"""A working directory that travels: what it is called, and its bounds, for whoever sends one and whoever unpacks it."""

from __future__ import annotations

VARIABLE = "ACTORGRID_WORKING_DIR"
"""In the environment of work: the directory. In that of a job's record: the SHA-256 of its archive."""
ARCHIVE_BYTES_MAX = 60 * 2**20
"""Of the archive: a host's door and a worker's socket take a little more at once."""
CONTENT_BYTES_MAX = 512 * 2**20
FILES_MAX = 20_000
"""Files, links and folders together."""
PATH_BYTES_MAX = 1024
"""Of a path inside of the directory."""


def leads_out(path: str, target: str) -> bool:
    """Whether a link at the relative *path* with that *target* leads out of the directory, going by the texts."""
    if target.startswith("/") or "\0" in target or not target:
        return True
    depth = path.count("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False
