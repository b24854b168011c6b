"""A disk that is really full. The twin that needs no root is in test_parts (a full writer)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.actors.work.checkpoint_spool import waiting
from actorgrid.actors.work.checkpoint_taking import CheckpointTaker
from actorgrid.actors.work.isolation.work_folder import WorkFolder
from actorgrid.actors.work.work_records import CheckpointSpec
from actorgrid.checkpoints import READY_MARK
from tests.work.rig import Rig


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
def test_a_full_disk_holds_a_command_back_and_loses_nothing(small_disk: Path) -> None:
    rig = Rig(small_disk / "data")
    try:
        rig.start_manager()
        rig.submit("a", command=["sh", "-c", "head -c 6000000 /dev/zero; exit 5"])
        attempt_id = rig.grant("a")
        free = os.statvfs(small_disk).f_bsize
        rig.node.run_until(lambda: os.statvfs(small_disk).f_bavail * free < 2 * free, what="a full disk")
        assert not rig.dir(attempt_id).ended()
        subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
        job = rig.ended(attempt_id)
        assert job["attempts"][0]["exit_code"] == 5
        assert rig.dir(attempt_id).output_size("stdout") == 6_000_000
    finally:
        rig.close()


@pytest.mark.root
def test_the_last_checkpoint_waits_for_room(small_disk: Path) -> None:
    folder = small_disk / "a.1"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / "state").write_bytes(os.urandom(2_000_000))
    (folder / "checkpoint" / READY_MARK).touch()
    spec: CheckpointSpec = {
        "state": "",
        "folder": str(folder / "checkpoint"),
        "link": str(small_disk / "ckpt"),
        "every_s": None,
        "takes": True,
    }
    taker = CheckpointTaker(spec, folder, "stderr", WorkFolder({}, folder))
    ends: list[int] = []

    def goes_on() -> bool:
        pid, status = os.waitpid(taker._packer, os.WNOHANG) if taker._packer else (0, 0)
        if pid:
            taker.child_ended(pid, status)
            ends.append(os.waitstatus_to_exitcode(status))
            subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
        return True

    taker.last(False, goes_on)
    assert len(ends) == 2 and ends[0] != 0 and ends[1] == 0
    assert waiting(folder) == [2]
    assert (folder / "stderr").read_text() == "[actorgrid] checkpoint: the disk is full\n"
