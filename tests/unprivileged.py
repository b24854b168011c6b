"""Run a command as a user that is not root, in a mount namespace in which it can reach our Python: for tests by root.

python -m tests.unprivileged COMMAND...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from actorgrid.actors.work.linux import CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE, mount, unshare

UID = 65534


def let_in(path: Path) -> None:
    """Have others come to *path*, through a folder above it that they may not enter: nothing else of it is there."""
    for folder in reversed(path.parents):
        if folder.stat().st_mode & 0o005 == 0o005:
            continue
        below = folder / path.relative_to(folder).parts[0]
        held = os.open(below, os.O_PATH)
        mount("none", str(folder), "tmpfs", 0, "mode=0755")
        below.mkdir()
        mount(f"/proc/self/fd/{held}", str(below), None, MS_BIND | MS_REC)
        os.close(held)


def main() -> None:
    """Become that user, and the command."""
    unshare(CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_SLAVE)
    for prefix in dict.fromkeys((sys.base_prefix, sys.prefix)):
        let_in(Path(prefix))
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    os.environ["HOME"] = os.environ["TMPDIR"]
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ.pop("XDG_RUNTIME_DIR", None)
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
