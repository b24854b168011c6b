"""What is said in the log about the log: the hard state, cuts, resets; and what is read from disk again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actorgrid.actors.raft.messages import Entry, HardState
from actorgrid.actors.raft.storage.log import Cut, LogChange, Reset, SegmentLog
from actorgrid.errors import LogCorrupted, LogFailed
from tests.consensus.rig import Host
from tests.raft.storage.test_log import BIG, command, fill, kept, read, segments

FORMATS = Path(__file__).parents[2] / "consensus" / "formats"


def reopened(folder: Path, segment_bytes: int = BIG, tail_bytes_max: int = BIG) -> SegmentLog:
    return SegmentLog.open(folder, segment_bytes, tail_bytes_max=tail_bytes_max)


def test_a_cut_tail_never_returns(tmp_path: Path) -> None:
    fill(tmp_path, [[b"a", b"b", b"c"], [b"d", b"e"]])
    log = reopened(tmp_path)
    log.write([Cut(2)])
    assert (log.last_index, log.last_term) == (2, 1)
    log.close()
    assert [entry.data for entry in read(tmp_path)] == [b"a", b"b"]
    log = reopened(tmp_path)
    log.append([command(3, b"other", term=2)])
    log.close()
    assert [entry.data for entry in read(tmp_path)] == [b"a", b"b", b"other"]


def test_a_crash_at_any_byte_of_a_cut_brings_back_all_or_nothing_of_the_tail(tmp_path: Path) -> None:
    before = fill(tmp_path / "whole", [[b"a" * 30, b"b" * 30], [b"c", b"d" * 40]])
    safe = segments(tmp_path / "whole")[0].stat().st_size
    mark = (tmp_path / "whole" / "acknowledged").read_bytes()
    log = reopened(tmp_path / "whole")
    after = [*before[:1], command(2, b"other" * 6, 2), command(3, b"more", 2)]
    log.write([HardState(2, 1, 1), Cut(1), after[1:], HardState(2, 1, 2)])
    log.close()
    data = segments(tmp_path / "whole")[0].read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    for length in range(safe, len(data) + 1):
        (copy / "0000000000000001.log").write_bytes(data[:length])
        (copy / "acknowledged").write_bytes(mark)
        log = reopened(copy)
        assert kept(log) in (before, before[:1], after), length
        state = log.hard_state
        # The entries of a term are never there without the term: it was written before them.
        assert state is not None or kept(log) == before
        log.close()
    assert read(copy) == after


def test_the_hard_state_is_the_last_one_written_also_behind_dropped_segments(tmp_path: Path) -> None:
    log = reopened(tmp_path, 2048)
    assert log.hard_state is None
    for number in range(1, 60):
        log.write(
            [[command(number, bytes(200))], HardState(3, 2, number - 1)]
            if number < 20
            else [[command(number, bytes(200))]]
        )
    assert log.drop_behind(50) > 2
    log.close()
    log = reopened(tmp_path, 2048)
    assert log.hard_state == HardState(3, 2, 18)
    assert log.first_index > 20
    assert log.term(log.base_index) == 1
    log.write([HardState(4, 0, 59)])
    log.close()
    assert reopened(tmp_path).hard_state == HardState(4, 0, 59)


def test_a_segment_begun_without_its_hard_state_does_not_lose_it(tmp_path: Path) -> None:
    log = reopened(tmp_path, 4096)
    log.write([HardState(7, 3, 0)])
    while log.segment_count < 2:
        log.append([command(log.last_index + 1, bytes(900))])
    log.close()
    newest = segments(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:48])
    (tmp_path / "acknowledged").unlink()
    log = reopened(tmp_path, 4096)
    log.append([command(log.last_index + 1, b"x")])
    assert log.drop_behind(log.last_index) == 0
    log.write([HardState(7, 3, 1)])
    assert log.drop_behind(log.last_index) == 1
    log.close()
    assert reopened(tmp_path).hard_state == HardState(7, 3, 1)


def test_a_reset_puts_a_snapshot_in_place_of_the_log(tmp_path: Path) -> None:
    fill(tmp_path, [[b"x" * 300] for _ in range(30)], 4096)
    log = reopened(tmp_path, 4096)
    log.write([Reset(100, 5), HardState(6, 0, 100)])
    assert (log.first_index, log.last_index, log.last_term, len(kept(log))) == (101, 100, 5, 0)
    log.append([command(101, b"next", 6)])
    assert log.drop_behind(100) > 0
    log.close()
    log = reopened(tmp_path, 4096)
    assert kept(log) == [command(101, b"next", 6)]
    assert log.term(100) == 5
    assert log.term(99) is None
    log.close()


def test_a_group_of_changes_is_one_after_the_other(tmp_path: Path) -> None:
    log = reopened(tmp_path)
    log.write(
        [
            [command(1, b"a"), command(2, b"b")],
            Cut(1),
            [command(2, b"c", 2)],
            Cut(2),
            Reset(9, 3),
            [command(10, b"d", 4)],
            Cut(10),
            Cut(9),
        ]
    )
    assert (log.last_index, log.last_term) == (9, 3)
    log.close()
    log = reopened(tmp_path)
    assert (log.last_index, log.last_term) == (9, 3)
    log.close()


def test_old_entries_are_read_from_disk_when_memory_has_them_no_more(tmp_path: Path) -> None:
    written = [command(number, bytes([number % 251]) * (number % 90)) for number in range(1, 400)]
    log = reopened(tmp_path, 4096, tail_bytes_max=1000)
    for start in range(0, len(written), 7):
        log.append(written[start : start + 7])
    assert kept(log) == written
    log.write([Cut(390)])
    log.append([command(391, b"new", 2)])
    written = [*written[:390], command(391, b"new", 2)]
    assert kept(log) == written
    assert [len(log.entries(lo, 392, 200)) >= 1 for lo in (1, 200, 391)] == [True] * 3
    assert sum(len(entry.data) for entry in log.entries(50, 392, 500)) <= 500
    log.close()
    log = reopened(tmp_path, 4096, tail_bytes_max=1000)
    assert kept(log) == written
    log.close()


def test_damage_under_a_running_log_is_found_by_reading(tmp_path: Path) -> None:
    log = reopened(tmp_path, 4096, tail_bytes_max=10)
    for number in range(1, 40):
        log.append([command(number, bytes(200))])
    first = segments(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[300] ^= 1
    first.write_bytes(data)
    with pytest.raises(LogCorrupted) as caught:
        kept(log)
    assert caught.value.details["segment"] == str(first)
    first.unlink()
    with pytest.raises(LogFailed):
        kept(log)
    log.close()


Action = tuple[str, int]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "cut", "reset", "state", "drop", "reopen"]), st.integers(0, 20)),
        max_size=30,
    )
)
@example([("append", 10), ("append", 0), ("drop", 0), ("cut", 1)])
def test_any_history_of_changes_reads_as_a_list_would(
    tmp_path_factory: pytest.TempPathFactory, actions: list[Action]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = reopened(folder, 4096, 300)
    base, term, entries, state = 0, 1, list[Entry](), None
    for name, amount in actions:
        last = base + len(entries)
        changes: list[LogChange] = []
        if name == "append":
            fresh = [command(last + 1 + n, bytes(40 * amount), term) for n in range(amount)]
            entries += fresh
            changes.append(fresh)
        elif name == "cut" and entries:
            index = max(log.base_index, last - amount)  # what was dropped is committed: nobody cuts it
            entries = entries[: index - base]
            changes.append(Cut(index))
        elif name == "reset":
            term += 1
            base, entries = last + amount, []
            changes.append(Reset(base, term))
        elif name == "state":
            term += 1
            state = HardState(term, amount, 0)
            changes.append(state)
        elif name == "drop":
            log.drop_behind(last - amount)
        elif name == "reopen":
            log.close()
            log = reopened(folder, 4096, 300)
        log.write(changes)
        assert log.last_index == base + len(entries)
        assert log.hard_state == state
        assert log.entries(log.first_index, log.last_index + 1, 1 << 40) == entries[log.base_index - base :]
    log.close()
    shutil.rmtree(folder)


def test_a_failed_fsync_is_never_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = reopened(tmp_path)
    log.append([command(1, b"safe")])

    def refuse(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", refuse)
        with pytest.raises(LogFailed):
            log.append([command(2, b"lost")])
    for again in (lambda: log.append([command(2, b"again")]), lambda: log.write([HardState(2, 0, 0)])):
        with pytest.raises(LogFailed):
            again()
    assert log.last_index == 1
    log.close()
    assert read(tmp_path) == [command(1, b"safe")]


# -- what earlier versions wrote


@pytest.fixture
def format_1(tmp_path: Path) -> tuple[Path, dict[str, object]]:
    shutil.copytree(FORMATS / "log_1", tmp_path / "data" / "ledger")
    return tmp_path / "data", json.loads((FORMATS / "log_1" / "expected.json").read_text())


def test_a_log_of_format_1_is_read_and_goes_on_in_format_2(format_1: tuple[Path, dict[str, object]]) -> None:
    folder, expected = format_1[0] / "ledger" / "segments", format_1[1]
    log = reopened(folder, 4096)
    old = kept(log)
    assert [[entry.index, entry.term, len(entry.data)] for entry in old] == expected["records"]
    assert log.hard_state is None
    assert log.term(log.base_index) is None
    log.append([command(86, b"new" * 100, 2)])
    log.write([Cut(84), [command(85, b"other", 3)], HardState(3, 1, 84)])
    log.close()
    log = reopened(folder, 4096, tail_bytes_max=10)
    assert kept(log) == [*old[:-1], command(85, b"other", 3)]
    assert log.drop_behind(84) > 0
    log.close()
    assert reopened(folder).hard_state == HardState(3, 1, 84)


def test_a_ledger_of_format_1_has_the_same_state(
    format_1: tuple[Path, dict[str, object]], make_host: Callable[..., Host]
) -> None:
    folder, expected = format_1
    host = make_host(folder)
    host.start()
    ledger = host.live._replica.ledger
    assert (ledger.index, ledger.term, len(ledger.jobs)) == (86, 2, expected["jobs"])
    assert host.query("job", job_id="j0")["state"] == "succeeded"
    host.kill()
    host.start()
    assert host.live._replica.ledger.index == 87


def test_every_flipped_byte_of_a_log_of_format_1_is_found(
    format_1: tuple[Path, dict[str, object]], tmp_path: Path
) -> None:
    source = format_1[0] / "ledger" / "segments"
    for segment in (segments(source)[0], segments(source)[-1]):
        data = segment.read_bytes()
        for position in range(0, len(data), 11):
            flipped = bytearray(data)
            flipped[position] ^= 0x10
            segment.write_bytes(flipped)
            with pytest.raises(LogCorrupted):
                read(source)
        segment.write_bytes(data)
    assert len(read(source)) == 68
