"""DistributedState: the shared state's server: this host's replica, and its talk with those of the other hosts.

A mutation is answered once its delta is on disk, or on those of a majority where that is asked for. Those that arrive
together share one fdatasync: the flush is a timer of no delay, so it runs when the messages already waiting have been
taken. What is durable is offered to other hosts a moment later, by way of ``links``.
"""

from __future__ import annotations

import bisect
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from actorgrid.errors import (
    BadRequest,
    DiskFull,
    LogCorrupted,
    LogFailed,
    NotReplicated,
    Overloaded,
    StateTypeConflict,
    StorageError,
    UnknownKey,
)
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server, handles

from ..links.messages import CastPackets, TellMembers
from .crdt import Crdt
from .exchange import Send
from .journal import storage_error
from .messages import (
    MembersNow,
    Mutate,
    PacketCame,
    Read,
    ReadPrefix,
    StateChanged,
    UnwatchPrefix,
    WatchPrefix,
)
from .namespaces import may_see
from .plain import encode_value
from .replica import StateReplica
from .store import StateStore
from .types import TYPES, ORMap, ORSet, Replica, check_key, mutate, new

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
ROUND_S = 1.0
"""Between two digests to three other hosts: what a lost push costs at most, and 93 bytes a second when all is equal."""
MAX_MAJORITY_WAITS = 4096
MAX_WITHIN_S = 60.0
STATUS_PEERS = 100
"""Peers that ``status`` names."""
DURABILITIES = ("host", "majority")
SHRINKING = frozenset({"remove", "remove_field", "disable"})


@dataclass(eq=False, slots=True)
class _MajorityWait:
    """A mutation that is durable here and has to become so at a majority."""

    origin: Replica
    sequence: int
    waiter: Waiter


class DistributedState(Server):
    """The server of keys with CRDT values.

    Damage found on disk keeps it down for this boot: requests get the reason.
    """

    name: ClassVar[str] = "distributed_state"
    max_handler_s: ClassVar[float] = 15.0

    def start(self) -> None:
        """Read the disk. What is wrong with it is told to callers, not to the host: work goes on without us."""
        self._replica: StateReplica | None = None
        self._failure: StorageError | None = None
        self._keys: list[str] = []
        self._sizes: dict[str, int] = {}
        self._watches: dict[tuple[str, str], None] = {}
        self._waiting: list[Waiter] = []
        self._flush_due = False
        self._majority: list[_MajorityWait] = []
        self._members_known = False
        self._figures = dict.fromkeys(
            ("mutations", "refused", "commits", "notices", "notices_dropped", "not_replicated"), 0
        )
        self._last_commit_s = 0.0
        try:
            self._open()
        except StorageError as error:
            self.log.error("the shared state is down: %s", error)
        if self.host.enrolment is not None:
            self.every(ROUND_S, self._round)

    def stop(self, reason: str) -> None:
        """Write what is staged and close."""
        if self._replica is not None:
            if self._failure is None:
                self._flush()
            self._replica.close()

    def peer_restarted(self, name: str) -> None:
        """Whoever watches does so anew; of other hosts we hear again from the next round on."""
        if name == "links":
            self._members_known = False

    @handles(Mutate)
    async def _mutate(self, request: Mutate) -> dict[str, Any]:
        store = self._ready()
        if request.type not in TYPES:
            new(request.type)
        check_key(request.key)
        if request.durability not in DURABILITIES or not 0 < request.within_s <= MAX_WITHIN_S:
            raise BadRequest(
                "there is no such durability",
                asked=f"{request.durability[:80]!r} within {request.within_s:g} s",
                found=f"{' or '.join(DURABILITIES)}, within {MAX_WITHIN_S:g} s at most",
            )
        try:
            answer, flushed = self._apply(store, request)
        except DiskFull:
            self._figures["refused"] += 1
            raise
        if flushed is not None:
            dot = self._replica.gossip.last_staged() if self._replica is not None else None
            await flushed
            if request.durability == "majority" and dot is not None:
                await self._at_majority(*dot, request.within_s)
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
            if not may_see(key, request.user, request.shared):
                continue
            state = self._shown(store, key)
            found.append(_entry(key, state))
            size += len(state.to_bytes())
        return found

    @handles(WatchPrefix)
    def _watch(self, request: WatchPrefix, sender: str) -> None:
        """Watch a prefix; watching twice is watching once, so a restarted caller just watches again."""
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
        replica = self._replica
        figures = {
            **{f"state_{name}_total": float(count) for name, count in self._figures.items()},
            "state_keys": float(len(self._keys)),
            "state_watches": float(len(self._watches)),
            "state_journal_bytes": float(replica.store.journal_bytes) if replica else 0.0,
            "state_snapshot_bytes": float(replica.store.snapshot_bytes) if replica else 0.0,
            "state_commit_seconds": self._last_commit_s,
            "state_down": float(self._failure is not None),
        }
        if replica is not None:
            gossip = replica.gossip
            figures |= {f"state_gossip_{name}_total": float(count) for name, count in gossip.counts.items()}
            figures |= {f"state_gossip_refused_{name}_total": float(count) for name, count in gossip.refused.items()}
            lags = gossip.lags().values()
            figures |= {
                "state_gossip_passed_over_total": float(replica.passed_over),
                "state_gossip_origins": float(gossip.origins),
                "state_gossip_log_bytes": float(gossip.log_bytes),
                "state_gossip_repairing": float(gossip.walking),
                "state_gossip_peers": float(len(lags)),
                "state_gossip_peers_unheard": float(sum(lag is None for lag in lags)),
                "state_gossip_lag_max": float(max((lag for lag in lags if lag is not None), default=0)),
            }
        return figures

    def status(self) -> dict[str, Any]:
        """What ``actorgrid inspect`` shows of this server, in plain values."""
        replica = self._replica
        shown: dict[str, Any] = {
            "state": "up" if self._failure is None else "down",
            "reason": self._failure.to_dict() if self._failure else None,
            "replica": list(replica.me) if replica else None,
            "keys": len(self._keys),
            "watches": len(self._watches),
        }
        if replica is not None:
            gossip = replica.gossip
            refused = {name: count for name, count in gossip.refused.items() if count}
            shown |= {
                "origins": gossip.origins,
                "recent_deltas_bytes": gossip.log_bytes,
                "repairing": gossip.walking,
                "peers": {
                    name: "not heard yet" if lag is None else f"{lag} deltas behind us" if lag else "equal"
                    for name, lag in sorted(gossip.lags().items())[:STATUS_PEERS]
                },
                "sent_bytes": gossip.counts["sent_bytes"],
                "received_bytes": gossip.counts["received_bytes"],
                "refused": refused,
            }
        return shown

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
            state, self._me(), request.operation, request.value, request.field, time.time_ns() // 1000
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
            store.states[request.key] = kinds
        kinds[request.type] = state
        self._live().stage_local(request.key, delta)
        self._sizes[request.key] = self._sizes.get(request.key, 0) + len(delta)
        self._figures["mutations"] += 1
        waiter = Waiter()
        self._waiting.append(waiter)
        self._flush_soon()
        if store.staged_bytes >= BATCH_BYTES:
            self._flush()
        return answer, waiter

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self.runtime.after(0.0, self._flush)

    def _flush(self) -> None:
        """Make all that is staged durable, answer its callers, acknowledge it to its hosts, tell the watchers."""
        self._flush_due = False
        replica = self._replica
        if replica is None or self._failure is not None:
            return
        begun_s, staged = self.runtime.monotonic(), replica.store.staged
        sends = self._durably(replica.commit)
        if self._failure is not None or sends is None:
            return
        if staged:
            self._last_commit_s = self.runtime.monotonic() - begun_s
            self._figures["commits"] += 1
        self._cast(sends)
        # At once: what came together is one packet already, and what comes while it is under way waits for its
        # acknowledgement.
        self._push()
        self._settle_changes(replica)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.set(None)
        if not self._waiting and not replica.store.staged:
            self._guard(replica.store.maybe_compact)

    def _durably(self, work: Callable[[], list[Send]]) -> list[Send] | None:
        """Do *work*, which commits. If the disk refuses, memory is as the disk again, and who waits hears of it."""
        try:
            return work()
        except DiskFull as error:
            failure: StorageError = error
            self._forget_views()
        except StorageError as error:
            failure = self._failure = error
            self.log.error("the shared state is down: %s", error)
        waiting, self._waiting = self._waiting, []
        self._figures["refused"] += len(waiting)
        for waiter in waiting:
            waiter.fail(failure)
        return None

    def _settle_changes(self, replica: StateReplica) -> None:
        """What changed is durable: take new keys into the order, and tell the watchers."""
        changed, replica.changed = replica.changed, {}
        for key in changed:
            place = bisect.bisect_left(self._keys, key)
            if place == len(self._keys) or self._keys[place] != key:
                self._keys.insert(place, key)
            self._tell(key)

    def _guard(self, work: Callable[[], None]) -> None:
        """Do disk *work*; if it leaves the disk in doubt, this server is down from here on."""
        try:
            work()
        except LogFailed as error:
            self._failure = error
            self.log.error("the shared state is down: %s", error)

    def _tell(self, key: str) -> None:
        names = {name: None for name, prefix in self._watches if key.startswith(prefix)}
        if not names or self._replica is None:
            return
        state = self._shown(self._replica.store, key)
        change = StateChanged(key, state.kind, state.plain)
        for name in names:
            self._figures["notices"] += 1
            if not self.cast(name, change):
                self._figures["notices_dropped"] += 1

    def _check_room(self, store: StateStore, key: str) -> None:
        """Check that the state may grow. Raises DiskFull or Overloaded."""
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
        """Check that this key may grow. Raises BadRequest."""
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

    # -- the other hosts

    @handles(MembersNow)
    def _members_now(self, message: MembersNow) -> None:
        self._members_known = True
        if self._replica is not None:
            self._replica.set_members(message.host_ids, message.sites, message.away)
            self._look_at_majorities()

    @handles(PacketCame)
    def _packet_came(self, message: PacketCame) -> None:
        replica = self._replica
        if replica is None or self._failure is not None:
            return
        now_us = time.time_ns() // 1000
        sends = self._durably(lambda: replica.receive(message.host_id, message.packet, now_us))
        if sends is None:
            return
        self._cast(sends)
        self._flush_soon()
        self._look_at_majorities()

    def _round(self) -> None:
        replica = self._replica
        if replica is None or self._failure is not None:
            return
        if not self._members_known:
            self.cast("links", TellMembers())
            return
        self._flush()
        if self._failure is None:
            self._cast(self._durably(replica.round) or [])

    def _push(self) -> None:
        if self._replica is not None and self.host.enrolment is not None:
            self._cast(self._replica.push())

    def _cast(self, sends: list[Send]) -> None:
        batch: list[tuple[str, bytes]] = []
        size = 0
        for send in sends:
            batch.append((send.peer, send.packet))
            size += len(send.packet)
            if size >= BATCH_BYTES:
                self.cast("links", CastPackets(tuple(batch)))
                batch, size = [], 0
        if batch:
            self.cast("links", CastPackets(tuple(batch)))  # lost while links restarts: it is told again

    async def _at_majority(self, origin: Replica, sequence: int, within_s: float) -> None:
        """Return when more than half of the members have that delta on their disks. Raises NotReplicated."""
        if len(self._majority) >= MAX_MAJORITY_WAITS:
            raise Overloaded(
                "too many writes wait for a majority; this one is on this host's disk",
                found=str(MAX_MAJORITY_WAITS),
                hint="wait for some before writing more",
            )
        wait = _MajorityWait(origin, sequence, Waiter())
        self._majority.append(wait)
        timer = self.runtime.after(within_s, lambda: wait.waiter.fail(self._not_replicated(wait, within_s)))
        self._cast(self._live().offer_to_all(origin, sequence))
        self._look_at_majorities()
        try:
            await wait.waiter
        finally:
            timer.cancel()
            self._majority.remove(wait)

    def _not_replicated(self, wait: _MajorityWait, within_s: float) -> NotReplicated:
        self._figures["not_replicated"] += 1
        gossip = self._live().gossip
        held, members = gossip.holders(wait.origin, wait.sequence), len(gossip.members)
        return NotReplicated(
            f"too few members have acknowledged the write in {within_s:g} s",
            asked=f"{members // 2 + 1} of {members} members",
            found=f"{held} have it on their disks",
            hint="it stays on this host and goes on to the others, so do not repeat it; see actorgrid hosts",
        )

    def _look_at_majorities(self) -> None:
        if not self._majority or not self._members_known:
            return
        gossip = self._live().gossip
        needed = len(gossip.members) // 2 + 1
        for wait in list(self._majority):
            if gossip.holders(wait.origin, wait.sequence) >= needed:
                wait.waiter.set(None)

    # -- reading

    def _open(self) -> None:
        host = self.host
        try:
            # Chance makes epochs that nobody used before, and decides whom we speak to; it guards nothing.
            dice = random.SystemRandom()
            self._replica = StateReplica(host.paths.state_dir, str(host.host_id), int(host.incarnation), dice)
        except StorageError as error:
            self._failure = error
            raise
        self._failure = None
        self._members_known = host.enrolment is None
        self._forget_views()

    def _reopen(self) -> None:
        """Back to what the disk holds, after a refused write."""
        try:
            self._live().roll_back()
        except StorageError as error:
            self._failure = error
            self.log.error("the shared state is down: %s", error)
            return
        self._forget_views()

    def _forget_views(self) -> None:
        """Memory is what the disk holds: no more is known of it."""
        replica = self._live()
        replica.changed.clear()
        self._keys = sorted(replica.states)
        self._sizes = {}

    def _live(self) -> StateReplica:
        assert self._replica is not None, "nothing is done before it was opened"
        return self._replica

    def _me(self) -> Replica:
        return self._live().me

    def _ready(self) -> StateStore:
        """The store. Raises why it is down; a full disk may have room again."""
        if self._replica is None and isinstance(self._failure, DiskFull):
            self._open()
        if self._failure is not None or self._replica is None:
            raise self._failure or LogCorrupted("the shared state was not opened")
        return self._replica.store

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
    """The value to show of a key that became several types: the first by the order of TYPES."""
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    return next(kinds[kind] for kind in TYPES if kind in kinds)


def _entry(key: str, state: Crdt) -> dict[str, Any]:
    return {"key": key, "type": state.kind, "value": state.plain}


def _unknown_key(key: str) -> UnknownKey:
    return UnknownKey(f"the shared state has no {key!r}", asked=key, hint="actorgrid state list shows what there is")
