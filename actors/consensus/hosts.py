"""The hosts that have work: what each registered of itself, and whether it takes anything new.

Apart from ``members.py``: a host that is alone is registered here and is no member of anything.

Bound: 10,000 hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorgrid.errors import NotFound, StaleIncarnation, WrongState

from .records import new_host

HOSTS_MAX = 10_000

Plain = dict[str, Any]


class Hosts:
    """*changed* is told of each that is new, other or gone: its id, its record or ``None``, and a word for people."""

    def __init__(self, changed: Callable[[str, Plain | None, str], None]) -> None:
        self.records: dict[str, Plain] = {}
        self._changed = changed

    def register(self, command: Plain, at: float) -> Plain:
        """A host came up, with what it has. Raises StaleIncarnation, or WrongState at the bound.

        One that was draining goes on draining: it may have been restarted for the very reason.
        """
        given = command["host"]
        host_id = given["host_id"]
        known = self.records.get(host_id)
        if known is None and len(self.records) >= HOSTS_MAX:
            raise WrongState("the ledger holds its maximum of hosts", found=f"{HOSTS_MAX} hosts")
        if known is not None and given["incarnation"] < known["incarnation"]:
            raise StaleIncarnation(
                f"host {host_id} has started again since",
                asked=f"incarnation {given['incarnation']}",
                found=f"incarnation {known['incarnation']}",
            )
        record = new_host(given, at)
        if known is not None and known.get("draining"):
            record["draining"] = True
        self._put(record, record["state"])
        return {"host_id": host_id, "incarnation": given["incarnation"]}

    def drain(self, command: Plain) -> Plain:
        """Give a host nothing new, or again. What it has goes on. A second time changes nothing. Raises NotFound."""
        host_id, draining = command["host"], command["draining"]
        record = self.records.get(host_id)
        if record is None:
            raise NotFound(
                f"host {host_id} is not registered",
                asked=host_id,
                found=f"{len(self.records)} hosts",
                hint="actorgrid hosts lists them",
            )
        if record.get("draining", False) != draining:
            self._put({**record, "draining": draining}, "draining" if draining else "taking work")
        return {"host": host_id, "draining": draining}

    def remove(self, host_id: str) -> None:
        """It is no host of this cluster any more; none of that id is no error."""
        if self.records.pop(host_id, None) is not None:
            self._changed(host_id, None, "removed")

    def _put(self, record: Plain, word: str) -> None:
        self.records[record["host_id"]] = record
        self._changed(record["host_id"], record, word)
