"""The log on real files: cut anywhere, flipped anywhere, full disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from actorgrid.actors.raft.messages import Entry
from actorgrid.actors.raft.storage.log import EndMark, SegmentLog
from actorgrid.actors.raft.storage.log_record import encode_segment_header
from actorgrid.errors import DiskFull, LogCorrupted, LogFailed

BIG = 1 << 20


def command(index: int, data: bytes, term: int = 1) -> Entry:
    return Entry(index, term, "command", data)


def fill(folder: Path, batches: list[list[bytes]], segment_bytes: int = BIG) -> list[Entry]:
    log = SegmentLog.open(folder, segment_bytes)
    for batch in batches:
        log.append([command(number, data) for number, data in enumerate(batch, log.last_index + 1)])
    written = kept(log)
    log.close()
    return written


def kept(log: SegmentLog) -> list[Entry]:
    return log.entries(log.first_index, log.last_index + 1, 1 << 40)


def read(folder: Path, segment_bytes: int = BIG, end: EndMark | None = None) -> list[Entry]:
    log = SegmentLog.open(folder, segment_bytes, end)
    found = kept(log)
    log.close()
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def test_appended_records_are_there_after_reopening(tmp_path: Path) -> None:
    written = fill(tmp_path, [[b"one", b"two"], [b"three"]])
    assert read(tmp_path) == written
    written += fill(tmp_path, [])
    assert fill(tmp_path, [[b"four"]])[-1] == command(4, b"four")
    assert [entry.data for entry in read(tmp_path)] == [b"one", b"two", b"three", b"four"]


def test_a_full_segment_is_followed_by_another_and_the_old_ones_can_go(tmp_path: Path) -> None:
    written = fill(tmp_path, [[b"x" * 300] for _ in range(40)], segment_bytes=4096)
    assert len(segments(tmp_path)) > 2
    log = SegmentLog.open(tmp_path, 4096)
    assert log.entries(1, 41, 1 << 20) == written
    assert log.entries(25, 41, 1 << 20) == written[24:]
    assert log.drop_behind(20) > 0
    assert 1 < log.first_index <= 21
    first = log.first_index
    log.close()
    assert read(tmp_path, 4096) == written[first - 1 :]


@pytest.mark.parametrize("index", [2**24 - 1, 2**24, 2**40, 2**62])
def test_a_log_that_has_run_for_years_goes_on_and_is_read_again(tmp_path: Path, index: int) -> None:
    log = SegmentLog.open(tmp_path, 4096, tail_bytes_max=1)
    log.reset(index, 1)
    written = [command(number, b"x" * 300) for number in range(index + 1, index + 41)]
    for entry in written:
        log.append([entry])
    assert log.segment_count > 2
    assert log.entries(index + 1, index + 41, BIG) == written, "all but the newest read from disk"
    dropped = log.drop_behind(index + 20)
    assert dropped > 0
    rest = kept(log)
    log.close()
    assert read(tmp_path, 4096) == rest == written[log.first_index - index - 1 :]


def test_a_crash_at_any_byte_of_the_last_batch_keeps_all_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged = fill(tmp_path / "whole", [[b"first" * 20], [b"second", b"third" * 30]])
    safe = segments(tmp_path / "whole")[0].stat().st_size
    mark = (tmp_path / "whole" / "acknowledged").read_bytes()
    written = fill(tmp_path / "whole", [[b"fourth" * 20, b"5"], [b"sixth" * 30]])
    data = segments(tmp_path / "whole")[0].read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    for length in range(safe, len(data) + 1):
        (copy / "0000000000000001.log").write_bytes(data[:length])
        (copy / "acknowledged").write_bytes(mark)
        found = read(copy)
        assert found[: len(acknowledged)] == acknowledged, length
        assert found == written[: len(found)], length
        if length % 8:
            continue
        # And it can go on from there.
        assert fill(copy, [[b"next"]])[-1].index == len(found) + 1
        assert read(copy) == [*found, command(len(found) + 1, b"next")]


def test_a_crash_while_a_segment_is_made_keeps_all_before_it(tmp_path: Path) -> None:
    written = fill(tmp_path, [[b"x" * 300] for _ in range(20)], segment_bytes=4096)
    header = encode_segment_header(21, 20, 1, 99)
    for length in range(len(header)):
        (tmp_path / "0000000000000021.log").write_bytes(header[:length])
        assert read(tmp_path, 4096) == written
    (tmp_path / "0000000000000021.log").write_bytes(bytes(512))
    assert read(tmp_path, 4096) == written


def test_a_batch_whose_last_sectors_were_not_written_is_torn(tmp_path: Path) -> None:
    acknowledged = fill(tmp_path / "whole", [[b"first" * 40]])
    safe = segments(tmp_path / "whole")[0].stat().st_size
    fill(tmp_path / "whole", [[b"second" * 300, b"third" * 200]])
    data = segments(tmp_path / "whole")[0].read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    cuts = [safe, *range(-(-safe // 512) * 512, len(data), 512)]
    for cut in cuts:
        (copy / "0000000000000001.log").write_bytes(data[:cut] + bytes(len(data) - cut))
        found = read(copy)
        assert found[:1] == acknowledged
        assert len(found) <= 2


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    written = fill(tmp_path / "whole", [[b"a", b"bc" * 20], [b"", b"d" * 100], [bytes(520), b"\0" * 7 + b"\1"]])
    data = segments(tmp_path / "whole")[0].read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    path = copy / "0000000000000001.log"
    for position in range(len(data)):
        for bit in (1, 2, 4, 8, 16, 32, 64, 128) if position < 100 or position > len(data) - 100 else (1, 128):
            flipped = bytearray(data)
            flipped[position] ^= bit
            path.write_bytes(flipped)
            with pytest.raises(LogCorrupted) as caught:
                read(copy)
            assert caught.value.details["segment"] == str(path)
            assert caught.value.details["offset"] <= position
            assert 1 <= caught.value.details["index"] <= len(written)
            assert caught.value.hint


def test_every_flipped_byte_in_a_log_of_several_segments_is_found(tmp_path: Path) -> None:
    fill(tmp_path / "whole", [[b"x" * 700, b"y" * 90] for _ in range(8)], segment_bytes=4096)
    assert len(segments(tmp_path / "whole")) == 2
    for segment in segments(tmp_path / "whole"):
        data = segment.read_bytes()
        for position in range(0, len(data), 7):
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "whole", copy)
            flipped = bytearray(data)
            flipped[position] ^= 0xFF
            (copy / segment.name).write_bytes(flipped)
            with pytest.raises(LogCorrupted):
                read(copy, 4096)
            shutil.rmtree(copy)


def test_damage_that_would_be_torn_at_the_end_is_corruption_before_it(tmp_path: Path) -> None:
    fill(tmp_path, [[b"x" * 300] for _ in range(30)], segment_bytes=4096)
    first = segments(tmp_path)[0]
    data = first.read_bytes()
    for cut in (len(data) - 1, len(data) - 100, 40, 10, 0):
        first.write_bytes(data[:cut])
        with pytest.raises(LogCorrupted):
            read(tmp_path, 4096)


def test_a_missing_or_foreign_segment_is_found(tmp_path: Path) -> None:
    fill(tmp_path / "one", [[b"x" * 300] for _ in range(40)], segment_bytes=4096)
    fill(tmp_path / "two", [[b"y" * 300] for _ in range(40)], segment_bytes=4096)
    middle = segments(tmp_path / "one")[1]
    kept = middle.read_bytes()
    middle.unlink()
    with pytest.raises(LogCorrupted):
        read(tmp_path / "one", 4096)
    middle.write_bytes((tmp_path / "two" / middle.name).read_bytes())
    with pytest.raises(LogCorrupted):
        read(tmp_path / "one", 4096)
    middle.write_bytes(kept)
    middle.rename(middle.with_name("0000000000000099.log"))
    with pytest.raises(LogCorrupted):
        read(tmp_path / "one", 4096)


def test_what_a_failed_fsync_left_is_cut_off_in_the_next_boot(tmp_path: Path) -> None:
    log = SegmentLog.open(tmp_path, BIG)
    log.append([command(1, b"good")])
    end = log.end
    log.write([[command(2, b"of unknown fate")]], sync=False)
    log.close()
    assert [entry.index for entry in read(tmp_path, end=end)] == [1]
    assert [entry.index for entry in read(tmp_path)] == [1]


WRITE_UNTIL_IT_FAILS = """
import resource, sys
from pathlib import Path
from actorgrid.actors.raft.storage.log import SegmentLog
from actorgrid.actors.raft.messages import Entry
from actorgrid.errors import DiskFull, LogFailed
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
log = SegmentLog.open(Path(sys.argv[1]), 1 << 30)
try:
    while True:
        log.append([Entry(log.last_index + 1, 1, "command", b"x" * 700)])
except (DiskFull, LogFailed) as error:
    print(error.code, log.last_index)
"""


def test_a_write_that_fails_stops_the_log_and_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITE_UNTIL_IT_FAILS, str(tmp_path), "limit"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    code, last = done.stdout.split()
    assert code == LogFailed.__name__
    assert [entry.index for entry in read(tmp_path)] == list(range(1, int(last) + 1))


@pytest.mark.root
def test_a_full_disk_refuses_the_batch_and_takes_the_next_when_there_is_room(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(600_000))
    log = SegmentLog.open(small_disk / "segments", 1 << 30)
    with pytest.raises(DiskFull) as caught:
        while True:
            log.append([command(log.last_index + 1, os.urandom(9_000))])
    assert caught.value.hint
    last = log.last_index
    filler.unlink()
    log.append([command(last + 1, b"there is room again")])
    log.close()
    assert [entry.index for entry in read(small_disk / "segments")] == list(range(1, last + 2))
