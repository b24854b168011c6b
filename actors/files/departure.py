"""That a host is no member of its cluster any more, as its data directory remembers it (left.json)."""

from __future__ import annotations

import json
from typing import Any

from actorgrid.configs.paths import HostPaths
from actorgrid.errors import DataDirUnusable, HostRemoved

from .identity import write_atomically

_HINT = (
    "its jobs and their output are still there; to take part again, join with a new token in an empty directory"
    " (--data-dir), or delete this one first"
)


def mark_departed(paths: HostPaths, why: str, at: float) -> None:
    """Write down that this host has left, or was removed. Raises DataDirUnusable."""
    text = json.dumps({"why": why, "at": at}) + "\n"
    write_atomically(paths.left_file, text.encode())


def refuse_departed(paths: HostPaths) -> None:
    """Raises HostRemoved when this host is no member of its cluster any more."""
    try:
        found: dict[str, Any] = json.loads(paths.left_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (ValueError, OSError) as error:
        raise DataDirUnusable(f"{paths.left_file} cannot be read: {error}", asked=str(paths.left_file)) from error
    raise removed(str(found.get("why", "")), asked=str(paths.data_dir))


def removed(why: str, asked: str = "") -> HostRemoved:
    """The error of a host that is no member any more."""
    return HostRemoved("this host is no member of its cluster any more", asked=asked, found=why, hint=_HINT)
