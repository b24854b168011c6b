"""Snapshots that a leader sends and that are no state: refused before they are stored, counted, told, and survived."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.consensus.ledger_check import check as check_files
from actorgrid.actors.consensus.refused_snapshots import TOLD_S, RefusedSnapshots
from actorgrid.actors.ledger import snapshot as snapshot_format
from actorgrid.actors.ledger.commands import SetSetting
from actorgrid.actors.ledger.messages import HandOver, Query
from actorgrid.actors.ledger.snapshot import FORMAT
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.messages import Message, SnapshotChunk
from actorgrid.actors.raft.storage.store import Store
from actorgrid.errors import LedgerRefused, LedgerTooNew, LogCorrupted
from tests.consensus.rig import AT
from tests.consensus.test_actor import MakeHost
from tests.consensus.test_cluster import Town, three, town  # noqa: F401 - fixtures
from tests.hostile.examples import furnished
from tests.hostile.mutations import mutated

END = msgpack.packb(["end", 0])
HEADER: dict[str, Any] = {
    "format": FORMAT,
    "index": 1,
    "term": 1,
    "epoch": 1,
    "events_total": 0,
    "job_totals": {},
    "cluster": {"cluster_id": "c1", "nodes_total": 3},
}
UNFIT = {
    "nothing": b"",
    "a byte": b"x",
    "an object without anything": b"{}",
    "deep JSON": b'{"format":' + b"[" * 100_000,
    "a header alone": msgpack.packb({"format": FORMAT}) + END,
    "an index that is no number": msgpack.packb({**HEADER, "index": "1"}) + END,
    "an index that is half a number": msgpack.packb({**HEADER, "index": 1e6}) + END,
    "of another entry": msgpack.packb(HEADER) + END,
    "records that are none": b"".join(
        msgpack.packb(each) for each in ({**HEADER, "index": 1_000_000}, ["hosts", [1]], ["end", 1])
    ),
}
AHEAD = 1_000_000


def from_leader(town: Town, victim: str, sender: str, data: bytes, index: int = AHEAD) -> None:  # noqa: F811
    """What a voter that has won an election sends: *data* for a snapshot, in a term of its own."""
    voter = town.live[victim]._replica
    node = int(voter.ledger.members[sender]["node"])
    term = max(server._replica.term for server in town.live.values()) + 1
    chunk = SnapshotChunk(index, 1, voter.members, 0, len(data), zlib.crc32(data), data)
    town.live[victim]._step(sender, Message("snapshot", voter.node, node, term, chunk=chunk))


def agreed(town: Town) -> bool:  # noqa: F811
    """Everybody follows the one that leads."""
    terms = {server._replica.term for server in town.live.values()}
    followed = {server._replica.leader for server in town.live.values()}
    return town.leader is not None and len(terms) == 1 and followed == {town.live[town.leader]._replica.node}


def others(town: Town) -> tuple[str, str]:  # noqa: F811
    """Two that do not lead."""
    first, second = (host_id for host_id in town.live if host_id != town.leader)
    return first, second


@pytest.mark.parametrize("data", UNFIT.values(), ids=UNFIT)
def test_a_snapshot_that_is_no_state_is_refused_told_and_survived(three: Town, data: bytes) -> None:  # noqa: F811
    victim, sender = others(three)
    server = three.live[victim]
    before = server._replica.ledger.digest(), server._replica.snapshot_index
    for _ in range(3):  # whoever leads asks again and again; it is looked at once
        from_leader(three, victim, sender, data)
    assert (server._replica.ledger.digest(), server._replica.snapshot_index) == before
    assert server._replica.messages_refused["a snapshot that is no state"] == 3, "of three terms"
    told = three.node.request(victim, Query("status"))["snapshot_refused"]
    assert (told["sender"], told["behind"]) == (sender, True)
    assert "snapshot" in told["reason"]
    three.until(lambda: agreed(three), "an honest leader")
    three.propose(SetSetting("k", 1, "me", at=AT), victim)
    three.until(three.settled, "everybody up to date")
    assert len({str(digest) for digest in three.digests()}) == 1
    assert three.node.request(victim, Query("status"))["snapshot_refused"]["behind"] is False
    assert server.metrics()["ledger_snapshots_refused_total"] == 3


def test_a_refusal_is_told_for_an_hour_and_whether_anything_came_since() -> None:
    told = RefusedSnapshots()
    assert told.report(0.0, 5) is None
    told.refused("c", "why", 10.0, 5)
    assert told.report(11.0, 5) == {"sender": "c", "reason": "why", "ago_s": 1.0, "behind": True}
    after = told.report(11.0, 6)
    assert after is not None and after["behind"] is False
    assert told.report(10.0 + TOLD_S, 6) is not None and told.report(10.1 + TOLD_S, 6) is None
    assert told.total == 1


def test_the_same_snapshot_in_the_same_term_is_looked_at_once(three: Town) -> None:  # noqa: F811
    victim, sender = others(three)
    server = three.live[victim]
    from_leader(three, victim, sender, b"x")
    node, term = int(server._replica.ledger.members[sender]["node"]), server._replica._core.status().term
    chunk = SnapshotChunk(AHEAD, 1, server._replica.members, 0, 1, zlib.crc32(b"x"), b"x")
    for _ in range(5):
        server._step(sender, Message("snapshot", server._replica.node, node, term, chunk=chunk))
    assert server.metrics()["ledger_snapshots_refused_total"] == 1


def lag(town: Town) -> tuple[str, str]:  # noqa: F811
    """A host that was away for so long that it needs a snapshot, and the one that leads."""
    lost, leader = others(town)[0], town.leader or ""
    town.until(town.settled, "everybody up to date")
    town.kill(lost)
    for number in range(400):
        town.propose(SetSetting(f"k{number % 20}", number, "me", at=AT), leader)
    town.until(lambda: town.live[leader]._replica.snapshot_index > 300, "a snapshot")
    return lost, leader


def test_a_start_goes_on_without_the_state_of_a_leader_that_has_none_and_catches_up(three: Town) -> None:  # noqa: F811
    lost, leader = lag(three)
    storage = three.live[leader]._replica._storage
    good = storage.snapshot()
    storage._snapshot = replace(good, data=b"x" * len(good.data))
    server = three.start(lost)
    index = server._replica.ledger.index
    assert 0 < index < 300 and server._failed is None
    told = three.node.request(lost, Query("status"))["snapshot_refused"]
    assert told["sender"] == leader and told["behind"] is True
    three.node.advance(5.0)
    assert server._replica.ledger.index == index and server._failed is None
    three.kill(lost)  # it starts again while that one leads
    server = three.start(lost)
    # What is committed is marked so in the log with a later write: a start may know of less than the one before it.
    assert 0 < server._replica.ledger.index <= index and server._failed is None
    three.until(lambda: three.node.request(leader, HandOver(), 5.0)["leader"] not in (None, leader), "another leader")
    three.until(three.settled, "everybody up to date")
    assert len({str(digest) for digest in three.digests()}) == 1


def test_a_host_that_has_just_joined_ends_by_name(three: Town) -> None:  # noqa: F811
    _, leader = lag(three)
    storage = three.live[leader]._replica._storage
    storage._snapshot = replace(storage.snapshot(), data=b"x")
    with pytest.raises(LedgerRefused, match="cannot be read") as raised:
        three.join("d", leader)
    assert "ledger verify" in raised.value.hint or "earlier" in raised.value.hint
    three.live.pop("d", None)


def test_a_later_format_ends_the_host_by_name_and_nothing_of_it_is_stored(
    three: Town,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost, leader = lag(three)
    later = three.live[leader]._replica._storage
    with monkeypatch.context() as patch:
        patch.setattr(snapshot_format, "FORMAT", FORMAT + 1)
        data = Ledger.restore(later.snapshot().data).snapshot()
    later._snapshot, good = replace(later.snapshot(), data=data), later.snapshot()
    for _ in range(2):
        with pytest.raises(LedgerTooNew, match=f"format {FORMAT + 1}") as raised:
            three.start(lost)
        assert "upgrade this host" in raised.value.hint
        ended = three.node.servers[lost]
        assert isinstance(ended, Consensus) and ended._refused_snapshots.total == 0
        assert not ended._replica.messages_refused["a snapshot that is no state"]
    with monkeypatch.context() as patch:  # the program of the others
        patch.setattr(snapshot_format, "FORMAT", FORMAT + 1)
        three.start(lost)
        three.until(three.settled, "everybody up to date")
    later._snapshot = good


def test_a_running_host_that_is_sent_a_later_format_ends_by_name(three: Town) -> None:  # noqa: F811
    victim, sender = others(three)
    server = three.live[victim]
    stored = server._replica.snapshot_index
    with pytest.raises(LedgerTooNew):
        from_leader(three, victim, sender, msgpack.packb({**HEADER, "format": FORMAT + 1}) + END)
    assert isinstance(server._failed, LedgerTooNew) and server._replica.snapshot_index == stored
    assert server._refused_snapshots.total == 0
    three.kill(victim)
    three.start(victim)
    three.until(lambda: agreed(three), "an honest leader")
    three.until(three.settled, "everybody up to date")


@pytest.mark.parametrize("received", [True, False])
@pytest.mark.parametrize("data", UNFIT.values(), ids=UNFIT)
def test_a_start_with_one_on_the_disk_ends_by_name_and_says_what_to_do(
    make_host: MakeHost, data: bytes, received: bool
) -> None:
    """As the version before, which stored it unseen, may have left it."""
    host = make_host()
    host.start()
    host.propose(SetSetting("k", 1, "me", at=AT))
    index = host.live._replica.ledger.index
    host.kill()
    folder = host.context.paths.ledger_dir
    plant(folder, index, data, received)
    for _ in range(2):
        with pytest.raises(LogCorrupted, match="holds no state") as raised:
            host.start()
        assert ("--join" in raised.value.hint) is received
        assert ("ledger restore" in raised.value.hint) is not received
    with pytest.raises(LogCorrupted, match="holds no state"):
        check_files(folder, lambda *_: None)


def plant(folder: Path, index: int, data: bytes, received: bool) -> None:
    """Put *data* into the store for the state of entry *index*, as a snapshot that was taken is put there."""
    store = Store(folder / "state.db")
    try:
        store.save_snapshot(index, 1, data, "", received)
    finally:
        store.close()


def test_a_later_format_on_the_disk_asks_for_the_version_that_wrote_it(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(SetSetting("k", 1, "me", at=AT))
    index = host.live._replica.ledger.index
    host.kill()
    plant(host.context.paths.ledger_dir, index, msgpack.packb({**HEADER, "format": FORMAT + 1}) + END, True)
    with pytest.raises(LedgerTooNew) as raised:
        host.start()
    assert "upgrade this host" in raised.value.hint


def test_states_with_something_wrong_in_them_end_in_one_named_error() -> None:
    good = furnished()
    unpacker = msgpack.Unpacker(strict_map_key=False, unicode_errors="surrogatepass")
    unpacker.feed(good.snapshot())
    values = list(unpacker)
    dice = Random(12)
    refused = 0
    for _ in range(1_000):
        pieces = mutated(values, dice)
        pieces = pieces if isinstance(pieces, list) else [pieces]
        try:
            parts = [msgpack.packb(piece, default=str, unicode_errors="surrogatepass") for piece in pieces]
            Ledger.restore_of_others(b"".join(parts), good.index)
        except LedgerRefused:
            refused += 1
        except LedgerTooNew:
            continue
    assert refused > 100
