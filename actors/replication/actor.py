"""DistributedState: the shared state's server: this host's replica, and its talk with those of the other hosts.

A mutation is answered once its delta is on disk, or on those of a majority where that is asked for. Those that arrive
together share one fdatasync: the flush is a timer of no delay, so it runs when the messages already waiting have been
taken. What is durable is offered to other hosts a moment later, by way of ``links``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from actorgrid.errors import ActorGridError, BadRequest, DiskFull, LogCorrupted, LogFailed, Overloaded, StorageError
from actorgrid.supervisors.runtime import Timer, Waiter
from actorgrid.supervisors.server import Server, handles

from ..links.messages import CastPackets, TellMembers
from .causal import Replica
from .changes import ChangeLog, change_id, read_change_id
from .crdt import Crdt
from .exchange import Send
from .figures import gossip_figures, gossip_status
from .forgetting import Forgetting
from .growth import Growth, check_disk
from .lifetimes import shown
from .majority import MajorityWaits
from .messages import (
    ChangesPage,
    EntryRecord,
    MembersNow,
    Mutate,
    MutateBatch,
    PacketCame,
    Read,
    ReadChanges,
    ReadPrefix,
    ReadUsage,
    RetirementFound,
    StateUsage,
    UnwatchPrefix,
    WatchPrefix,
)
from .mutations import SHRINKING, apply_mutation, check_asked, check_batch, check_durability, check_limit, unknown_key
from .plain import encode_value
from .push_pace import PushPace
from .replica import HASH_PAUSE_S, StateReplica
from .stamp_clock import StampClock, latest_of_others
from .store import StateStore
from .traffic import PeerTraffics
from .view import StateView, change_of, entry_of
from .watchers import Watchers

MAX_KEYS = 100_000
MAX_STATE_BYTES = 64 * 2**20
"""All states together, encoded, at the last snapshot: beyond it nothing may grow."""
MAX_READ_BYTES = 16 * 2**20
"""ReadPrefix stops after about this much; at least one entry is given."""
MAX_BATCH_BYTES = 4 * 2**20
"""Values of one MutateBatch together, encoded."""
PAGE_BYTES = 2**20
"""A page of changes ends after about this much."""
BATCH_BYTES = 2**20
ROUND_S = 1.0
"""Between two digests to two other hosts: what a lost push costs, mostly, and 62 bytes a second when all is equal."""
FORGET_S = 10.0
"""Between two looks for what ended and may be dropped."""
END_LEAST_S = 0.02
END_MOST_S = 60.0
"""Until the next look for values that end: clocks may step."""


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
        self._view: StateView
        self._growth: Growth
        self._view_made = False
        self._forgetting = Forgetting()
        self._hashing = False
        self._clock = StampClock(self.host.enrolment is None, *self._clocks())
        self._watchers = Watchers()
        self._traffic = PeerTraffics()
        self._waiting: list[Waiter] = []
        self._flush_due = False
        self._majority = MajorityWaits()
        self._members_known = False
        self._end_timer: Timer | None = None
        self._pace = PushPace()
        self._figures = dict.fromkeys(("mutations", "refused", "commits", "ended", "forgotten"), 0)
        self._last_commit_s = 0.0
        try:
            self._open()
        except StorageError as error:
            self.log.error("the shared state is down: %s", error)
        if self.host.enrolment is not None:
            self.every(ROUND_S, self._round)
            self._look_for_retired()
        self.every(FORGET_S, self._forget)

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
    async def _mutate(self, request: Mutate) -> EntryRecord:
        store = self._ready()
        check_asked(request)
        check_durability(request.durability, request.within_s)
        try:
            answer, flushed = self._apply(store, request)
        except DiskFull:
            self._figures["refused"] += 1
            raise
        if flushed is not None:
            await self._durable(flushed, request.durability, request.within_s)
        return answer

    @handles(MutateBatch)
    async def _mutate_batch(self, request: MutateBatch) -> list[EntryRecord]:
        store = self._ready()
        check_durability(request.durability, request.within_s)
        check_batch(len(request.mutations))
        try:
            answers, flushed = self._apply_batch(store, request.mutations)
        except DiskFull:
            self._figures["refused"] += 1
            raise
        if flushed is not None:
            await self._durable(flushed, request.durability, request.within_s)
        return answers

    async def _durable(self, flushed: Waiter, durability: str, within_s: float) -> None:
        """Return when what was staged last is as durable as it has to be."""
        dot = self._live().gossip.last_staged()
        await flushed
        if durability == "majority":
            await self._at_majority(*dot, within_s)

    @handles(Read)
    def _read(self, request: Read) -> EntryRecord:
        self._settled()
        entry = self._view.entry(request.key, self._now_us())
        if entry is None:
            raise unknown_key(request.key)
        return entry

    @handles(ReadPrefix)
    def _read_prefix(self, request: ReadPrefix) -> list[EntryRecord]:
        self._settled()
        check_limit(request.limit)
        asked = request.prefix, request.behind, request.limit, MAX_READ_BYTES
        return self._view.entries(*asked, self._now_us(), request.scope, request.shared)[0]

    @handles(ReadChanges)
    def _read_changes(self, request: ReadChanges) -> ChangesPage:
        self._settled()
        check_limit(request.limit)
        log, now_us = self._view.log, self._now_us()
        who = request.scope, request.shared
        after = read_change_id(request.after)
        upto = change_id(log.epoch, log.position)
        if after is not None and log.knows(*after):
            changes, more = self._view.page(request.prefix, after[1], request.limit, PAGE_BYTES, now_us, *who)
            return ChangesPage(known=True, upto=upto, changes=changes, more=more)
        entries, more = self._view.entries(request.prefix, request.behind, request.limit, PAGE_BYTES, now_us, *who)
        # Their own positions are of no use: who has come to a key in this order has not all that changed before it.
        return ChangesPage(known=False, upto=upto, changes=[change_of(entry, "") for entry in entries], more=more)

    @handles(ReadUsage)
    def _read_usage(self, request: ReadUsage) -> StateUsage:
        self._settled()
        view, usage = self._view, self._view.usage
        peers, origins = self._traffic.rows(self._live().gossip, self.runtime.monotonic(), request.rows)
        return StateUsage(
            keys=len(view.keys),
            bytes=sum(row["bytes"] for row in usage.namespaces(MAX_KEYS)),
            namespaces=usage.namespaces(request.rows),
            prefixes=usage.prefixes(view.under(request.prefix), max(1, request.depth), request.rows),
            peers=peers,
            origins=origins,
        )

    @handles(WatchPrefix)
    def _watch(self, request: WatchPrefix, sender: str) -> None:
        """Watch a prefix; watching twice is watching once, so a restarted caller just watches again."""
        self._watchers.add(sender, request.prefix)

    @handles(UnwatchPrefix)
    def _unwatch(self, request: UnwatchPrefix, sender: str) -> None:
        self._watchers.remove(sender, request.prefix)

    def metrics(self) -> dict[str, float]:
        """Counts since our start, and sizes now."""
        replica = self._replica
        figures = {
            **{f"state_{name}_total": float(count) for name, count in self._figures.items()},
            "state_notices_total": float(self._watchers.notices),
            "state_notices_dropped_total": float(self._watchers.notices_dropped),
            "state_not_replicated_total": float(self._majority.not_replicated),
            "state_keys": float(len(self._view.keys) if replica else 0),
            "state_watches": float(len(self._watchers)),
            "state_journal_bytes": float(replica.store.journal_bytes) if replica else 0.0,
            "state_snapshot_bytes": float(replica.store.snapshot_bytes) if replica else 0.0,
            "state_commit_seconds": self._last_commit_s,
            "state_clock_unconfirmed_seconds": self._clock.unconfirmed_us / 1e6,
            "state_down": float(self._failure is not None),
        }
        if replica is not None:
            figures |= gossip_figures(replica)
        return figures

    def status(self) -> dict[str, Any]:
        """What ``actorgrid inspect`` shows of this server, in plain values."""
        replica = self._replica
        described: dict[str, Any] = {
            "state": "up" if self._failure is None else "down",
            "reason": self._failure.to_dict() if self._failure else None,
            "replica": list(replica.me) if replica else None,
            "keys": len(self._view.keys) if replica else 0,
            "watches": len(self._watchers),
        }
        if replica is not None:
            described |= gossip_status(replica)
        return described

    # -- mutating

    def _apply(self, store: StateStore, request: Mutate) -> tuple[EntryRecord, Waiter | None]:
        """Change memory and stage the delta; the waiter is done once that is durable (None: nothing changed)."""
        if request.operation not in SHRINKING:
            self._check_room(store, request.key)
        kinds = store.states.get(request.key, {})
        if request.operation not in SHRINKING:
            value_bytes = len(encode_value(request.value))
            self._growth.check(request, kinds, value_bytes, 1, self.runtime.monotonic())
            store.reserve(2 * value_bytes + 4096)
        elif request.operation == "delete":
            store.reserve(2 * self._view.usage.size(request.key) + 4096)
        deltas = apply_mutation(kinds, request, self._live().me, self._now_us())
        answer = self._answer(request, kinds)
        if not deltas:
            return answer, None
        try:
            store.reserve(sum(map(len, deltas)))
        except DiskFull:
            # Rare: the delta outgrew the estimate. What others staged has its room; then back to what the disk holds.
            self._flush()
            self._reopen()
            raise
        store.states[request.key] = kinds
        self._stage(request.key, deltas)
        return answer, self._wait_for_flush(store)

    def _apply_batch(self, store: StateStore, batch: Sequence[Mutate]) -> tuple[list[EntryRecord], Waiter | None]:
        """The same for several, on copies: what does not fit leaves nothing changed."""
        working: dict[str, dict[str, Crdt]] = {}
        staged: list[tuple[str, list[bytes]]] = []
        answers: list[EntryRecord] = []
        size, now_us = 0, self._now_us()
        growing = [request for request in batch if request.operation not in SHRINKING]
        if growing:  # once, and first: it may have to write, or to read the disk again
            added = {request.key for request in growing} - store.states.keys()
            self._check_room(store, next(iter(added), growing[0].key), len(added))
        fresh: set[str] = set()
        for number, request in enumerate(batch):
            try:
                check_asked(request)
                if request.key not in working:
                    known = store.states.get(request.key, {})
                    working[request.key] = {kind: state.copy() for kind, state in known.items()}
                kinds = working[request.key]
                if request.operation not in SHRINKING:
                    size += len(encode_value(request.value))
                    if size > MAX_BATCH_BYTES:
                        raise BadRequest("the batch is too large", found=f"at most {MAX_BATCH_BYTES} bytes of values")
                    if not self._view.has(request.key):
                        fresh.add(request.key)
                    self._growth.check(request, kinds, size, len(fresh), self.runtime.monotonic())
                deltas = apply_mutation(kinds, request, self._live().me, now_us)
            except ActorGridError as error:
                if not isinstance(error, StorageError):
                    error.message = f"mutation {number} of the batch: {error.message}"
                raise
            answers.append(self._answer(request, kinds))
            if deltas:
                staged.append((request.key, deltas))
        if not staged:
            return answers, None
        store.reserve(sum(len(data) + 4 * len(key) + 32 for key, deltas in staged for data in deltas) + 4096)
        for key, deltas in staged:
            store.states[key] = working[key]
            self._stage(key, deltas)
        return answers, self._wait_for_flush(store)

    def _answer(self, request: Mutate, kinds: dict[str, Crdt]) -> EntryRecord:
        seen = shown(kinds, self._now_us())
        return (
            EntryRecord(key=request.key, type=request.type, value=None) if seen is None else entry_of(request.key, seen)
        )

    def _stage(self, key: str, deltas: list[bytes]) -> None:
        for delta in deltas:
            self._live().stage_local(key, delta)
        self._figures["mutations"] += 1

    def _wait_for_flush(self, store: StateStore) -> Waiter:
        waiter = Waiter()
        self._waiting.append(waiter)
        self._flush_soon()
        if store.staged_bytes >= BATCH_BYTES:
            self._flush()
        return waiter

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
        # Where hosts are few, at once: what comes while that is under way waits for its acknowledgement.
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
        """What changed is durable: take it into what readers see, and tell the watchers."""
        changed, replica.changed = replica.changed, {}
        now_us = self._now_us()
        latest_us = 0
        for key in changed:
            change = self._view.changed(key, now_us)
            if change is not None:
                self._watchers.tell(change, self.cast)
            self._forgetting.came_back(replica, self._view, key)
            latest_us = max(latest_us, latest_of_others(replica.states.get(key, {}), replica.me[0]))
        self._clock.heard(latest_us, *self._clocks())
        self._look_for_ends()

    def _look_for_ends(self) -> None:
        """Come back when the next value ends."""
        next_us = self._view.next_end_us
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None
        if next_us is not None:
            wait_s = min(max((next_us - self._now_us()) / 1e6, END_LEAST_S), END_MOST_S)
            self._end_timer = self.runtime.after(wait_s, self._end)

    def _end(self) -> None:
        """Tell the watchers of values that ended."""
        self._end_timer = None
        if self._failure is not None:
            return
        for change in self._view.end(self._now_us()):
            self._figures["ended"] += 1
            self._watchers.tell(change, self.cast)
        self._look_for_ends()

    def _forget(self) -> None:
        """Drop what ended and is of no use any more; tell those who missed changes that they did."""
        self._watchers.tell_missed(self.cast)
        replica = self._replica
        if replica is None or self._failure is not None:
            return
        self._flush()
        if self._failure is None and (self._members_known or self.host.enrolment is None):
            self._figures["forgotten"] += self._forgetting.look(replica, self._view, self._now_us())
            self._cast(replica.ask(self._forgetting.to_ask(replica)))

    def _look_for_retired(self) -> None:
        """Propose to retire what all members hold; ask those who are in the way."""
        limits = self.host.settings.state
        self.runtime.after(min(max(limits.retire_after_s / 5, ROUND_S), FORGET_S), self._look_for_retired)
        replica = self._replica
        if replica is None or self._failure is not None or not self._members_known:
            return
        sends, found = replica.look_for_retired(limits.retire_starts, int(limits.retire_after_s / ROUND_S))
        self._cast(sends)
        for openings in found:
            self.cast("links", RetirementFound(openings))

    def _guard(self, work: Callable[[], None]) -> None:
        """Do disk *work*; if it leaves the disk in doubt, this server is down from here on."""
        try:
            work()
        except LogFailed as error:
            self._failure = error
            self.log.error("the shared state is down: %s", error)

    def _check_room(self, store: StateStore, key: str, added: int = 0) -> None:
        """Check that the state may grow. Raises DiskFull or Overloaded."""
        check_disk(store.directory, self.host.settings.performance.min_free_bytes)
        if store.snapshot_bytes > MAX_STATE_BYTES:
            self._flush()
            if store.journal_bytes >= 2**18:
                self._guard(store.compact)
            self._ready()
            if store.snapshot_bytes > MAX_STATE_BYTES:
                raise Overloaded(
                    "the shared state is full", found=f"{MAX_STATE_BYTES // 2**20} MiB", hint="remove some"
                )
        if key not in store.states and len(store.states) + max(0, added - 1) >= MAX_KEYS:
            raise Overloaded("the shared state is full", found=f"{MAX_KEYS} keys", hint="use fields of an or_map")

    # -- the other hosts

    @handles(MembersNow)
    def _members_now(self, message: MembersNow) -> None:
        self._members_known = True
        if self._replica is not None:
            self._replica.set_members(message.host_ids, message.sites, message.away)
            if self._failure is None:
                self._cast(self._durably(lambda: self._live().learn(message.retired)) or [])
            self._look_at_majorities()
            self._traffic.keep_only(message.host_ids)

    @handles(PacketCame)
    def _packet_came(self, message: PacketCame) -> None:
        replica = self._replica
        if replica is None or self._failure is not None:
            return
        # By the wall clock, though it may not be believed: who waits for it to be right could not be told that it is.
        now_us, _ = self._clocks()
        self._traffic.came(message.host_id, len(message.packet), self.runtime.monotonic())
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
        if not self._hashing:
            self._hash_some()

    def _hash_some(self) -> None:
        """Compute digests of the tree in slices, between other work, until none wait."""
        self._hashing = self._replica is not None and self._replica.hash_some()
        if self._hashing:
            self.runtime.after(HASH_PAUSE_S, self._hash_some)

    def _push(self) -> None:
        """Offer what is new; in a large cluster not as often as it comes, but then all of it."""
        replica = self._replica
        if replica is None or self._failure is not None or self.host.enrolment is None or self._pace.waits:
            return
        wait_s = 0.0 if replica.gossip.choice.few else self._pace.wait_s(self.runtime.monotonic())
        if wait_s > 0.0:
            self._pace.waits = True
            self.runtime.after(wait_s, self._push_late)
        else:
            self._cast(replica.push())

    def _push_late(self) -> None:
        self._pace.waits = False
        self._push()

    def _cast(self, sends: list[Send]) -> None:
        for batch in self._traffic.batches(sends, BATCH_BYTES):
            self.cast("links", CastPackets(batch))  # lost while links restarts: it is told again

    async def _at_majority(self, origin: Replica, sequence: int, within_s: float) -> None:
        """Return when more than half of the members have that delta on their disks. Raises NotReplicated."""
        wait = self._majority.add(origin, sequence)
        timer = self.runtime.after(within_s, lambda: self._majority.late(wait, self._live().gossip, within_s))
        self._cast(self._live().offer_to_all(origin, sequence))
        self._look_at_majorities()
        try:
            await wait.waiter
        finally:
            timer.cancel()
            self._majority.remove(wait)

    def _look_at_majorities(self) -> None:
        if self._members_known:
            self._majority.look(self._live().gossip)

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
        # What was told is on the disk, so the positions told stay good; what was not has none.
        log = self._view.log if self._view_made else ChangeLog(f"{random.SystemRandom().getrandbits(64):016x}")
        self._view, self._view_made = StateView(replica.states, log, self._now_us()), True
        self._growth = Growth(self.host.settings, replica.states, self._view)
        self._forgetting = Forgetting()
        self._look_for_ends()

    def _live(self) -> StateReplica:
        assert self._replica is not None, "nothing is done before it was opened"
        return self._replica

    def _now_us(self) -> int:
        return self._clock.now_us(*self._clocks())

    def _clocks(self) -> tuple[int, int]:
        return time.time_ns() // 1000, int(self.runtime.boottime() * 1e6)

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
