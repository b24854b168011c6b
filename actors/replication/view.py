"""What readers and watchers see of the states on disk: keys in order, their values at a time, and what changed when.

Owns no clock: the time comes with each question. The server beside it says which keys' states changed, and when to
look for values that ended.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable

from actorgrid.access import Scope

from .changes import ChangeLog, change_id
from .lifetimes import Shown, drop_ended, ended_register, is_marked, shown
from .lww import LWWRegister
from .messages import ChangeRecord, EntryRecord
from .namespaces import may_see
from .store import States
from .types import Crdt
from .usage import Usage

KEEP_ENDED_US = 120 * 1_000_000
"""Values that ended are hidden at once, and kept so much longer: a host whose clock is a minute behind still shows
them, and would give them back to who has dropped them."""
ENDED_AT_ONCE = 1000
"""Ends that are looked at in one go; the rest right after."""


class StateView:
    """Over *states*, which the store changes; *log* is told of every change that readers can see."""

    def __init__(self, states: States, log: ChangeLog, now_us: int) -> None:
        self.log = log
        self.usage = Usage()
        self._states = states
        self.keys: list[str] = []
        """Those that are there, in order. Not to be changed."""
        self._ends: list[tuple[int, str]] = []
        self._next_end: dict[str, int] = {}
        self._to_drop: dict[str, None] = {}
        self._unweighed: dict[str, int] = {}
        self.ended: dict[str, None] = {}
        """Keys of which nothing is left but a register that ended."""
        for key, kinds in states.items():
            seen = shown(kinds, now_us) if _may_end(kinds) else Shown("", None)
            self._look_after(key, kinds, seen, now_us)
            if seen is not None:
                self.keys.append(key)
                self.usage.set(key, size_of(kinds))
        self.keys.sort()

    def has(self, key: str) -> bool:
        """Whether readers see the key, as of the last look."""
        place = bisect.bisect_left(self.keys, key)
        return place < len(self.keys) and self.keys[place] == key

    def shown(self, key: str, now_us: int) -> Shown | None:
        """The key at that time; ``None``: there is none."""
        kinds = self._states.get(key)
        return None if not kinds else shown(kinds, now_us)

    def entry(self, key: str, now_us: int) -> EntryRecord | None:
        """The same as a record."""
        seen = self.shown(key, now_us)
        return None if seen is None else entry_of(key, seen)

    def under(self, prefix: str, after: str = "") -> Iterable[str]:
        """Keys with a prefix, in order; with *after*, only those behind it."""
        first = bisect.bisect_right(self.keys, after) if after >= prefix and after else 0
        for place in range(max(first, bisect.bisect_left(self.keys, prefix)), len(self.keys)):
            if not self.keys[place].startswith(prefix):
                return
            yield self.keys[place]

    def entries(
        self,
        prefix: str,
        behind: str,
        limit: int,
        bytes_max: int,
        now_us: int,
        scope: Scope,
        shared: tuple[str, ...],
    ) -> tuple[list[EntryRecord], bool]:
        """Keys under a prefix, behind one of them, in *scope*; and whether there are more."""
        found: list[EntryRecord] = []
        size = 0
        for key in self.under(prefix, behind):
            if not may_see(key, scope, shared):
                continue
            if len(found) >= limit or size >= bytes_max:
                return found, True
            entry = self.entry(key, now_us)
            if entry is not None:  # None: it ended just now, and is told so in a moment
                found.append(entry)
                size += self.usage.size(key) + len(key)
        return found, False

    def changed(self, key: str, now_us: int) -> ChangeRecord | None:
        """The key's state changed, or its time came: what watchers are to be told, if there is anything."""
        kinds = self._states.get(key, {})
        seen = shown(kinds, now_us) if kinds else None
        self._look_after(key, kinds, seen, now_us)
        place = bisect.bisect_left(self.keys, key)
        there = place < len(self.keys) and self.keys[place] == key
        if seen is None:
            if not there:
                return None
            del self.keys[place]
            self.usage.drop(key)
            self._unweighed.pop(key, None)
        else:
            if not there:
                self.keys.insert(place, key)
            self._weigh(key, kinds, anew=not there)
        return self.change(key, seen, self.log.add(key))

    def change(self, key: str, seen: Shown | None, position: int) -> ChangeRecord:
        """A change as watchers are told it."""
        identity = change_id(self.log.epoch, position)
        if seen is None:
            return ChangeRecord(key=key, type="", value=None, id=identity, deleted=True)
        return change_of(entry_of(key, seen), identity)

    # -- ends

    @property
    def next_end_us(self) -> int | None:
        """When to look again whether something ended."""
        return self._ends[0][0] if self._ends else None

    def end(self, now_us: int) -> list[ChangeRecord]:
        """What watchers are to be told of values that ended by now, a bounded number of them."""
        found: list[ChangeRecord] = []
        for _ in range(ENDED_AT_ONCE):
            if not self._ends or self._ends[0][0] > now_us:
                break
            at_us, key = heapq.heappop(self._ends)
            if self._next_end.get(key) != at_us:
                continue
            del self._next_end[key]
            self._to_drop[key] = None
            change = self.changed(key, now_us)
            if change is not None:
                found.append(change)
        return found

    def drop_ended(self, now_us: int) -> list[str]:
        """Drop what ended long enough ago inside of maps and registers of several values; the keys it was in."""
        found = []
        for key in list(self._to_drop)[:ENDED_AT_ONCE]:
            kinds = self._states.get(key, {})
            del self._to_drop[key]
            if drop_ended(kinds, now_us - KEEP_ENDED_US):
                found.append(key)
            elif any(is_marked(data) for state in kinds.values() for data in state.values_bytes()):
                self._to_drop[key] = None  # to the end of the line: its time has not come
        return found

    def to_forget(self, now_us: int) -> list[str]:
        """Keys of which nothing is left but a register that ended long enough ago."""
        found = []
        for key in list(self.ended)[:ENDED_AT_ONCE]:
            since_us = ended_register(self._states.get(key, {}), now_us)
            if since_us is None:
                del self.ended[key]
            elif now_us - since_us >= KEEP_ENDED_US:
                found.append(key)
        return found

    def forgotten(self, key: str) -> None:
        """The key's state is gone from memory."""
        self.ended.pop(key, None)
        self._to_drop.pop(key, None)

    def _look_after(self, key: str, kinds: dict[str, Crdt], seen: Shown | None, now_us: int) -> None:
        until_us = None if seen is None else seen.until_us
        if until_us is None:
            self._next_end.pop(key, None)
        elif self._next_end.get(key) != until_us:
            self._next_end[key] = until_us
            heapq.heappush(self._ends, (until_us, key))
            if len(self._ends) > 2 * len(self._next_end) + 1024:
                self._ends = sorted((at_us, name) for name, at_us in self._next_end.items())
        if seen is None and ended_register(kinds, now_us) is not None:
            self.ended[key] = None
        else:
            self.ended.pop(key, None)

    def _weigh(self, key: str, kinds: dict[str, Crdt], anew: bool) -> None:
        """Measure the key, a large one only now and then: encoding costs as much as the state is large."""
        debt = self._unweighed.pop(key, 0) + 256
        if anew or debt >= self.usage.size(key):
            self.usage.set(key, size_of(kinds))
        else:
            self._unweighed[key] = debt

    def page(
        self,
        prefix: str,
        after: int,
        limit: int,
        bytes_max: int,
        now_us: int,
        scope: Scope,
        shared: tuple[str, ...],
    ) -> tuple[list[ChangeRecord], bool]:
        """Changes behind a position, the latest of each key, and whether there are more."""
        found: list[ChangeRecord] = []
        size = 0
        for position, key in self.log.after(after):
            if not key.startswith(prefix) or not may_see(key, scope, shared):
                continue
            if len(found) >= limit or size >= bytes_max:
                return found, True
            found.append(self.change(key, self.shown(key, now_us), position))
            size += self.usage.size(key) + len(key)
        return found, False


def entry_of(key: str, seen: Shown) -> EntryRecord:
    """A key as readers see it."""
    record = EntryRecord(key=key, type=seen.kind, value=seen.plain)
    if seen.expires_us is not None:
        record["expires_at"] = seen.expires_us / 1e6
    return record


def change_of(entry: EntryRecord, identity: str) -> ChangeRecord:
    """The key as watchers are told it."""
    record = ChangeRecord(key=entry["key"], type=entry["type"], value=entry["value"], id=identity)
    if "expires_at" in entry:
        record["expires_at"] = entry["expires_at"]
    return record


def size_of(kinds: dict[str, Crdt]) -> int:
    """The bytes of a key's states."""
    return sum(len(state.to_bytes()) for state in kinds.values())


def _may_end(kinds: dict[str, Crdt]) -> bool:
    """Whether a key may not be there, now or later: told from its bytes, as looking at all values takes long."""
    register = kinds.get(LWWRegister.kind)
    if len(kinds) > 1 or (isinstance(register, LWWRegister) and register.stamp is None):
        return True
    return any(is_marked(data) for state in kinds.values() for data in state.values_bytes())
