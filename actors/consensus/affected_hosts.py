"""The hosts that have to act on what an entry changed: their leader tells them at once, whatever the others wait
for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Change = tuple[str, str, Any]
"""Kind, identity and new record; ``None`` when it is gone."""


def affected_hosts(changes: Iterable[Change]) -> set[str]:
    """The hosts of allocations that are new, of jobs' latest attempts and their members, and those that changed."""
    found: set[str] = set()
    for kind, identity, record in changes:
        if not isinstance(record, dict):
            continue
        if kind in ("host", "member"):
            found.add(identity)
        attempts = record.get("attempts") or ()
        for holder in (record, *attempts[-1:]):
            _add_hosts(found, holder)
    return found


def _add_hosts(found: set[str], holder: dict[str, Any]) -> None:
    for part in (holder, *(holder.get("members") or ())):
        host = part.get("host") if isinstance(part, dict) else None
        if isinstance(host, str):
            found.add(host)
