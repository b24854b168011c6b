"""The mark of what was acknowledged: a lost or exchanged end of the log is noticed, an honest torn one is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from actorgrid.actors.raft.messages import Entry, HardState
from actorgrid.actors.raft.storage.durable_watermark import DurableWatermark, Mark
from actorgrid.actors.raft.storage.log import Cut, Reset, SegmentLog
from actorgrid.errors import LogCorrupted
from tests.raft.storage.test_log import command, fill, read, segments


def test_a_mark_comes_back_and_a_torn_slot_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    mark = DurableWatermark(path)
    assert mark.read() is None
    mark.open()
    marks = [Mark(1, 48 + number, number, 7 * number) for number in range(5)]
    for each in marks:
        mark.write(each)
        assert DurableWatermark(path).read() == each
    mark.close()
    data = path.read_bytes()
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        assert DurableWatermark(path).read() in marks[-2:]
    path.write_bytes(b"\xff" * len(data))
    assert DurableWatermark(path).read() is None


def test_the_next_write_takes_the_slot_of_the_older_mark(tmp_path: Path) -> None:
    for number in range(1, 8):
        mark = DurableWatermark(tmp_path / "mark")
        mark.read()
        mark.open()
        mark.write(Mark(1, number, number, number))
        mark.close()
        data = bytearray((tmp_path / "mark").read_bytes())
        assert DurableWatermark(tmp_path / "mark").read() == Mark(1, number, number, number)
    assert data.count(b"AGACKED1") == 2


def test_a_lost_end_is_noticed_wherever_it_is_cut(tmp_path: Path) -> None:
    fill(tmp_path / "whole", [[b"x" * 90] for _ in range(12)], 1024)
    files = segments(tmp_path / "whole")
    assert len(files) > 1
    newest = files[-1].read_bytes()
    for length in range(0, len(newest), 5):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "whole", copy)
        (copy / files[-1].name).write_bytes(newest[:length])
        with pytest.raises(LogCorrupted, match="acknowledged"):
            read(copy, 1024)
        (copy / files[-1].name).write_bytes(newest[:length] + bytes(len(newest) - length))
        with pytest.raises(LogCorrupted):
            read(copy, 1024)
        shutil.rmtree(copy)
    files[-1].unlink()
    with pytest.raises(LogCorrupted, match="acknowledged"):
        read(tmp_path / "whole", 1024)
    for path in files[:-1]:
        path.unlink()
    with pytest.raises(LogCorrupted, match="acknowledged"):
        read(tmp_path / "whole", 1024)


def test_an_older_copy_of_the_log_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path / "log", [[b"a"], [b"b"]])
    older = segments(tmp_path / "log")[0].read_bytes()
    fill(tmp_path / "log", [[b"c"]])
    segments(tmp_path / "log")[0].write_bytes(older)
    with pytest.raises(LogCorrupted, match="acknowledged"):
        read(tmp_path / "log")


def test_another_history_of_the_same_length_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path / "one", [[b"a"], [b"b"]])
    fill(tmp_path / "two", [[b"a"], [b"x"]])
    segments(tmp_path / "one")[0].write_bytes(segments(tmp_path / "two")[0].read_bytes())
    with pytest.raises(LogCorrupted, match="acknowledged"):
        read(tmp_path / "one")


def test_a_mark_that_stayed_behind_does_no_harm(tmp_path: Path) -> None:
    fill(tmp_path, [[b"x" * 200] for _ in range(5)], 1024)
    behind = (tmp_path / "acknowledged").read_bytes()
    fill(tmp_path, [[b"x" * 200] for _ in range(30)], 1024)
    log = SegmentLog.open(tmp_path, 1024)
    assert log.drop_behind(25) > 3
    log.close()
    (tmp_path / "acknowledged").write_bytes(behind)
    assert read(tmp_path, 1024)[-1].index == 35
    assert DurableWatermark(tmp_path / "acknowledged").read() != DurableWatermark(tmp_path / "none").read()


def test_a_cut_is_no_loss(tmp_path: Path) -> None:
    fill(tmp_path, [[b"a", b"b", b"c"]])
    log = SegmentLog.open(tmp_path, 1 << 20)
    log.write([Cut(1)])
    log.close()
    assert [entry.index for entry in read(tmp_path)] == [1]


def test_every_flipped_bit_is_found_in_records_of_every_kind(tmp_path: Path) -> None:
    log = SegmentLog.open(tmp_path / "whole", 1 << 20)
    log.write([[command(1, b"a"), Entry(2, 2, "conf_change", b"members")], HardState(2, 1, 1), Cut(1)])
    log.write([[command(2, b"b", 3)], Reset(9, 4), HardState(4, 0, 9), [command(10, b"after", 4)]])
    log.close()
    (path,) = segments(tmp_path / "whole")
    data = path.read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    for position in range(len(data)):
        for bit in (1, 16, 128):
            flipped = bytearray(data)
            flipped[position] ^= bit
            (copy / path.name).write_bytes(flipped)
            with pytest.raises(LogCorrupted):
                read(copy)
    for length in range(len(data)):
        (copy / path.name).write_bytes(data[:length])
        # Without the mark an end that was cut off cannot be told from a torn one: but what is read was written.
        assert read(copy) in ([], [command(1, b"a"), Entry(2, 2, "conf_change", b"members")], *_histories())


def _histories() -> list[list[Entry]]:
    return [[command(1, b"a")], [command(1, b"a"), command(2, b"b", 3)], [command(10, b"after", 4)]]
