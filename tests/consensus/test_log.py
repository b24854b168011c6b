"""The log on real files: cut anywhere, flipped anywhere, full disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.consensus.log import EndMark, SegmentLog
from actorgrid.actors.consensus.record import (
    SEGMENT_HEADER_BYTES,
    Damage,
    Record,
    decode_record,
    decode_segment_header,
    encode_records,
    encode_segment_header,
)
from actorgrid.errors import DiskFull, LogCorrupted, LogFailed

BIG = 1 << 20


def fill(folder: Path, batches: list[list[bytes]], segment_bytes: int = BIG) -> list[Record]:
    written: list[Record] = []
    log = SegmentLog.open(folder, segment_bytes, written.append)
    for batch in batches:
        first = log.last_index + 1
        records = [Record(first + number, 1, payload) for number, payload in enumerate(batch)]
        log.append(records)
        written.extend(records)
    log.close()
    return written


def read(folder: Path, segment_bytes: int = BIG, end: EndMark | None = None) -> list[Record]:
    found: list[Record] = []
    SegmentLog.open(folder, segment_bytes, found.append, end).close()
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


@given(st.lists(st.binary(max_size=700), max_size=12), st.integers(0, 2**32 - 1))
def test_records_come_back_as_they_went_in(payloads: list[bytes], chain: int) -> None:
    records = [Record(number, 7, payload) for number, payload in enumerate(payloads, 1)]
    data, end_chain = encode_records(records, chain)
    found, offset = [], 0
    while offset < len(data):
        record, offset, chain = decode_record(data, offset, chain)
        found.append(record)
    assert found == records
    assert chain == end_chain
    assert len(data) % 8 == 0


def test_segment_header_knows_its_place() -> None:
    assert decode_segment_header(encode_segment_header(77, 12345)) == (77, 12345)
    with pytest.raises(Damage) as caught:
        decode_segment_header(b"\1" * SEGMENT_HEADER_BYTES)
    assert not caught.value.torn


def test_appended_records_are_there_after_reopening(tmp_path: Path) -> None:
    written = fill(tmp_path, [[b"one", b"two"], [b"three"]])
    assert read(tmp_path) == written
    written += fill(tmp_path, [])
    assert fill(tmp_path, [[b"four"]])[-1] == Record(4, 1, b"four")
    assert [record.payload for record in read(tmp_path)] == [b"one", b"two", b"three", b"four"]


def test_a_full_segment_is_followed_by_another_and_the_old_ones_can_go(tmp_path: Path) -> None:
    written = fill(tmp_path, [[b"x" * 300] for _ in range(40)], segment_bytes=4096)
    assert len(segments(tmp_path)) > 2
    log = SegmentLog.open(tmp_path, 4096, lambda _: None)
    assert list(log.read(1)) == written
    assert list(log.read(25)) == written[24:]
    assert log.drop_behind(20) > 0
    assert 1 < log.first_index <= 21
    kept = log.first_index
    log.close()
    assert read(tmp_path, 4096) == written[kept - 1 :]


def test_a_crash_at_any_byte_of_the_last_batch_keeps_all_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged = fill(tmp_path / "whole", [[b"first" * 20], [b"second", b"third" * 30]])
    safe = segments(tmp_path / "whole")[0].stat().st_size
    written = fill(tmp_path / "whole", [[b"fourth" * 50, b"5", b"sixth" * 90]])
    data = segments(tmp_path / "whole")[0].read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    for length in range(safe, len(data) + 1):
        (copy / "0000000000000001.log").write_bytes(data[:length])
        found = read(copy)
        assert found[: len(acknowledged)] == acknowledged, length
        assert found == written[: len(found)], length
        # And it can go on from there.
        assert fill(copy, [[b"next"]])[-1].index == len(found) + 1
        assert read(copy) == [*found, Record(len(found) + 1, 1, b"next")]


def test_a_crash_while_a_segment_is_made_keeps_all_before_it(tmp_path: Path) -> None:
    written = fill(tmp_path, [[b"x" * 300] for _ in range(20)], segment_bytes=4096)
    header = encode_segment_header(21, 99)
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
    written = fill(tmp_path / "whole", [[b"a", b"bc" * 40], [b"", b"d" * 300], [bytes(600), b"\0" * 7 + b"\1"]])
    data = segments(tmp_path / "whole")[0].read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    path = copy / "0000000000000001.log"
    for position in range(len(data)):
        for bit in (1, 2, 4, 8, 16, 32, 64, 128) if position < 400 or position > len(data) - 200 else (1, 128):
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
    log = SegmentLog.open(tmp_path, BIG, lambda _: None)
    log.append([Record(1, 1, b"good")])
    end = log.end
    log.append([Record(2, 1, b"of unknown fate")])
    log.close()
    assert [record.index for record in read(tmp_path, end=end)] == [1]
    assert [record.index for record in read(tmp_path)] == [1]


WRITE_UNTIL_IT_FAILS = """
import resource, sys
from pathlib import Path
from actorgrid.actors.consensus.log import SegmentLog
from actorgrid.actors.consensus.record import Record
from actorgrid.errors import DiskFull, LogFailed
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
log = SegmentLog.open(Path(sys.argv[1]), 1 << 30, lambda _: None)
try:
    while True:
        log.append([Record(log.last_index + 1, 1, b"x" * 700)])
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
    assert [record.index for record in read(tmp_path)] == list(range(1, int(last) + 1))


@pytest.mark.root
def test_a_full_disk_refuses_the_batch_and_takes_the_next_when_there_is_room(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(600_000))
    log = SegmentLog.open(small_disk / "segments", 1 << 30, lambda _: None)
    with pytest.raises(DiskFull) as caught:
        while True:
            log.append([Record(log.last_index + 1, 1, os.urandom(9_000))])
    assert caught.value.hint
    last = log.last_index
    filler.unlink()
    log.append([Record(last + 1, 1, b"there is room again")])
    log.close()
    assert [record.index for record in read(small_disk / "segments")] == list(range(1, last + 2))
