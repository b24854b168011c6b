"""Large snapshots between voters over several connections in threads; what does not come so comes in chunks, as ever.

A leader sends chunks as messages. Who hears of a large snapshot by its first chunk asks the leader's port of Raft for
pieces of the whole, keeps the chunks from its core meanwhile, and gives the core all of it as one chunk in the end. The
leader sends no chunks to a host that it serves pieces of that snapshot; to Raft, those are messages that were lost. So
neither the core nor the messages know of it: whoever knows no pieces (a host of before, a link in memory), or breaks
them off, is sent chunks again within an election's time, from the first byte that it lacks.

A connection that breaks costs the pieces that were under way on it; each piece has its checksum, and the core looks at
that of the whole.

Bounds: one snapshot is brought at a time, in ``BRING_S``, into memory first; ``SERVED_MAX`` connections are served.
"""

from __future__ import annotations

import logging
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import msgpack

from actorgrid.actors.ledger.record_types import MemberRecord
from actorgrid.actors.raft.messages import Message, RaftSnapshot, SnapshotChunk
from actorgrid.errors import ActorGridError, MalformedBody, NotFound
from actorgrid.transports.bulk.connection import PiecesConnection, dial
from actorgrid.transports.bulk.pieces import BulkPiece
from actorgrid.transports.bulk.served import PiecesServer
from actorgrid.transports.bulk.transfer import BulkFetch
from actorgrid.transports.numa import place_for_reader
from actorgrid.transports.peer.calls import NetLoop
from actorgrid.transports.peer.link import Admit
from actorgrid.transports.peer.net import PeerNet
from actorgrid.transports.peer.tls import TlsPipe

from .member_links import addresses_of, refusal

SNAPSHOT_BYTES_MIN, SNAPSHOT_BYTES_MAX = 8 * 2**20, 2**30
"""Smaller ones are not worth the connections; larger ones are received by nobody."""
BRING_S = 600.0
"""For all of it; a side that is silent for 20 s is given up before."""
SERVED_MAX = 16
OFFERED_S = 120.0
"""Without a chunk that is due and without a connection, a leader keeps a snapshot's bytes for so long."""
log = logging.getLogger("actorgrid.consensus")


class SnapshotName(NamedTuple):
    """Which snapshot: that of an index and term, as long, with that CRC-32."""

    log_index: int
    term: int
    total_bytes: int
    checksum: int

    @classmethod
    def of(cls, chunk: SnapshotChunk) -> SnapshotName:
        """That of a chunk."""
        return cls(chunk.index, chunk.term, chunk.total_bytes, chunk.checksum)


class _Offer:
    """What a leader has for one host."""

    def __init__(self, name: SnapshotName, data: bytes, now_s: float) -> None:
        self.name, self.data, self.due_s = name, data, now_s
        self.served = 0
        """Connections that read it now."""


class _Bring:
    """What is on its way here. *latest*: the message that the core's answer is to be for."""

    def __init__(self, host_id: str, name: SnapshotName, latest: Message) -> None:
        self.host_id, self.name, self.latest = host_id, name, latest
        self.fetch: BulkFetch | None = None
        self.memory = b""
        """What came, from the first byte on without a gap: all of it, or less."""
        self.error: ActorGridError | None = None
        self.cancelled = False


class BulkSnapshots:
    """Both sides of it for the net of one host.

    *snapshot_of* gives the snapshot that is on its way to a node; *on_message* is given what came, as from the wire.
    """

    def __init__(
        self,
        loop: NetLoop,
        net: PeerNet,
        software: str,
        snapshot_of: Callable[[int], RaftSnapshot | None],
        on_message: Callable[[str, Message], None],
    ) -> None:
        self.brought_total = self.brought_bytes_total = self.failed_total = 0
        self._loop, self._net, self._software = loop, net, software
        self._snapshot_of, self._on_message = snapshot_of, on_message
        self._lock = threading.Lock()
        self._offers: dict[str, _Offer] = {}
        self._served = PiecesServer(self._open, "bulk-snapshot", SERVED_MAX, SERVED_MAX)
        self._bring: _Bring | None = None
        self._passed: dict[str, SnapshotName] = {}  # what comes in chunks, as it could not be brought
        self._over = False
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop.watch(self._news, self._brought)
        net.on_pieces = self._serve

    def stats(self) -> dict[str, int]:
        """What was done since the start."""
        return {
            "brought": self.brought_total,
            "brought_bytes": self.brought_bytes_total,
            "failed": self.failed_total,
            "served_bytes": self._served.sent_bytes_total,
        }

    def close(self) -> None:
        """Bring and serve nothing any more."""
        if self._over:
            return
        self._over = True
        self._loop.unwatch(self._news)
        self._cancel()
        self._served.close()
        with self._lock:
            # A thread that is at its end would write to another's descriptor.
            news, self._news = self._news, -1
            os.close(news)

    def drop_refused(self, admit: Admit) -> None:
        """End the connections of hosts that the ledger does not know any more."""
        dropped = self._served.drop_refused(admit)
        with self._lock:
            for host_id in dropped:
                self._offers.pop(host_id, None)

    # -- who leads

    def holds_back(self, host_id: str, message: Message) -> bool:
        """Whether a chunk that is due to a host need not be sent: that host reads pieces of the same snapshot."""
        chunk, now_s = message.chunk, time.monotonic()
        if chunk is None or chunk.total_bytes < SNAPSHOT_BYTES_MIN:
            return False
        name = SnapshotName.of(chunk)
        with self._lock:
            self._offers = {
                each: offer for each, offer in self._offers.items() if offer.served or now_s < offer.due_s + OFFERED_S
            }
            offer = self._offers.get(host_id)
            if offer is None or offer.name != name:
                snapshot = self._snapshot_of(message.to)
                if snapshot is None or (snapshot.index, snapshot.term) != name[:2]:
                    return False
                offer = self._offers[host_id] = _Offer(name, snapshot.data, now_s)
                self._loop.after(2 * OFFERED_S, self._forget)
            offer.due_s = now_s
            return bool(offer.served)

    def _forget(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            for host_id, offer in list(self._offers.items()):
                if not offer.served and now_s >= offer.due_s + OFFERED_S:
                    del self._offers[host_id]
            if self._offers and not self._over:
                self._loop.after(2 * OFFERED_S, self._forget)

    def _serve(self, host_id: str, fingerprint: str, connected: socket.socket, tls: TlsPipe, unsent: bytes) -> None:
        with self._lock:
            is_offered = host_id in self._offers
        if is_offered:
            self._served.serve(host_id, fingerprint, connected, tls, unsent)
        else:
            PiecesConnection(connected, tls, host_id, fingerprint, unsent).close()

    @contextmanager
    def _open(self, host_id: str, source: bytes) -> Iterator[memoryview]:
        name = _parse_source(source)
        with self._lock:
            offer = self._offers.get(host_id)
            if offer is None or offer.name != name:
                raise NotFound("that snapshot is not on its way to this host", asked=str(name.log_index))
            offer.served += 1
        try:
            with memoryview(offer.data) as view:
                yield view
        finally:
            with self._lock:
                offer.served -= 1

    # -- who follows

    def takes(self, host_id: str, record: MemberRecord | None, message: Message) -> bool:
        """Whether a chunk is not for the core, as all of its snapshot is brought."""
        chunk = message.chunk
        if chunk is None or not SNAPSHOT_BYTES_MIN <= chunk.total_bytes <= SNAPSHOT_BYTES_MAX or self._over:
            return False
        name, bring = SnapshotName.of(chunk), self._bring
        if bring is not None:
            if (bring.host_id, bring.name) == (host_id, name):
                bring.latest = message
            else:  # another leader, or a newer one: it is sent again when this is at its end
                self._cancel()
            return True
        addresses = addresses_of(record, "raft")
        if self._passed.get(host_id) == name or not addresses:
            return False
        self._passed.pop(host_id, None)
        self._bring = _Bring(host_id, name, message)
        thread = threading.Thread(
            target=self._run, args=(self._bring, record, addresses), name="bulk-snapshot", daemon=True
        )
        thread.start()
        return True

    def _cancel(self) -> None:
        if self._bring is not None:
            with self._lock:
                self._bring.cancelled = True
                if self._bring.fetch is not None:
                    self._bring.fetch.cancel()

    def _run(self, bring: _Bring, record: MemberRecord | None, addresses: list[tuple[str, int]]) -> None:
        """In a thread: what is given to it is its own."""

        def connect() -> PiecesConnection:
            return dial(self._net.identity, addresses, bring.host_id, admit, self._software)

        def admit(host_id: str, fingerprint: str) -> str | None:
            return refusal(host_id, record, fingerprint)

        size = bring.name.total_bytes
        with mmap.mmap(-1, size) as memory:
            place_for_reader(memory)
            with memoryview(memory) as into:
                fetch = BulkFetch(connect, _source(bring.name), into)
                with self._lock:
                    bring.fetch = fetch
                    if bring.cancelled:
                        fetch.cancel()
                try:
                    fetch.run(BRING_S)
                except ActorGridError as error:
                    bring.error = error
            missing = fetch.plan.missing or [BulkPiece(size, 0)]
            bring.memory = memory[: missing[0].offset]
        with self._lock, suppress(BlockingIOError):
            if self._news >= 0:
                os.eventfd_write(self._news, 1)

    def _brought(self) -> None:
        """In the loop: what came goes to the core, as a chunk that begins with the first byte."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._news)
        bring, self._bring = self._bring, None
        if bring is None or bring.cancelled:
            return
        if bring.error is None:
            self.brought_total += 1
            self.brought_bytes_total += len(bring.memory)
        else:
            self.failed_total += 1
            log.info("a snapshot of %s comes in chunks: %s", bring.host_id, bring.error.message)
        # The core goes on from there: what is lacking of this one comes in chunks, also where it was damaged.
        self._passed = {bring.host_id: bring.name}
        chunk = bring.latest.chunk
        if chunk is not None and bring.memory:
            whole = replace(chunk, offset=0, data=bring.memory)
            self._on_message(bring.host_id, replace(bring.latest, chunk=whole))


def _source(name: SnapshotName) -> bytes:
    return bytes(msgpack.packb(["snapshot", *name]))


def _parse_source(source: bytes) -> SnapshotName:
    try:
        found: Any = msgpack.unpackb(source)
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedBody("not the name of a snapshot") from error
    match found:
        case ["snapshot", int(index), int(term), int(total), int(checksum)]:
            return SnapshotName(index, term, total, checksum)
    raise MalformedBody("not the name of a snapshot")
