"""What work holds of a disk, in trees made to hide it; and which work is ended for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.actors.files.untrusted_files import remove_tree
from actorgrid.actors.work.disk_limits import (
    DiskRoom,
    DiskUse,
    WorkOnDisk,
    greatest,
    is_short,
    kept_bytes,
    next_look_s,
    over_limit,
)
from actorgrid.actors.work.disk_use import DiskCount, room_of
from actorgrid.actors.work.housekeeping import clear_own_sockets
from actorgrid.actors.work.outcomes import disk_reason, over_disk
from tests.work.disk_floods import HOLDS_MAPPED, HOLDS_UNLINKED
from tests.work.rig import Rig

GIB, MIB = 2**30, 2**20
PLENTY = 1_000_000


def work(work_id: str, held: int, user: str = "", files: int = 1, whole: bool = True) -> WorkOnDisk:
    return WorkOnDisk(work_id, user or work_id, DiskUse(held, files, whole))


def ended(works: list[WorkOnDisk], free: int, total: int = 1000 * GIB, files: tuple[int, int] = (0, 0)) -> str:
    over = greatest(works, DiskRoom(free, total, *files), GIB)
    return "" if over is None else over.work_id


def test_of_a_small_disk_no_more_than_a_part_is_kept() -> None:
    assert kept_bytes(DiskRoom(0, 1000 * GIB), GIB) == GIB and kept_bytes(DiskRoom(0, GIB), GIB) == GIB // 20
    assert is_short(DiskRoom(GIB - 1, 1000 * GIB), GIB) and not is_short(DiskRoom(GIB, 1000 * GIB), GIB)
    assert is_short(DiskRoom(50 * GIB, 100 * GIB, 9, 1000), GIB)
    assert not is_short(DiskRoom(50 * GIB, 100 * GIB, 0, 0), GIB)  # of btrfs, which has no such number
    assert not is_short(DiskRoom(0, 100 * GIB, 0, 1000), 0)


def test_the_greatest_of_the_user_that_holds_most_makes_room() -> None:
    crowd = [work(f"c{number}", GIB, "crowd") for number in range(5)]
    assert ended([work("one", 3 * GIB), *crowd, work("small", 2 * GIB, "crowd")], 0) == "small"
    assert ended([work("one", 9 * GIB), *crowd], 0) == "one"


def test_nobody_is_ended_for_what_others_fill_the_disk_with() -> None:
    assert ended([work("small", GIB // 4)], 0) == ""
    assert ended([work("larger", GIB // 4 + 1)], 0) == "larger"
    assert ended([], 0) == ""
    assert ended([work("hides", MIB, whole=False), work("shown", 2 * MIB)], 0) == "hides"


def test_where_files_run_out_they_are_counted() -> None:
    works = [work("bytes", 50 * GIB, files=1), work("files", MIB, files=500)]
    assert ended(works, 50 * GIB, files=(9, 1000)) == "files"
    assert ended(works, 0, files=(9, 1000)) == "bytes"


def test_all_that_hold_more_than_each_may_are_ended() -> None:
    works = [work("a", 11), work("b", 10), work("c", 12)]
    assert [over.work_id for over in over_limit(works, 10, DiskRoom(GIB, GIB), 0)] == ["a", "c"]
    assert over_limit(works, 0, DiskRoom(GIB, GIB), 0) == []


def test_the_faster_room_goes_the_sooner_it_is_looked_at() -> None:
    def wait(free: int, before: int) -> float:
        return next_look_s(free, before, 1.0, GIB, 0.02, 0.5)

    assert wait(100 * GIB, 100 * GIB) == wait(100 * GIB, 90 * GIB) == wait(100 * GIB, 101 * GIB) == 0.5
    assert wait(GIB + MIB, GIB + 101 * MIB) == 0.02
    assert 0.02 < wait(GIB + 10 * MIB, GIB + 50 * MIB) < 0.5


def test_the_error_says_asked_found_and_try_and_a_forged_reason_is_no_harm() -> None:
    (over,) = over_limit([work("a", 11, files=3)], 10, DiskRoom(GIB, 100 * GIB), GIB)
    error = over_disk("a.1", disk_reason(over))
    assert error.asked == "10 bytes (work.disk_bytes_max)" and error.found == "11 bytes in 3 files" and error.hint
    found = greatest([work("a", 9 * GIB)], DiskRoom(5, 1000 * GIB), GIB)
    assert found is not None
    error = over_disk("a.1", disk_reason(found))
    assert error.asked == f"{GIB} bytes kept free (work.disk_free_min_bytes)" and "5 bytes free" in error.found
    for reason in ("disk ", "disk x", "disk " + "9" * 40, "disk 1 2 3 4 5 6 7", "disk ² ² ² ² ²"):
        assert over_disk("a.1", reason).found


# -- counting


def count(*tops: Path, uid: int = 0, entries_max: int = PLENTY) -> DiskUse:
    counted = DiskCount(os.stat(tops[0]).st_dev, uid, entries_max)
    for top in tops:
        counted.add_tree(str(top))
    return counted.use


def test_a_tree_is_counted_in_blocks_and_each_file_once(tmp_path: Path) -> None:
    own, others = tmp_path / "own", tmp_path / "others"
    (own / "in").mkdir(parents=True)
    others.mkdir()
    (own / "full").write_bytes(os.urandom(MIB))
    with (own / "in" / "sparse").open("wb") as file:
        file.truncate(50 * GIB)
    os.link(own / "full", own / "in" / "again")
    (others / "theirs").write_bytes(os.urandom(MIB))
    os.link(others / "theirs", own / "theirs")
    os.symlink(others, own / "in" / "link")
    os.mkfifo(own / "fifo")
    found = count(own)
    assert MIB <= found.bytes < MIB + 200_000 and found.is_whole
    assert found.files == 6  # two folders, full, sparse, the link, the fifo
    assert count(own, uid=os.getuid() or 1).bytes // MIB == (2 if os.getuid() else 1)
    assert count(others).bytes < MIB  # it has another name, elsewhere
    assert count(own, others).bytes >= 2 * MIB
    assert count(own / "full").bytes == count(own / "in" / "link").bytes == 0  # neither is a folder


def test_a_tree_however_deep_is_walked_with_one_descriptor(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(3000):  # a path of six thousand characters
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.write(last := os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at), os.urandom(MIB))
    os.close(last)
    os.close(at)
    before = set(os.listdir("/proc/self/fd"))
    found = count(top)
    assert found.is_whole and found.files == 3002 and found.bytes >= MIB
    assert set(os.listdir("/proc/self/fd")) == before
    cut = count(top, entries_max=100)
    assert not cut.is_whole and 90 < cut.files <= 101
    remove_tree(top)  # which would be too deep for who clears up after tests
    assert not top.exists()


def test_a_folder_that_is_moved_while_it_is_walked_is_not_left_through_its_new_parent(tmp_path: Path) -> None:
    (tmp_path / "own" / "a" / "b").mkdir(parents=True)
    (tmp_path / "own" / "z").mkdir()
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "secret").write_bytes(os.urandom(MIB))

    class Moving(DiskCount):
        def _look_into(self, at: int) -> list[str]:
            names = super()._look_into(at)
            if not names and os.readlink(f"/proc/self/fd/{at}").endswith("/b"):
                os.rename(tmp_path / "own" / "a" / "b", tmp_path / "away" / "b")
            return names

    counted = Moving(os.stat(tmp_path).st_dev, 0, PLENTY)
    counted.add_tree(str(tmp_path / "own"))
    assert not counted.use.is_whole and counted.use.bytes < MIB


def test_a_folder_that_is_shut_against_its_owner_is_opened_all_the_same(tmp_path: Path) -> None:
    shut = tmp_path / "own" / "shut"
    shut.mkdir(parents=True)
    (shut / "file").write_bytes(os.urandom(MIB))
    shut.chmod(0o300)
    found = count(tmp_path / "own")
    assert found.is_whole and found.bytes >= MIB


@pytest.fixture
def child(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", request.param], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "up\n"
        yield process.pid
        process.stdin.close()


@pytest.mark.parametrize("child", [HOLDS_UNLINKED], indirect=True)
def test_a_file_without_a_name_is_found_by_its_descriptor_and_one_with_a_name_when_asked(
    child: int, tmp_path: Path
) -> None:
    held = []
    for named in (False, True):
        counted = DiskCount(os.stat(tmp_path).st_dev, 0, PLENTY)
        counted.add_open([child], named=named)
        counted.add_open([child], named=named)
        held.append(counted.use.bytes // MIB)
    assert held == [1, 3]  # of the two that have names, the one that is open to be written


@pytest.mark.parametrize("child", [HOLDS_MAPPED], indirect=True)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root is told what file a mapping is of")
def test_a_file_without_a_name_or_a_descriptor_is_found_by_its_mapping(child: int, tmp_path: Path) -> None:
    counted = DiskCount(os.stat(tmp_path).st_dev, 0, PLENTY)
    counted.add_open([child], named=False)
    assert counted.use.bytes // MIB == 1


def test_the_room_of_a_file_system_is_told(tmp_path: Path) -> None:
    room = room_of(tmp_path)
    assert 0 <= room.free_bytes <= room.total_bytes and 0 <= room.free_files <= room.total_files


def test_what_work_left_beside_its_sockets_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "doors").mkdir()
    os.symlink("doors/o-1", tmp_path / "o-1")
    (tmp_path / "flood").write_bytes(b"x" * 4096)
    (tmp_path / "folder" / "deeper").mkdir(parents=True)
    os.mkfifo(tmp_path / "fifo")
    clear_own_sockets(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["doors", "fifo", "o-1"]
    clear_own_sockets(tmp_path / "none")


def test_a_job_that_holds_more_than_it_may_is_ended_by_name_and_the_next_runs(rig: Rig, tmp_path: Path) -> None:
    rig.context.settings.work.disk_bytes_max = MIB // 2
    waits = HOLDS_UNLINKED.replace("sys.stdin.read()", "__import__('time').sleep(600)")
    job = rig.run("flood", command=[sys.executable, "-c", waits], cwd=str(tmp_path))
    assert job["state"] == "failed" and job["error"]["code"] == "DiskLimitExceeded", job["error"]
    assert rig.run("next", command=["true"])["state"] == "succeeded"
    assert rig.manager is not None and rig.manager.metrics()["disk_ended_total"] == 1
