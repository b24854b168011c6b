"""DistributedState: the shared state's server. Here one replica, durable; gossip will join deltas from others.

A mutation is answered once its delta is on disk. Those that arrive together share one fdatasync: the flush is a
timer of no delay, so it runs when the messages already waiting have been taken.
"""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar

from actorgrid.errors import (
    BadRequest,
    DiskFull,
    LogCorrupted,
    LogFailed,
    Overloaded,
    StateTypeConflict,
    StorageError,
    UnknownKey,
)
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server, handles

from .crdt import Crdt
from .journal import storage_error
from .messages import Mutate, Read, ReadPrefix, StateChanged, UnwatchPrefix, WatchPrefix
from .plain import encode_value
from .store import StateStore
from .types import TYPES, ORMap, ORSet, check_key, mutate, new

MAX_KEYS = 100_000
MAX_STATE_BYTES = 64 * 2**20
"""All states together, encoded, at the last snapshot: beyond it nothing may grow."""
MAX_KEY_STATE_BYTES = 4 * 2**20
"""One key's state, encoded, since its value is sent whole to readers and watchers."""
MAX_SHOWN_ELEMENTS = 10_000
"""Elements of a set, fields of a map: tighter than the types' own limit, for the same reason."""
MAX_WATCHES = 1024
MAX_READ_BYTES = 16 * 2**20
"""ReadPrefix stops after about this much; at least one entry is given."""
BATCH_BYTES = 2**20
SHRINKING = frozenset({"remove", "remove_field", "disable"})


class DistributedState(Server):
    """Keys with CRDT values. Damage found on disk keeps it down for this boot: every request gets the reason."""

    name: ClassVar[str] = "distributed_state"
    max_handler_s: ClassVar[float] = 15.0

    def start(self) -> None:
        """Read the disk. What is wrong with it is told to callers, not to the host: work goes on without us."""
        self._store: StateStore | None = None
        self._failure: StorageError | None = None
        self._keys: list[str] = []
        self._sizes: dict[str, int] = {}
        self._watches: dict[tuple[str, str], None] = {}
        self._waiting: list[Waiter] = []
        self._changed: dict[str, None] = {}
        self._figures = dict.fromkeys(("mutations", "refused", "commits", "notices", "notices_dropped"), 0)
        self._last_commit_s = 0.0
        self._replica = (str(self.host.host_id), int(self.host.incarnation))
        try:
            self._open()
        except StorageError as error:
            self.log.error("the shared state is down: %s", error)

    def stop(self, reason: str) -> None:
        """Write what is staged and close."""
        if self._store is not None:
            if self._failure is None:
                self._flush()
            self._store.close()

    @handles(Mutate)
    async def _mutate(self, request: Mutate) -> dict[str, Any]:
        store = self._ready()
        if request.type not in TYPES:
            new(request.type)
        check_key(request.key)
        try:
            answer, flushed = self._apply(store, request)
        except DiskFull:
            self._figures["refused"] += 1
            raise
        if flushed is not None:
            await flushed
        return answer

    @handles(Read)
    def _read(self, request: Read) -> dict[str, Any]:
        store = self._settled()
        return _entry(request.key, self._shown(store, request.key))

    @handles(ReadPrefix)
    def _read_prefix(self, request: ReadPrefix) -> list[dict[str, Any]]:
        store = self._settled()
        if request.limit < 0:
            raise BadRequest("the limit is negative", asked=str(request.limit))
        found: list[dict[str, Any]] = []
        size = 0
        for place in range(bisect.bisect_left(self._keys, request.prefix), len(self._keys)):
            key = self._keys[place]
            if len(found) >= request.limit or size >= MAX_READ_BYTES or not key.startswith(request.prefix):
                break
            state = self._shown(store, key)
            found.append(_entry(key, state))
            size += len(state.to_bytes())
        return found

    @handles(WatchPrefix)
    def _watch(self, request: WatchPrefix, sender: str) -> None:
        """Watching twice is watching once, so a restarted caller just watches again."""
        watch = (sender, request.prefix)
        if watch not in self._watches and len(self._watches) >= MAX_WATCHES:
            raise Overloaded(
                "too many watches of the shared state", found=str(MAX_WATCHES), hint="watch fewer prefixes"
            )
        self._watches[watch] = None

    @handles(UnwatchPrefix)
    def _unwatch(self, request: UnwatchPrefix, sender: str) -> None:
        self._watches.pop((sender, request.prefix), None)

    def metrics(self) -> dict[str, float]:
        """Counts since our start, and sizes now."""
        store = self._store
        return {
            **{f"state_{name}_total": float(count) for name, count in self._figures.items()},
            "state_keys": float(len(self._keys)),
            "state_watches": float(len(self._watches)),
            "state_journal_bytes": float(store.journal_bytes) if store else 0.0,
            "state_snapshot_bytes": float(store.snapshot_bytes) if store else 0.0,
            "state_commit_seconds": self._last_commit_s,
            "state_down": float(self._failure is not None),
        }

    def status(self) -> dict[str, Any]:
        """What ``actorgrid inspect`` shows of this server, in plain values."""
        return {
            "state": "up" if self._failure is None else "down",
            "reason": self._failure.to_dict() if self._failure else None,
            "replica": list(self._replica),
            "keys": len(self._keys),
            "watches": len(self._watches),
        }

    # -- mutating

    def _apply(self, store: StateStore, request: Mutate) -> tuple[dict[str, Any], Waiter | None]:
        """Change memory and stage the delta; the waiter is done once that is durable (None: nothing changed)."""
        if request.operation not in SHRINKING:
            self._check_room(store, request.key)
        kinds = store.states.get(request.key, {})
        if kinds and request.type not in kinds:
            found = _first(kinds).kind
            raise StateTypeConflict(
                f"{request.key!r} holds {found}, not {request.type}",
                asked=request.type,
                found=found,
                hint="use another key",
            )
        if not kinds and request.operation in SHRINKING:
            raise _unknown_key(request.key)
        state = kinds.get(request.type) or new(request.type)
        if request.operation not in SHRINKING:
            self._check_key(request, state)
            store.reserve(2 * len(encode_value(request.value)) + 4096)
        delta = mutate(
            state, self._replica, request.operation, request.value, request.field, time.time_ns() // 1000
        ).to_bytes()
        answer = _entry(request.key, state)
        if delta == new(request.type).to_bytes():
            return answer, None
        try:
            store.reserve(len(delta))
        except DiskFull:
            # Rare: the delta outgrew the estimate. What others staged has its room; then back to what the disk holds.
            self._flush()
            self._reopen()
            raise
        if not kinds:
            bisect.insort(self._keys, request.key)
            store.states[request.key] = kinds
        kinds[request.type] = state
        store.stage(request.key, delta)
        self._sizes[request.key] = self._sizes.get(request.key, 0) + len(delta)
        self._figures["mutations"] += 1
        self._changed[request.key] = None
        if not self._waiting:
            self.runtime.after(0.0, self._flush)
        waiter = Waiter()
        self._waiting.append(waiter)
        if store.staged_bytes >= BATCH_BYTES:
            self._flush()
        return answer, waiter

    def _flush(self) -> None:
        """Make all that is staged durable, answer its callers, tell the watchers."""
        store = self._store
        waiting, self._waiting = self._waiting, []
        changed, self._changed = self._changed, {}
        if store is None or not store.staged:
            return
        begun_s = self.runtime.monotonic()
        failure: StorageError | None = None
        try:
            store.commit()
        except DiskFull as error:
            failure = error
            self._reopen()
        except LogFailed as error:
            failure = self._failure = error
            self.log.error("the shared state is down: %s", error)
        self._last_commit_s = self.runtime.monotonic() - begun_s
        if failure is not None:
            self._figures["refused"] += len(waiting)
            for waiter in waiting:
                waiter.fail(failure)
            return
        self._figures["commits"] += 1
        for key in changed:
            self._tell(key)
        for waiter in waiting:
            waiter.set(None)
        if not self._waiting:
            self._guard(store.maybe_compact)

    def _guard(self, work: Callable[[], None]) -> None:
        """Do disk *work*; if it leaves the disk in doubt, we are down from here on."""
        try:
            work()
        except LogFailed as error:
            self._failure = error
            self.log.error("the shared state is down: %s", error)

    def _tell(self, key: str) -> None:
        names = {name: None for name, prefix in self._watches if key.startswith(prefix)}
        if not names or self._store is None:
            return
        state = self._shown(self._store, key)
        change = StateChanged(key, state.kind, state.plain)
        for name in names:
            self._figures["notices"] += 1
            if not self.cast(name, change):
                self._figures["notices_dropped"] += 1

    def _check_room(self, store: StateStore, key: str) -> None:
        """Raises DiskFull or Overloaded when nothing may grow."""
        try:
            free = os.statvfs(store.directory)
        except OSError as error:
            raise storage_error(error, "cannot see how full the data directory's disk is") from error
        least = self.host.settings.performance.min_free_bytes
        if free.f_bavail * free.f_frsize < least:
            raise DiskFull(
                "the data directory's disk is nearly full: the shared state takes nothing new",
                found=f"{free.f_bavail * free.f_frsize // 2**20} MiB free, {least // 2**20} MiB must stay free",
                hint="free space, or lower performance.min_free_bytes; what is stored is kept",
            )
        if store.snapshot_bytes > MAX_STATE_BYTES:
            self._flush()
            if store.journal_bytes >= 2**18:
                self._guard(store.compact)
            self._ready()
            if store.snapshot_bytes > MAX_STATE_BYTES:
                raise Overloaded(
                    "the shared state is full", found=f"{MAX_STATE_BYTES // 2**20} MiB", hint="remove some"
                )
        if key not in store.states and len(store.states) >= MAX_KEYS:
            raise Overloaded("the shared state is full", found=f"{MAX_KEYS} keys", hint="use fields of an or_map")

    def _check_key(self, request: Mutate, state: Crdt) -> None:
        """Raises BadRequest when this key may not grow."""
        if isinstance(state, (ORSet, ORMap)) and len(state) >= MAX_SHOWN_ELEMENTS:
            known = request.field in state if isinstance(state, ORMap) else request.value in state
            if not known:
                raise BadRequest(f"the {state.kind} is full", found=f"{len(state)} elements", hint="use several keys")
        if self._sizes.get(request.key, 0) > MAX_KEY_STATE_BYTES:
            size = self._sizes[request.key] = len(state.to_bytes())
            if size > MAX_KEY_STATE_BYTES:
                raise BadRequest(
                    f"{request.key!r} is full", found=f"{MAX_KEY_STATE_BYTES // 2**20} MiB", hint="use several keys"
                )

    # -- reading

    def _open(self) -> None:
        try:
            self._store = StateStore(self.host.paths.state_dir)
        except StorageError as error:
            self._failure = error
            raise
        self._failure = None
        self._keys = sorted(self._store.states)
        self._sizes = {}

    def _reopen(self) -> None:
        """Back to what the disk holds, after a refused write."""
        assert self._store is not None
        try:
            self._store.reopen()
        except StorageError as error:
            self._failure = error
            self.log.error("the shared state is down: %s", error)
            return
        self._keys = sorted(self._store.states)
        self._sizes = {}

    def _ready(self) -> StateStore:
        """The store. Raises why it is down; a full disk may have room again."""
        if self._store is None and isinstance(self._failure, DiskFull):
            self._open()
        if self._failure is not None or self._store is None:
            raise self._failure or LogCorrupted("the shared state was not opened")
        return self._store

    def _settled(self) -> StateStore:
        """The store with nothing in memory that is not on disk, so that nobody reads what may yet be refused."""
        self._ready()
        self._flush()
        return self._ready()

    def _shown(self, store: StateStore, key: str) -> Crdt:
        kinds = store.states.get(key)
        if not kinds:
            raise _unknown_key(key)
        return _first(kinds)


def _first(kinds: dict[str, Crdt]) -> Crdt:
    """The one shown when a key became several types: by the order of TYPES."""
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    return next(kinds[kind] for kind in TYPES if kind in kinds)


def _entry(key: str, state: Crdt) -> dict[str, Any]:
    return {"key": key, "type": state.kind, "value": state.plain}


def _unknown_key(key: str) -> UnknownKey:
    return UnknownKey(f"the shared state has no {key!r}", asked=key, hint="actorgrid state list shows what there is")
