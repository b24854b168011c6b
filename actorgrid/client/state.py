"""Shared state: CRDT values by key, the same on all hosts of a cluster in the end.

A key has the type of its first write; another type is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, Literal

from actorgrid.errors import ActorGridError, HostUnreachable, MalformedBody, UnknownKey

from .http import AdminHttp, segment

MAX_LISTED = 10_000
RECONNECT_S = 60.0
WITHIN_S = 5.0
ANSWER_S = 20.0
Durability = Literal["host", "majority"]


class SharedState:
    """``client.state``. Writes are on the host's disk when they return, and on their way to the other hosts; each
    returns the key's value after it, as that host sees it.

    With ``durability="majority"`` a write returns when more than half of the cluster's members have it on their disks.
    Raises NotReplicated when that takes longer than *within_s* (at most 60): the write stays, and goes on to others.
    Raises StateTypeConflict when the key holds another type, DiskFull when there is no room.
    """

    def __init__(self, http: AdminHttp) -> None:
        self._http = http

    def put(
        self,
        key: str,
        value: Any,
        type: str = "lww_register",
        *,
        durability: Durability = "host",
        within_s: float = WITHIN_S,
    ) -> Any:
        """Set a register (``lww_register`` or ``mv_register``); plain JSON values."""
        return self._mutate(key, type, "put", value=value, durability=durability, within_s=within_s)

    def get(self, key: str, default: Any = ...) -> Any:
        """The value; of a key that does not exist, *default*, or UnknownKey is raised when none is given."""
        try:
            return self.entry(key)["value"]
        except UnknownKey:
            if default is ...:
                raise
            return default

    def entry(self, key: str) -> dict[str, Any]:
        """``{"key", "type", "value"}``. Raises UnknownKey."""
        entry: dict[str, Any] = self._http.get(_path(key))
        return entry

    def increment(
        self,
        key: str,
        by: int = 1,
        type: str = "pn_counter",
        *,
        durability: Durability = "host",
        within_s: float = WITHIN_S,
    ) -> Any:
        """Add to a counter (``pn_counter``, or ``g_counter``, which only grows)."""
        return self._mutate(key, type, "increment", value=by, durability=durability, within_s=within_s)

    def decrement(self, key: str, by: int = 1, *, durability: Durability = "host", within_s: float = WITHIN_S) -> Any:
        """Take from a ``pn_counter``."""
        return self._mutate(key, "pn_counter", "decrement", value=by, durability=durability, within_s=within_s)

    def add_to_set(self, key: str, item: Any, *, durability: Durability = "host", within_s: float = WITHIN_S) -> Any:
        """Add to an ``or_set``: an addition wins over a removal at the same time elsewhere."""
        return self._mutate(key, "or_set", "add", value=item, durability=durability, within_s=within_s)

    def remove_from_set(
        self, key: str, item: Any, *, durability: Durability = "host", within_s: float = WITHIN_S
    ) -> Any:
        """Remove from an ``or_set`` what is seen of *item* here."""
        return self._mutate(key, "or_set", "remove", value=item, durability=durability, within_s=within_s)

    def put_field(
        self, key: str, field: str, value: Any, *, durability: Durability = "host", within_s: float = WITHIN_S
    ) -> Any:
        """Set one field of an ``or_map``."""
        return self._mutate(
            key, "or_map", "put_field", value=value, field=field, durability=durability, within_s=within_s
        )

    def remove_field(self, key: str, field: str, *, durability: Durability = "host", within_s: float = WITHIN_S) -> Any:
        """Remove one field of an ``or_map``."""
        return self._mutate(key, "or_map", "remove_field", field=field, durability=durability, within_s=within_s)

    def enable(self, key: str, *, durability: Durability = "host", within_s: float = WITHIN_S) -> Any:
        """Raise an ``ew_flag``: enabling wins over disabling at the same time elsewhere."""
        return self._mutate(key, "ew_flag", "enable", durability=durability, within_s=within_s)

    def disable(self, key: str, *, durability: Durability = "host", within_s: float = WITHIN_S) -> Any:
        """Lower an ``ew_flag``."""
        return self._mutate(key, "ew_flag", "disable", durability=durability, within_s=within_s)

    def list(self, prefix: str = "", limit: int = 1000) -> list[dict[str, Any]]:
        """Entries under *prefix* by key, at most *limit* (10,000)."""
        entries: list[dict[str, Any]] = self._http.get("/api/state", prefix=prefix, limit=limit)["entries"]
        return entries

    def watch(self, prefix: str = "", *, initial: bool = False) -> Iterator[dict[str, Any]]:
        """Entries under *prefix* as they change, from now on (*initial*: first those that are there), until closed.

        Survives a restart of the host's door: what changed meanwhile comes as one entry with its latest value.
        Raises HostUnreachable when the host stays away for 60 s. Listening begins before the first ``next``
        returns; to write only after that, use ``initial=True`` and wait for its entries.
        """
        resume, lost_at, pause_s = initial, 0.0, 0.05
        seen: dict[str, str] = {}
        while True:
            try:
                with self._http.event_stream("/api/state-watch", prefix=prefix, initial=resume or None) as events:
                    for event in events:
                        lost_at, pause_s = 0.0, 0.05
                        if event.event == "end":
                            break
                        entry = _entry(event.data)
                        shown = json.dumps(entry["value"], sort_keys=True)
                        if resume and seen.get(entry["key"]) == shown:
                            continue  # told before the stream broke
                        if len(seen) < MAX_LISTED or entry["key"] in seen:
                            seen[entry["key"]] = shown
                        yield entry
            except HostUnreachable:
                now = time.monotonic()
                lost_at = lost_at or now
                if self._http.closed or now - lost_at > RECONNECT_S:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)
            resume = True

    def _mutate(
        self,
        key: str,
        type: str,
        operation: str,
        *,
        durability: Durability,
        within_s: float,
        value: Any = None,
        field: str | None = None,
    ) -> Any:
        body = {"type": type, "operation": operation, "value": value, "field": field}
        if durability == "host":
            return self._http.post(_path(key), body)["value"]
        # Told only where it is asked for: a door of the version before refuses fields that it does not know.
        body |= {"durability": durability, "within_s": within_s}
        return self._http.post(_path(key), body, timeout_s=within_s + ANSWER_S)["value"]


def _path(key: str) -> str:
    return f"/api/state/{segment(key, slashes=True)}"


def _entry(data: str) -> dict[str, Any]:
    try:
        entry = json.loads(data)
    except ValueError as error:
        raise MalformedBody("an event is not JSON", found=data[:80]) from error
    if not isinstance(entry, dict) or "key" not in entry or "value" not in entry:
        raise ActorGridError("an event is not an entry of the shared state", found=data[:80])
    return entry
