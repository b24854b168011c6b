"""Large snapshots between voters over several connections: real actors, files, and mutual TLS over loopback."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from actorgrid.actors.consensus import bulk_snapshots
from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.consensus.bulk_snapshots import BulkSnapshots
from actorgrid.actors.ledger.commands import SetSetting
from actorgrid.actors.raft.messages import ConfState, Message, SnapshotChunk
from actorgrid.actors.security.certificates import fingerprint
from actorgrid.errors import NotFound, PeerGone
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.bulk.connection import PiecesConnection
from actorgrid.transports.peer.net import PeerNet
from actorgrid.transports.peer.tls import PeerIdentity
from tests.consensus.test_cluster import AT, Town
from tests.transports.peer_certificates import Authority

MIB = 2**20
LARGE = 12 * MIB
NOT_KNOWN = "of a node that is not known to vote"


class SocketTown(Town):
    """Hosts whose links are sockets, on the real clock."""

    def __init__(self, folder: Path, **performance: Any) -> None:
        super().__init__(folder, **performance)
        self.node = InlineNode(real_time=True)
        self._authority = Authority()
        self._identities: dict[str, PeerIdentity] = {}
        self._ports: dict[str, int] = {}

    def _identity(self, host_id: str) -> PeerIdentity:
        if host_id not in self._identities:
            folder = self.folder / f"key-{host_id}"
            folder.mkdir()
            self._identities[host_id] = self._authority.identity(folder, "c1", host_id)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._ports[host_id] = probe.getsockname()[1]
        return self._identities[host_id]

    def _net(self, host_id: str) -> Callable[..., Any]:
        def make(loop: Any, resolve: Any, admit: Any, on_cast: Any, on_stream: Any) -> PeerNet:
            return PeerNet(
                loop,
                self._identity(host_id),
                ("127.0.0.1", self._ports[host_id]),
                resolve=resolve,
                admit=admit,
                on_call=lambda call: call.reply(b""),
                on_cast=on_cast,
                on_stream=on_stream,
            )

        return make

    def member(self, host_id: str) -> dict[str, Any]:
        self._identity(host_id)
        return {"raft": f"127.0.0.1:{self._ports[host_id]}"}

    def fingerprint(self, host_id: str) -> str:
        self._identity(host_id)
        (pem,) = (self.folder / f"key-{host_id}").glob("*.pem")
        return fingerprint(x509.load_pem_x509_certificate(pem.read_bytes()))

    def until(self, condition: Callable[[], bool], what: str, within_s: float = 120.0) -> None:
        self.node.run_until(condition, within_s, what)

    def bulk(self, host_id: str) -> BulkSnapshots:
        links = self.live[host_id]._links
        assert links is not None and links._bulk is not None
        return links._bulk

    def cut_power(self, host_id: str, server: Consensus) -> None:
        assert server._links is not None
        server._links.close()


def large() -> list[str]:
    return [base64.b64encode(os.urandom(45_000)).decode() for _ in range(LARGE // 60_000)]


@pytest.fixture
def town(tmp_path: Path) -> Iterator[SocketTown]:
    made = SocketTown(tmp_path, ledger_snapshot_every=10, ledger_segment_bytes=4096)
    made.found("a")
    made.propose(SetSetting("large", large(), "me", at=AT), "a", timeout_s=60.0)
    for number in range(40):
        made.propose(SetSetting("k", number, "me", at=AT), "a", timeout_s=60.0)
    made.until(lambda: made.live["a"]._replica._storage.first_index() > 3, "the log's beginning is gone")
    yield made
    made.close()


def joined(town: SocketTown) -> None:
    town.join("b")
    town.until(town.settled, "b has what a has")
    assert len({str(digest) for digest in town.digests()}) == 1
    assert town.live["b"]._replica.ledger.settings["k"] == 39


def chunks_sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of chunks that reach a core, as they come."""
    from actorgrid.actors.raft.snapshots import IncomingSnapshot

    came: list[int] = []
    take = IncomingSnapshot.take

    def noted(self: IncomingSnapshot, chunk: Any) -> Any:
        came.append(chunk.offset)
        return take(self, chunk)

    monkeypatch.setattr(IncomingSnapshot, "take", noted)
    return came


def test_a_large_snapshot_comes_over_several_connections(town: SocketTown, monkeypatch: pytest.MonkeyPatch) -> None:
    came = chunks_sent(monkeypatch)
    joined(town)
    there, here = town.bulk("b").stats(), town.bulk("a").stats()
    assert there["brought"] == 1 and there["brought_bytes"] > LARGE and there["failed"] == 0
    town.until(lambda: town.bulk("a").stats()["served_bytes"] >= there["brought_bytes"], "it is counted")
    assert here["failed"] == 0
    assert came == [0], "the core was given all of it at once, and no chunk besides"


@pytest.mark.system
def test_a_connection_that_breaks_costs_its_pieces_alone(town: SocketTown, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = []
    send = PiecesConnection.send

    def breaks(self: PiecesConnection, *parts: Any) -> None:
        if len(broken) < 2 and len(parts[0]) > MIB // 2:
            broken.append(1)
            self.break_off()
            raise PeerGone("cut")
        send(self, *parts)

    monkeypatch.setattr(PiecesConnection, "send", breaks)
    came = chunks_sent(monkeypatch)
    joined(town)
    assert len(broken) == 2
    assert town.bulk("b").stats()["brought"] == 1 and came == [0]


def test_what_breaks_for_good_goes_on_in_chunks_from_where_it_was(
    town: SocketTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three pieces come; then no connection is served any more."""
    left = [3]
    send = PiecesConnection.send

    def breaks(self: PiecesConnection, *parts: Any) -> None:
        if len(parts[0]) > MIB // 2:
            if not left[0]:
                self.break_off()
                raise PeerGone("cut")
            left[0] -= 1
        send(self, *parts)

    monkeypatch.setattr(PiecesConnection, "send", breaks)
    monkeypatch.setattr("actorgrid.transports.bulk.transfer.STREAMS_MAX", 1)
    came = chunks_sent(monkeypatch)
    joined(town)
    assert town.bulk("b").stats() | {"served_bytes": 0} == {
        "brought": 0,
        "brought_bytes": 0,
        "failed": 1,
        "served_bytes": 0,
    }
    assert came[0] == 0 and 3 * MIB in came, "the three pieces were not sent again"
    assert not any(0 < offset < 3 * MIB for offset in came)


def test_a_leader_that_serves_no_pieces_sends_chunks(town: SocketTown) -> None:
    """As one of a version before: it closes a connection of that lane."""
    links = town.live["a"]._links
    assert links is not None and isinstance(links._net, PeerNet)
    links._net.on_pieces = None
    links._bulk = None
    joined(town)
    assert town.bulk("b").stats()["failed"] == 1 and town.bulk("b").stats()["brought"] == 0


@pytest.mark.system
def test_a_follower_that_asks_for_no_pieces_is_sent_chunks(town: SocketTown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BulkSnapshots, "takes", lambda *_: False)
    joined(town)
    assert town.bulk("b").stats()["failed"] == 0 and town.bulk("a").stats()["served_bytes"] == 0


@pytest.mark.system
def test_a_leader_keeps_no_snapshot_that_nobody_takes(town: SocketTown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_snapshots, "OFFERED_S", 0.5)
    joined(town)
    town.until(lambda: not town.bulk("a")._offers, "it was let go of")


@pytest.mark.system
def test_pieces_are_for_the_host_that_the_snapshot_is_on_its_way_to(town: SocketTown) -> None:
    joined(town)
    bulk = town.bulk("a")
    (offer,) = bulk._offers.values()
    with bulk._open("b", bulk_snapshots._source(offer.name)) as view:
        assert view.readonly and len(view) == offer.name.total_bytes
    for host_id, name in (("c", offer.name), ("b", offer.name._replace(checksum=1))):
        with pytest.raises(NotFound), bulk._open(host_id, bulk_snapshots._source(name)):
            pass


@pytest.mark.system
def test_nothing_is_fetched_from_a_learner_that_says_it_leads(tmp_path: Path) -> None:
    town = SocketTown(tmp_path)
    try:
        town.found("a")
        town.join("b")
        town.until(town.settled, "b has what a has")
        leader, liar = town.live["a"], town.live["b"]
        assert set(leader._replica.status().config.learners) == {2} and liar._links is not None
        chunk = SnapshotChunk(10**6, 1_000, ConfState(voters=(2,)), 0, LARGE, 0, b"odd")
        liar._links.send((Message("snapshot", 1, 2, 1_000, chunk=chunk),))
        town.until(lambda: leader._replica.messages_refused.get(NOT_KNOWN, 0) == 1, "it has come")
        assert town.bulk("a")._bring is None
        assert leader._replica.status().role == "leader"
    finally:
        town.close()
