"""What a crash cut short is dropped; what was durable and changed is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actorgrid.actors.replication import journal as journal_module
from actorgrid.actors.replication.journal import HEADER, Journal, framed_size
from actorgrid.errors import DiskFull, LogCorrupted

PAYLOADS = [b"first", b"x" * 700, b"", b"y" * 30, bytes(range(256)) * 5, b"last one"]


def written(path: Path, payloads: list[bytes]) -> bytes:
    journal = Journal(path)
    for payload in payloads:
        journal.reserve(len(payload))
        journal.append(payload)
    size = journal.size
    journal.close()
    return path.read_bytes()[:size]


def reread(path: Path) -> tuple[list[bytes], int]:
    journal = Journal(path)
    found = list(journal.replay())
    torn = journal.torn_bytes
    journal.close()
    return found, torn


def test_what_was_appended_is_there_again(tmp_path: Path) -> None:
    written(tmp_path / "j", PAYLOADS)
    assert reread(tmp_path / "j") == (PAYLOADS, 0)
    journal = Journal(tmp_path / "j")
    journal.append(b"more")
    journal.close()
    assert reread(tmp_path / "j") == ([*PAYLOADS, b"more"], 0)


@pytest.mark.parametrize("padding", [0, 4096], ids=["exact file", "room after the end"])
def test_every_single_flipped_bit_is_found(tmp_path: Path, padding: int) -> None:
    whole = written(tmp_path / "j", PAYLOADS)
    path = tmp_path / "flipped"
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << (place % 8)
        path.write_bytes(bytes(data) + bytes(padding))
        with pytest.raises(LogCorrupted):
            Journal(path)


@pytest.mark.parametrize("fill", [False, True], ids=["file ends", "never written sectors"])
def test_a_cut_at_any_byte_drops_the_unfinished_record_only(tmp_path: Path, fill: bool) -> None:
    whole = written(tmp_path / "j", PAYLOADS)
    path = tmp_path / "cut"
    for cut in range(0, len(whole), 512 if fill else 7):
        path.write_bytes(whole[:cut] + (bytes(len(whole) - cut + 1000) if fill else b""))
        found, _ = reread(path)
        ends = [sum(framed_size(len(payload)) for payload in PAYLOADS[:count]) for count in range(len(PAYLOADS) + 1)]
        assert found == PAYLOADS[: max(count for count, end in enumerate(ends) if end <= cut)]
        journal = Journal(path)
        journal.append(b"next")
        journal.close()
        assert reread(path) == ([*found, b"next"], 0)


def test_a_hole_before_a_valid_record_is_damage_not_a_cut(tmp_path: Path) -> None:
    whole = written(tmp_path / "j", [b"a" * (1024 - HEADER.size - 1), b"b" * 2000, b"c"])
    (tmp_path / "j").write_bytes(whole[:1024] + bytes(512) + whole[1536:])
    with pytest.raises(LogCorrupted):
        Journal(tmp_path / "j")


def test_records_of_another_order_are_damage(tmp_path: Path) -> None:
    whole = written(tmp_path / "j", [b"a", b"b", b"c"])
    size = framed_size(1)
    (tmp_path / "j").write_bytes(whole[:size] + whole[2 * size :] + whole[size : 2 * size])
    with pytest.raises(LogCorrupted):
        Journal(tmp_path / "j")


def test_a_full_disk_is_met_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(b"kept")

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(DiskFull):
            journal.reserve(100)
    journal.reserve(100)
    journal.append(b"z" * 100)
    journal.close()
    assert reread(tmp_path / "j")[0] == [b"kept", b"z" * 100]


def test_reserved_room_is_used_without_growing_the_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.reserve(10)
    size = (tmp_path / "j").stat().st_size
    assert size >= journal_module.EXTEND_BYTES
    for _ in range(100):
        journal.reserve(10)
        journal.append(b"0123456789")
    assert (tmp_path / "j").stat().st_size == size
    journal.close()
