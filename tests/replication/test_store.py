"""The shared state survives kill -9, and tells when its files were changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from actorgrid.actors.replication.journal import read_record
from actorgrid.actors.replication.retirement import RetiredOrigins
from actorgrid.actors.replication.store import StateStore
from actorgrid.actors.replication.types import GCounter, LWWRegister, ORMap, ORSet
from actorgrid.actors.replication.version_vector import EPOCH_BITS
from actorgrid.errors import DiskFull, LogCorrupted

ME = ("h", 1)

CHILD = """
import sys
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.replication.actor import DistributedState
from actorgrid.actors.replication.messages import Mutate
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.supervisors.inline import InlineNode
from pathlib import Path
settings = Settings()
settings.performance.min_free_bytes = 0
host = HostContext(HostPaths(Path(sys.argv[1])), settings, "h" * 32, "here", int(sys.argv[2]), "boot")
node = InlineNode(real_time=True)
server = node.add(DistributedState, host)
server._replica.store._compact_at = 20_000
count = 0
while True:
    node.request("distributed_state", Mutate("hits", "g_counter", "increment"))
    node.request("distributed_state", Mutate(f"set/{count % 5}", "or_set", "add", f"{sys.argv[2]}-{count}" + "x" * 40))
    count += 1
    print(count, flush=True)
"""


def put(store: StateStore, key: str, value: object) -> None:
    state = store.states.setdefault(key, {}).setdefault("lww_register", LWWRegister())
    assert isinstance(state, LWWRegister)
    delta = state.put(ME, value).to_bytes()
    store.reserve(len(delta))
    store.stage(key, delta)


def values(store: StateStore) -> dict[str, object]:
    return {key: kinds["lww_register"].value for key, kinds in store.states.items()}


def test_nothing_acknowledged_is_lost_to_kill_nine(tmp_path: Path) -> None:
    acknowledged = {}
    for incarnation, stop_at in enumerate((1, 40, 173, 260), start=1):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(incarnation)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        last = 0
        for line in child.stdout:
            last = int(line)
            if last >= stop_at:
                break
        os.kill(child.pid, signal.SIGKILL)
        for line in child.stdout:
            if line.endswith("\n"):
                last = int(line)
        child.stdout.close()
        assert child.wait(timeout=60) == -signal.SIGKILL
        acknowledged[incarnation] = last
    store = StateStore(tmp_path / "state")
    hits = store.states["hits"]["g_counter"]
    assert isinstance(hits, GCounter)
    counted = {epoch >> EPOCH_BITS: total for (_, epoch), total in hits._entries.items()}
    for incarnation, count in acknowledged.items():
        assert counted[incarnation] in range(count, count + 2)
        for number in range(count):
            members = store.states[f"set/{number % 5}"]["or_set"]
            assert isinstance(members, ORSet)
            assert f"{incarnation}-{number}" + "x" * 40 in members
    assert store._number > 0, "it was compacted on the way"
    store.close()


def test_what_is_staged_is_durable_only_after_commit(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    put(store, "a", 1)
    store.commit()
    put(store, "b", 2)
    store.reopen()
    assert values(store) == {"a": 1}
    store.close()


def test_a_snapshot_holds_all_and_the_old_pair_goes(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    for number in range(200):
        put(store, f"k{number:03}", "v" * number)
    store.commit()
    store.compact()
    put(store, "after", True)
    store.commit()
    before = values(store)
    store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal-000000000001", "snapshot-000000000001"]
    again = StateStore(tmp_path)
    assert values(again) == before
    again.close()


def test_a_flipped_byte_in_the_snapshot_or_a_cut_one_is_found(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    for number in range(20):
        put(store, f"k{number}", number)
    store.commit()
    store.compact()
    store.close()
    path = tmp_path / "snapshot-000000000001"
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(LogCorrupted):
            StateStore(tmp_path)
    for cut in range(0, len(whole), 37):
        path.write_bytes(whole[:cut])
        with pytest.raises(LogCorrupted):
            StateStore(tmp_path)
    path.write_bytes(whole)
    StateStore(tmp_path).close()


def test_a_crash_anywhere_in_compaction_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(tmp_path)
    put(store, "a", 1)
    store.commit()

    def no_room(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, no_room)
            with pytest.raises(DiskFull):
                store.compact()
        put(store, name, 2)
        store.commit()
    before = values(store)
    store.close()
    (tmp_path / "snapshot-000000000001.draft").write_bytes(b"half a snapsho")
    (tmp_path / "journal-000000000001").write_bytes(b"")
    again = StateStore(tmp_path)
    assert values(again) == before == {"a": 1, "fsync": 2, "rename": 2}
    again.close()


def test_a_journal_whose_snapshot_is_gone_is_damage(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    put(store, "a", 1)
    store.commit()
    store.compact()
    put(store, "b", 1)
    store.commit()
    store.close()
    (tmp_path / "snapshot-000000000001").unlink()
    with pytest.raises(LogCorrupted, match="snapshot"):
        StateStore(tmp_path)


def test_one_field_of_a_large_map_costs_one_field(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    state = ORMap()
    store.states["m"] = {"or_map": state}
    for number in range(2000):
        store.stage("m", state.put(ME, f"field{number}", number).to_bytes())
    store.commit()
    before = store.journal_bytes
    store.stage("m", state.put(ME, "field7", "new").to_bytes())
    store.commit()
    assert store.journal_bytes - before < 200
    store.reopen()
    found = store.states["m"]["or_map"]
    assert isinstance(found, ORMap)
    assert (len(found), found.get("field7"), found.get("field8")) == (2000, "new", 8)
    store.close()


def test_a_key_that_became_two_types_keeps_both_in_any_order(tmp_path: Path) -> None:
    register, members = LWWRegister(), ORSet()
    deltas = [register.put(ME, 1).to_bytes(), members.add(("other", 1), "x").to_bytes()]
    for place, order in enumerate((deltas, deltas[::-1])):
        store = StateStore(tmp_path / str(place))
        for delta in order:
            store.stage("k", delta)
        store.commit()
        store.reopen()
        assert store.states["k"] == {"lww_register": register, "or_set": members}
        store.close()


def test_what_is_retired_is_read_back_from_the_journal_and_from_a_snapshot(tmp_path: Path) -> None:
    old, new = ("h", 1 << EPOCH_BITS | 5), ("h", 2 << EPOCH_BITS | 5)
    store = StateStore(tmp_path)
    counter, tags = GCounter(), ORSet()
    store.states.update({"hits": {"g_counter": counter}, "tags": {"or_set": tags}})
    store.reserve(4096)
    store.stage("hits", counter.increment(old, 3).to_bytes(), old, 1)
    store.stage("tags", tags.add(old, "x").to_bytes(), old, 2)
    store.stage("tags", tags.remove(old, "x").to_bytes(), old, 3)
    store.stage("hits", counter.increment(new, 1).to_bytes(), new, 1)
    store.commit()
    known = RetiredOrigins(1, {"h": 2})
    store.stage_known(known)
    store.commit()
    assert sorted(store.retire(known)) == ["hits", "tags"]
    store.commit()
    store.stage_state("tags", tags.copy().add(new, "y").to_bytes())
    store.commit()

    def check(read: StateStore) -> None:
        assert (read.retired, read.known, read.vector) == (known, known, {new: 1})
        assert read.states["hits"]["g_counter"] == GCounter({known.folded("h"): 3, new: 1})
        assert read.states["tags"]["or_set"].value == {"y"}
        read.close()

    store.close()
    check(StateStore(tmp_path))
    store = StateStore(tmp_path)
    store.compact()
    check(store)
    check(StateStore(tmp_path))


def test_before_anything_is_retired_records_are_those_of_the_version_before(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    put(store, "k", 1)
    store.stage_vector({ME: 1})
    store.commit()
    store.compact()
    store.close()
    [snapshot] = tmp_path.glob("snapshot-*")
    record = read_record(snapshot.read_bytes(), 0, 0)
    assert record is not None and msgpack.unpackb(record[1])[0] == 2
