"""Files that hold secrets: written whole for their owner alone, and not read when others could read or replace them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from actorgrid.errors import DataDirUnusable, KeyExposed, KeyUnusable

from .identity import write_atomically

PRIVATE_BYTES_MAX = 256 * 1024


def make_private_folder(folder: Path) -> None:
    """Make *folder* (0700) where it is missing. Raises DataDirUnusable, or KeyExposed when others have access to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DataDirUnusable(f"cannot make {folder}: {error.strerror}", asked=str(folder)) from error
    _check_owner(folder, folder.lstat(), "folder", 0o700)


def write_private(path: Path, data: bytes) -> None:
    """Replace *path* (0600) so that a crash leaves the old content or the new, on disk when this returns.

    Raises DataDirUnusable, or KeyExposed when its folder is open to others.
    """
    make_private_folder(path.parent)
    write_atomically(path, data, 0o600)


def read_private(path: Path) -> bytes:
    """What is in *path*, at most 256 KiB. Raises FileNotFoundError, KeyExposed, KeyUnusable.

    The folder is checked as well: who may write there could put another file in its place.
    """
    try:
        # A link could lead out of the folder that was checked.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise KeyUnusable(f"cannot read {path}: {error.strerror}", asked=str(path)) from error
    with open(descriptor, "rb") as file:
        _check_owner(path.parent, path.parent.stat(), "folder", 0o700)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise KeyUnusable(f"{path} is not a file", asked=str(path))
        _check_owner(path, found, "file", 0o600)
        data = file.read(PRIVATE_BYTES_MAX + 1)
    if len(data) > PRIVATE_BYTES_MAX:
        raise KeyUnusable(f"{path} is too large to be a key", asked=str(path), found=f"over {PRIVATE_BYTES_MAX} bytes")
    return data


def _check_owner(path: Path, found: os.stat_result, kind: str, mode: int) -> None:
    if found.st_uid != os.geteuid():
        raise KeyExposed(
            f"the {kind} {path} belongs to uid {found.st_uid}, we are {os.geteuid()}",
            asked=f"{mode:04o}, ours",
            hint=f"chown it to uid {os.geteuid()}, or run as its owner",
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise KeyExposed(
            f"others have access to the {kind} {path}",
            asked=f"{mode:04o}",
            found=f"{stat.S_IMODE(found.st_mode):04o}",
            hint=f"chmod {mode:04o} {path}; if somebody may have read it, replace the key (docs/trust.md)",
        )
