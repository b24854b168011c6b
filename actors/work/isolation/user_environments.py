"""The Python environments of work at ``full``: a folder for each user on this host, which belongs to that user's work.

Building one runs code of its packages, and whoever builds can change what was built. So it is not the host's folder,
which all share at ``basic``, but the uid's own, and other users' work has no way there:

    DATA_DIR/users/UID/environments/       the uid's; its content is as of built_environments.py
    DATA_DIR/users/UID/environments.lock   ours: held (flock, shared) by the shims of work that has it; its time says
                                           when last

Under an agent that is not root the place of UID has a digest of the user's name. Nothing in the folder is opened by us
while work may have it: what removes it first gives it another name, in a folder that is ours.

Bound: what USERS_MAX users have built. For another one that was used longest ago goes, never one in use. What is in one
is bounded by the work that builds there, by the settings for the host's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from actorgrid.actors.files.untrusted_files import remove_tree
from actorgrid.configs.paths import HostPaths

USERS_MAX = 32
NAME = "environments"
LOCK = f"{NAME}.lock"


def environments_of(paths: HostPaths, uid: int, user: str) -> Path:
    """The folder of the environments of that user, whose work has that uid; 0: the agent's."""
    place = str(uid) if uid else f"by-name-{hashlib.sha256(user.encode()).hexdigest()[:32]}"
    return paths.users_dir / place / NAME


def hold_environments(folder: Path) -> int:
    """Keep a user's folder from being removed until the descriptor that this gives is closed. Raises OSError."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = os.open(folder.parent / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(held, fcntl.LOCK_SH)  # nobody but us can come to it, and who removes has it for a rename
    os.utime(held)
    return held


def make_environments(folder: Path, uid: int) -> None:
    """Have the folder be there, of that uid (0: ours), held by whoever asks. Raises OSError."""
    if _has_any(folder):
        return
    _make_room(folder.parent.parent, folder.parent)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if uid:
        os.chown(folder, uid, uid)


def _has_any(folder: Path) -> bool:
    """Whether anything is in it: each session has one, and most build nothing there."""
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        with os.scandir(held) as listed:
            return next(listed, None) is not None
    finally:
        os.close(held)


def _make_room(users_dir: Path, but: Path) -> None:
    """Remove the folders of others until there is room for one more, as far as they are not in use."""
    found: list[tuple[float, Path]] = []
    for place in users_dir.iterdir():
        with suppress(OSError):
            for left_over in place.glob(f"{NAME}.*"):  # of who was killed while it removed
                if left_over.name != LOCK:
                    _clear(left_over)
            if place != but and _has_any(place / NAME):
                found.append(((place / LOCK).stat().st_mtime, place))
    count = len(found)
    for _, place in sorted(found):
        if count < USERS_MAX:
            return
        count -= _removed(place)


def _removed(place: Path) -> bool:
    gone = place / f"{NAME}.{secrets.token_hex(8)}"
    try:
        lock = os.open(place / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(place / NAME, gone)
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(lock)
    _clear(gone)
    return True


def _clear(gone: Path) -> None:
    if os.geteuid() != 0:
        # Packages are in folders that nobody may write. A work's own folders may be too many on one way for a walk.
        with suppress(OSError, RecursionError):
            for *_, fd in os.fwalk(gone):
                os.fchmod(fd, 0o700)
    remove_tree(gone)
