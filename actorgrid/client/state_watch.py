"""A watch of the shared state that goes on where it was cut off.

The host gives each change a position in its own order. After a break the last one is sent along: the host that gave it
answers with the latest of each key that changed since; another host, or one that started anew, says that it does not
know it and sends all keys. Those that were told before and are not among them were deleted meanwhile, and are told so.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from actorgrid.errors import ActorGridError, HostUnreachable, MalformedBody

from .http import AdminHttp, ServerEvent

RECONNECT_S = 60.0
MAX_TRACKED = 100_000
"""Keys of which a watch remembers what it told: of more, one that is deleted while another host takes over is not told,
and some are told twice."""
NO_POSITION = "0"


class StateWatch:
    """What one watch knows. *after*: the id of the change to go on behind."""

    def __init__(
        self,
        http: AdminHttp,
        prefix: str,
        initial: bool,
        after: str | None,
        on_resync: Callable[[str], None] | None,
    ) -> None:
        self._http = http
        self._prefix = prefix
        self._everything = initial
        self.position = after or ""
        self._on_resync = on_resync
        self._told: dict[str, bytes] = {}
        self._listing: set[str] | None = None
        self._broken = False

    def entries(self) -> Iterator[dict[str, Any]]:
        """Entries as they change. Raises HostUnreachable when no host is there for 60 s."""
        lost_at, pause_s = 0.0, 0.05
        while True:
            try:
                with self._http.event_stream(
                    "/api/state-watch",
                    self.position or NO_POSITION,
                    prefix=self._prefix,
                    # With a position, too: a host of the version before knows none, and tells all.
                    initial=True if self._everything or self.position else None,
                ) as events:
                    for event in events:
                        lost_at, pause_s = 0.0, 0.05
                        if event.event == "end":
                            break
                        yield from self._take(event)
            except HostUnreachable:
                now = time.monotonic()
                lost_at = lost_at or now
                if self._http.closed or now - lost_at > RECONNECT_S:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)
            self._broken = self._everything = True
            self._listing = None

    def _take(self, event: ServerEvent) -> Iterator[dict[str, Any]]:
        if event.event == "resync":
            self._listing = set()
            if self._on_resync is not None and self._broken:
                self._on_resync(str(json.loads(event.data).get("reason", "")))
            return
        if event.event == "synced":
            yield from self._synced(event.event_id)
            return
        entry = read_entry(event.data)
        key = entry["key"]
        if self._listing is not None:
            self._listing.add(key)
        if event.event_id:
            self.position = event.event_id
        digest = hashlib.blake2b(
            json.dumps([entry["value"], entry.get("expires_at"), entry.get("deleted")], sort_keys=True).encode(),
            digest_size=8,
        ).digest()
        if self._broken and not event.event_id and self._told.get(key) == digest:
            return  # told before the stream broke
        if entry.get("deleted"):
            if self._told.pop(key, None) is None and self._listing is not None:
                return
        elif key in self._told or len(self._told) < MAX_TRACKED:
            self._told[key] = digest
        yield entry

    def _synced(self, position: str) -> Iterator[dict[str, Any]]:
        """All is there: what was told before and is not among it, is gone."""
        listing, self._listing = self._listing, None
        if listing is not None:
            for key in [key for key in self._told if key not in listing]:
                del self._told[key]
                yield {"key": key, "type": "", "value": None, "id": position, "deleted": True}
        self.position = position


def read_entry(data: str) -> dict[str, Any]:
    """An event's entry. Raises MalformedBody, or ActorGridError for something else."""
    try:
        entry = json.loads(data)
    except ValueError as error:
        raise MalformedBody("an event is not JSON", found=data[:80]) from error
    if not isinstance(entry, dict) or "key" not in entry or "value" not in entry:
        raise ActorGridError("an event is not an entry of the shared state", found=data[:80])
    return entry
