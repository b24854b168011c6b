"""Who listens to what happens: events of the ledger, and changes of the shared state. Lives in the loop's thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from actorgrid.actors.ledger.messages import Applied
from actorgrid.actors.ledger.record_types import JobRecord, LockRecord
from actorgrid.actors.replication.messages import ChangesLost, StateChanged
from actorgrid.errors import Overloaded
from actorgrid.notification_words import shown_target

from .codec import encode_json

MAX_LISTENERS = 256
"""Open event streams; one more is refused."""
MAX_WAITING = 1024
"""Events one listener may be behind; a slower one is cut off, and told so."""
RING_EVENTS = 4096
RING_BYTES = 2 * 2**20
"""Of the latest events, kept to resume from; older ones are read from the ledger's history."""


@dataclass(frozen=True, slots=True)
class Item:
    """One event, encoded. ``index`` is the ledger's, or 0."""

    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StateItem(Item):
    """A change of the shared state: ``data`` is it as clients see it. ``change_id``: its place in the host's order."""

    key: str = ""
    change_id: str = ""


class Gap(Item):
    """Something was dropped here: read it from its source again."""


GAP = Gap(0, b"")


@dataclass(frozen=True, slots=True)
class Resynced:
    """Says that the server's copy of the ledger starts over from a snapshot at ``index``."""

    index: int


@dataclass(slots=True, eq=False)
class Listener:
    """One client's queue. ``ended`` says why nothing more will come."""

    prefix: str | None = None
    items: deque[Item] = field(default_factory=deque)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: str = ""

    def put(self, item: Item) -> None:
        """Queue an event, or cut the client off when it is too far behind."""
        if self.ended:
            return
        if len(self.items) >= MAX_WAITING:
            if self.prefix is None:
                self.end("lagging")
                return
            # Of a key only the latest counts, and the host knows by position what has not gone out yet.
            self.items.clear()
            item = GAP
        self.items.append(item)
        self.ready.set()

    def end(self, reason: str) -> None:
        """End the stream; what is queued still goes out, unless the client is too slow for it."""
        if not self.ended:
            self.ended = reason
            if reason == "lagging":
                self.items.clear()
            self.ready.set()

    async def next(self, timeout_s: float) -> Item | None:
        """The next event; None after *timeout_s* without one, or when it ended."""
        if not self.items and not self.ended:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.ready.wait()
            except TimeoutError:
                return None
        return self._take()

    def next_here(self) -> Item | None:
        """The next event that is here already; ``None`` without one, and where something is missing before it."""
        return self._take() if self.items and self.items[0] is not GAP else None

    def _take(self) -> Item | None:
        item = self.items.popleft() if self.items else None
        if not self.items and not self.ended:
            self.ready.clear()
        return item


def view_event(applied: Applied) -> dict[str, Any]:
    """An entry of the ledger as people see it: what changed, in short."""
    return {
        "index": applied.index,
        "at": applied.at,
        "type": applied.command_type,
        "changes": [view_change(kind, identity, record) for kind, identity, record in applied.changes],
    }


def view_change(kind: str, identity: str, record: Any) -> dict[str, Any]:
    """One changed record in short; the whole of it is a GET away.

    ``kind``, ``id`` and ``state`` are always there, with the words of the ledger's history.
    """
    shown: dict[str, Any] = {"kind": kind, "id": identity}
    if kind == "job" and isinstance(record, dict):
        attempts = record.get("attempts") or []
        shown |= {name: record.get(name) for name in ("state", "name", "user_id", "cancel_requested")}
        shown["attempt"] = attempts[-1]["number"] if attempts else None
        shown["gpu_uuids"] = attempts[-1].get("gpu_uuids", []) if attempts else []
        shown["error"] = (record.get("error") or {}).get("code")
    elif kind == "allocation" and isinstance(record, dict):
        shown |= {"state": "granted"}
        shown |= {name: record.get(name) for name in ("owner", "host", "gpu_uuids", "gpu_milli")}
    elif kind == "host" and isinstance(record, dict):
        shown |= {name: record.get(name) for name in ("state", "hostname", "incarnation")}
    elif kind == "lock" and isinstance(record, dict):
        counts = {name: len(record[name]) for name in ("holders", "waiters")}
        shown |= {"state": "held", "slots": record["slots"], **counts}
    elif kind == "steps":
        shown |= {"state": "changed", "steps": [[step, each["state"], each["run"]] for step, each in record or ()]}
    elif kind == "lock_break":
        shown |= {"state": f"broken by {record['by']}", **record}
    elif kind == "setting":
        shown |= {"state": "unset" if record is None else "set", "value": record}
    elif kind == "notice" and isinstance(record, dict):
        state = "waiting" if record["failed_at"] is None else "failed"
        shown |= {"state": state, "job_id": record["job_id"], "event": record["event"]}
        shown |= {"target": shown_target(record["target"]), "failure": record["failure"]}
    elif kind == "schedule" and isinstance(record, dict):
        # Without what its jobs are: the addresses that they tell, their environment.
        shown |= {"state": "set", "value": {name: value for name, value in record.items() if name != "job"}}
    elif kind == "service" and isinstance(record, dict):
        # Without what its replicas run: their environment.
        own = ("revision", "target", "problem")
        shown |= {"state": "set", **{name: record[name] for name in own}}
        shown["replicas"] = {each["job_id"]: each["state"] for each in record["replicas"]}
    elif record is None:
        shown["state"] = "released" if kind == "allocation" else "gone"
    else:
        shown |= {"state": "set", "value": record}
    return shown


@dataclass(slots=True, eq=False)
class Watch:
    """A watch on one record. ``record`` is the newest one told; None when it is gone or must be asked for."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    record: JobRecord | LockRecord | None = None

    def tell(self, record: JobRecord | LockRecord | None) -> None:
        """Tell that the record changed."""
        self.record = record
        self.changed.set()

    async def wait(self, at_most_s: float) -> bool:
        """Wait for a change since the last look; ``False`` when none came within that time."""
        try:
            async with asyncio.timeout(at_most_s):
                await self.changed.wait()
        except TimeoutError:
            return False
        self.changed.clear()
        return True


class Hub:
    """Hears what the server tells over the bridge and passes it to those who listen."""

    def __init__(self) -> None:
        self._ring: deque[Item] = deque()
        self._ring_bytes = 0
        self._events: set[Listener] = set()
        self._state: set[Listener] = set()
        self._watches: dict[tuple[str, str], set[Watch]] = {}
        self.last_index = 0
        self._closed = ""

    # -- the bridge's audience

    def receive(self, event: Any) -> None:
        """Take one event from the server."""
        if isinstance(event, Applied):
            self._receive_applied(event)
        elif isinstance(event, StateChanged):
            listening = [one for one in self._state if event.key.startswith(one.prefix or "")]
            if listening:
                item = StateItem(0, encode_json(event.change), event.key, event.id)
                for listener in listening:
                    listener.put(item)
        elif isinstance(event, ChangesLost):
            for listener in self._state:
                listener.put(GAP)
        elif isinstance(event, Resynced):
            if event.index > self.last_index and self.last_index:
                self.events_dropped()
            self.last_index = max(self.last_index, event.index)
            self._wake_watches()

    def events_dropped(self) -> None:
        """Have every listener read again what it follows, as events were dropped."""
        self._ring.clear()
        self._ring_bytes = 0
        for listener in (*self._events, *self._state):
            listener.put(GAP)
        self._wake_watches()

    def _receive_applied(self, applied: Applied) -> None:
        self.last_index = max(self.last_index, applied.index)
        item = Item(applied.index, encode_json(view_event(applied)))
        self._ring.append(item)
        self._ring_bytes += len(item.data)
        while len(self._ring) > RING_EVENTS or (self._ring_bytes > RING_BYTES and len(self._ring) > 1):
            self._ring_bytes -= len(self._ring.popleft().data)
        for listener in self._events:
            listener.put(item)
        if self._watches:
            for kind, identity, record in applied.changes:
                for watch in self._watches.get((kind, identity), ()):
                    watch.tell(record)

    def _wake_watches(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.tell(None)

    # -- listeners

    def recent(self, first: int) -> list[Item] | None:
        """Events from index *first* on, or None when the ring does not reach back so far."""
        if first > self.last_index:
            return []
        if not self._ring or self._ring[0].index > first:
            return None
        return [item for item in self._ring if item.index >= first]

    @contextmanager
    def listen_to_events(self) -> Iterator[Listener]:
        """Listen to everything the ledger applies from now on. Raises Overloaded."""
        with self._listening(self._events, Listener()) as listener:
            yield listener

    @contextmanager
    def listen_to_state(self, prefix: str) -> Iterator[Listener]:
        """Listen to changes of keys under *prefix* from now on. Raises Overloaded."""
        with self._listening(self._state, Listener(prefix)) as listener:
            yield listener

    @contextmanager
    def _listening(self, group: set[Listener], listener: Listener) -> Iterator[Listener]:
        if self.listeners >= MAX_LISTENERS:
            raise Overloaded(
                "the host serves its maximum of event streams",
                found=f"{MAX_LISTENERS}",
                hint="close streams that are not read, or share one",
            )
        group.add(listener)
        # ``close`` has been through the others: without this, one that comes now would wait for ever.
        if self._closed:
            listener.end(self._closed)
        try:
            yield listener
        finally:
            group.discard(listener)

    @contextmanager
    def watch(self, kind: str, identity: str) -> Iterator[Watch]:
        """Watch one job or lock: told whenever its record changes."""
        watch = Watch()
        watches = self._watches.setdefault((kind, identity), set())
        watches.add(watch)
        try:
            yield watch
        finally:
            watches.discard(watch)
            if not watches:
                self._watches.pop((kind, identity), None)

    @property
    def listeners(self) -> int:
        """The number of open event streams."""
        return len(self._events) + len(self._state)

    def close(self, reason: str) -> None:
        """End every stream."""
        self._closed = reason
        for listener in (*self._events, *self._state):
            listener.end(reason)
        self._wake_watches()
