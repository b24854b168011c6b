"""A disk that work really fills: the one that floods it is ended by name, its neighbours and the ledger go on.

The twins, with a small limit on a disk that has room, are in test_kept_apart, test_shut_in and test_disk_limits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.actors.work.isolation.probes import try_out
from tests.work.disk_floods import FLOODS, flood
from tests.work.rig import Rig, open_gate, wait_for

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root"),
]

ANN, BOB = "ann@lab", "bob@works"
GIB = 2**30


@pytest.fixture(scope="module", params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    if try_out().best != "full":
        pytest.skip(f"this host cannot keep work apart: {'; '.join(try_out().missing())}")
    around = Path(tempfile.mkdtemp())
    around.chmod(0o755)
    folder = around / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=755", "tmpfs", str(folder)]
    if request.param == "ext4":
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("no mkfs.ext4")
        image = around / "image"
        with image.open("wb") as file:
            file.truncate(96 * 2**20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-N", "20000", str(image)], check=True)
        mount = ["mount", "-o", "loop", str(image), str(folder)]
    mounted = subprocess.run(mount, capture_output=True)
    if mounted.returncode != 0:
        shutil.rmtree(around)
        pytest.skip(f"cannot mount here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    shutil.rmtree(around)


@pytest.fixture(scope="module")
def rig(disk: Path) -> Iterator[Rig]:
    made = Rig(disk / "data")
    made.start_manager()
    yield made
    made.close()


NEIGHBOUR = """
mkfifo $HOME/gate; head -c 300000 /dev/zero >$HOME/some; echo up
read line < $HOME/gate; rm $HOME/some; echo went on
"""


@pytest.mark.parametrize("name", FLOODS)
def test_who_fills_the_disk_is_ended_by_name_and_its_neighbour_goes_on(rig: Rig, name: str) -> None:
    job_id = name.replace(" ", "-")
    rig.submit(f"by-{job_id}", command=["sh", "-c", NEIGHBOUR], user_id=BOB)
    by = rig.grant(f"by-{job_id}")
    wait_for(lambda: [rig.node.step(0.05), "up" in rig.output(by)][1], what="the neighbour to be up")
    job = rig.run(job_id, command=flood(name, "home", GIB), user_id=ANN)
    assert job["state"] == "failed" and job["error"]["code"] == "DiskLimitExceeded", job["error"]
    assert "work.disk_free_min_bytes" in job["error"]["asked"]
    open_gate(rig.dir(by).path / "home" / "gate")
    assert rig.ended(by)["state"] == "succeeded" and "went on" in rig.output(by)
    assert rig.run(f"after-{job_id}", command=["echo", "runs"], user_id=ANN)["state"] == "succeeded"
    room = os.statvfs(rig.paths.data_dir)
    assert room.f_bavail > room.f_blocks // 2 and not (room.f_files and room.f_favail < room.f_files // 2)
