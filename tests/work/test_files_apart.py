"""Files of jobs at full that the agent has to do with, under both kinds of agent: checkpoints and outputs.

Each is what it is at basic, and leads nobody to what is not its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.checkpoints import READY_MARK
from tests.work.apart_rig import ANN, BOB, SECRET, check_as_nobody, level_of, rig_that_keeps_apart, said
from tests.work.rig import Rig

pytestmark = pytest.mark.system
is_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start an agent that is another user, or give uids"
)


@is_root
def test_all_of_these_hold_for_an_agent_that_is_not_root() -> None:
    check_as_nobody(__file__)


rig = pytest.fixture(scope="module")(rig_that_keeps_apart)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everybody may write."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def start(rig: Rig, name: str, program: str, *arguments: str, user: str = ANN, **fields: Any) -> str:
    command = ["python3", "-c", textwrap.dedent(program), *arguments]
    rig.submit(name, command=command, user_id=user, **fields)
    return rig.grant(name)


def entered(rig: Rig, name: str, number: int) -> bytes:
    """What the job has as its last checkpoint, once it is that one of its attempt, or a later one."""
    rig.node.run_until(
        lambda: rig.job(name).get("last_checkpoint", {"number": 0})["number"] >= number,
        60.0,
        what=f"checkpoint {number} of {name} is entered",
    )
    return (rig.paths.blobs_dir / str(rig.job(name)["checkpoint_digest"])).read_bytes()


# -- checkpoints

SAVES = f"""
import os, signal, sys
place, who = sys.argv[1], os.getuid()
if os.path.exists(place + "/n"):
    print(open(place + "/n").read(), open(os.environ["ACTORGRID_CHECKPOINT_DIR"] + "/n").read())
    print(os.stat(place + "/n").st_uid == who == os.stat(place).st_uid, os.stat(place).st_mode & 0o77)
    open(place + "/n", "a").write("more")
    sys.exit()
open(place + "/n", "w").write("saved")
open(place + "/{READY_MARK}", "w").close()
print("up", flush=True)
signal.pause()
"""


def killed(rig: Rig, attempt_id: str, *, with_shim: bool = False) -> None:
    if with_shim:
        os.kill(rig.dir(attempt_id).shim_pid() or 0, signal.SIGKILL)
    for pid in rig.marked(attempt_id) if not with_shim else ():
        if b"-c" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    rig.ended(attempt_id)


@pytest.mark.parametrize("where", ["its home", "a directory", "a directory, its shim killed"])
def test_the_next_attempt_goes_on_from_the_checkpoint_of_one_that_was_killed(
    rig: Rig, shared: Path, where: str
) -> None:
    name, cwd, with_shim = f"goes-on-{len(where)}", None if where == "its home" else str(shared), "shim" in where
    first = start(rig, name, SAVES, "run/ckpt", retries_left=1, cwd=cwd, checkpoint={"path": "run/ckpt"})
    entered(rig, name, 1)
    assert level_of(rig, first) == "full"
    killed(rig, first, with_shim=with_shim)
    assert (shared / "run" / "ckpt").is_symlink() == with_shim, "the link goes with the attempt"
    job = rig.run(name)
    assert job["state"] == "succeeded", said(rig, f"{name}.2")
    assert rig.output(f"{name}.2") == "saved saved\nTrue 0\n"
    assert not (rig.dir(f"{name}.2").path / "checkpoint").exists()
    assert not (shared / "run" / "ckpt").is_symlink()


@is_root
def test_it_goes_on_where_the_same_user_has_another_uid() -> None:
    around = Path(tempfile.mkdtemp())
    around.chmod(0o755)
    other = Rig(around / "data")
    try:
        other.start_manager()
        first = start(other, "moves", SAVES, "ckpt", retries_left=1, checkpoint={"path": "ckpt"})
        entered(other, "moves", 1)
        killed(other, first)
        other.kill_manager()
        table = other.paths.data_dir / "uids.json"
        uids = json.loads(table.read_text())
        table.write_text(json.dumps({"somebody@else": uids[ANN], ANN: uids[ANN] + 1}))
        other.start_manager()
        assert other.run("moves")["state"] == "succeeded", said(other, "moves.2")
        assert other.output("moves.2") == "saved saved\nTrue 0\n"
    finally:
        other.close()
        shutil.rmtree(around)


PLANTS = f"""
import os, sys
token, mine = sys.argv[1:]
if os.path.exists("ckpt/good"):
    print(sorted(os.listdir("ckpt")), open("ckpt/good").read())
    sys.exit()
os.symlink(token, "ckpt/link")
os.symlink(os.path.dirname(token), "ckpt/folder")
os.mkfifo("ckpt/fifo")
for number, path in enumerate((mine + "/spec.msgpack", mine + "/stdout", "/etc/passwd", "/etc/shadow")):
    try:
        os.link(path, f"ckpt/hard{{number}}")
    except OSError:
        pass
open("ckpt/good", "w").write("good")
open("ckpt/{READY_MARK}", "w").close()
print("up", flush=True)
import signal
signal.pause()
"""


def test_links_and_pipes_in_a_checkpoint_directory_bring_nothing_along(rig: Rig) -> None:
    token, mine = str(rig.paths.token_file), str(rig.dir("plants.1").path)
    first = start(rig, "plants", PLANTS, token, mine, retries_left=1, checkpoint={"path": "ckpt"})
    packed = entered(rig, "plants", 1)
    assert SECRET.encode() not in packed and b"root:" not in packed
    killed(rig, first)
    assert "left out, as only files" in rig.output(first, "stderr")
    assert rig.run("plants")["state"] == "succeeded"
    assert rig.output("plants.2") == "['good'] good\n"


SWAPS = f"""
import os, sys
os.makedirs("ckpt/real/deep"); open("ckpt/real/deep/admin.token", "w").write("mine")
away, data = os.path.abspath("aside"), sys.argv[1]
os.symlink(data, "sneaky")
print("up", flush=True)
while True:
    os.rename("ckpt/real", "aside"); os.rename("sneaky", "ckpt/real")
    os.rename("ckpt/real", "sneaky"); os.rename("aside", "ckpt/real")
    open("ckpt/{READY_MARK}", "w").close()
"""


def test_a_folder_that_is_swapped_for_a_link_all_the_time_brings_no_file_of_others(rig: Rig) -> None:
    first = start(rig, "swaps", SWAPS, str(rig.paths.data_dir), checkpoint={"path": "ckpt", "every_s": 1.0})
    rig.running(first)
    saw = "[actorgrid] checkpoint: it changed while it was packed"
    rig.node.run_until(
        lambda: saw in rig.output(first, "stderr") or rig.job("swaps").get("last_checkpoint", {}).get("number", 0) > 2,
        120.0,
        what="some are taken, or given up",
    )
    killed(rig, first)
    assert all(SECRET.encode() not in blob.read_bytes() for blob in rig.paths.blobs_dir.iterdir())


def test_the_link_is_not_made_through_a_link_that_leads_out(rig: Rig, shared: Path) -> None:
    (shared / "cwd").mkdir()
    (shared / "cwd").chmod(0o777)
    (shared / "elsewhere").mkdir()
    (shared / "elsewhere").chmod(0o777)
    (shared / "cwd" / "a").symlink_to(shared / "elsewhere")
    job = rig.run("out", command=["true"], user_id=ANN, cwd=str(shared / "cwd"), checkpoint={"path": "a/b"})
    assert job["state"] == "failed" and "cannot have the checkpoint" in job["error"]["message"]
    assert not os.listdir(shared / "elsewhere")


LEAVES = """
import os, sys, msgpack
spool, answers = os.environ["ACTORGRID_CHECKPOINT_SPOOL"], os.environ["ACTORGRID_CHECKPOINT_ANSWERS"]
if os.environ["ACTORGRID_CHECKPOINT_STATE"]:
    data = open(os.environ["ACTORGRID_CHECKPOINT_STATE"], "rb").read()
    print(data[256:], data.split()[3].decode())
    sys.exit()
def told(number):
    while True:
        try:
            said = msgpack.unpackb(open(answers + "/checkpoint.told", "rb").read())
        except OSError:
            continue
        if said["number"] >= number:
            return (said["error"] or {}).get("code", "kept")
def place(number):
    return f"{spool}/checkpoint-{number}.new"
os.symlink(sys.argv[1], place(1))
print("a link", told(1))
os.mkfifo(place(2))
print("a pipe", told(2))
open(spool + "/draft", "wb").write(b"state")
os.rename(spool + "/draft", place(3))
print("a file", told(3))
try:
    open(answers + "/checkpoint.told", "wb")
except PermissionError:
    print("answers are the agent's")
sys.exit(1)
"""


def test_what_work_leaves_by_itself_is_taken_if_it_is_its_own_file(rig: Rig) -> None:
    path = [sys.executable, "-c", LEAVES, str(rig.paths.token_file)]
    rig.submit("leaves", command=path, user_id=ANN, retries_left=1, checkpoint={})
    rig.ended(rig.grant("leaves"))
    assert level_of(rig, "leaves.1") == "full"
    expected = "a link NotARegularFile\na pipe NotARegularFile\na file kept\nanswers are the agent's\n"
    assert rig.output("leaves.1") == expected, said(rig, "leaves.1")
    assert not (rig.dir("leaves.1").path / "spool").exists()
    assert rig.run("leaves")["state"] == "succeeded", said(rig, "leaves.2")
    assert rig.output("leaves.2") == "b'state' leaves.1\n"


LOOKS = """
import os, sys
for path in sys.argv[1:]:
    try:
        print(os.listdir(path) if os.path.isdir(path) else open(path, "rb").read())
    except OSError as error:
        print(type(error).__name__)
"""


def test_nobody_elses_checkpoints_are_there_to_be_read(rig: Rig) -> None:
    first = start(rig, "anns", SAVES, "ckpt", checkpoint={"path": "ckpt"})
    entered(rig, "anns", 1)
    kept = rig.paths.blobs_dir / str(rig.job("anns")["checkpoint_digest"])
    places = [kept, rig.paths.blobs_dir, rig.dir(first).path / "checkpoint", rig.dir(first).path / "checkpoint" / "n"]
    if os.geteuid() != 0:
        killed(rig, first)  # one tenant at a time
    job = rig.run("bobs", command=["python3", "-c", LOOKS, *map(str, places)], user_id=BOB)
    assert job["state"] == "succeeded", job["error"]
    assert set(rig.output("bobs.1").split()) <= {"PermissionError", "FileNotFoundError"}
    if os.geteuid() == 0:
        killed(rig, first)


# -- outputs

GIVES = """
import os
os.makedirs("out/deep")
open("out/deep/model", "w").write("weights")
open("log", "w").write("done")
os.symlink("out/deep", "last")
print(os.getcwd())
"""


@pytest.mark.parametrize("where", ["its home", "a directory"])
def test_outputs_are_kept_as_at_basic(rig: Rig, shared: Path, where: str) -> None:
    name, cwd = f"gives-{len(where)}", None if where == "its home" else str(shared)
    attempt_id = start(rig, name, GIVES, cwd=cwd, outputs=["out", "log", "last/model", "gone"])
    job = rig.ended(attempt_id)
    assert job["state"] == "succeeded", said(rig, attempt_id)
    assert level_of(rig, attempt_id) == "full"
    kept = rig.dir(attempt_id).outputs
    found = {str(path.relative_to(kept)): path.read_text() for path in kept.rglob("*") if path.is_file()}
    assert found == {"out/deep/model": "weights", "log": "done", "last/model": "weights"}, said(rig, attempt_id)
    assert "output 'gone' was not there" in rig.output(attempt_id, "stderr")
    assert (shared / "log").exists() == (cwd is not None)


STEALS = """
import os, sys
token, mine, shared = sys.argv[1:]
os.symlink(token, "link")
os.symlink(os.path.dirname(token), "folder")
os.mkfifo("pipe")
for number, path in enumerate((mine + "/spec.msgpack", token, "/etc/shadow")):
    try:
        os.link(path, f"hard{number}")
    except OSError as error:
        print(type(error).__name__)
open("good", "w").write("good")
"""
NAMES = ["link", "folder", "folder/admin.token", "pipe", "hard0", "hard1", "hard2", "good"]


def test_what_leads_elsewhere_is_refused_by_name_and_the_rest_is_kept(rig: Rig, shared: Path) -> None:
    token, mine = str(rig.paths.token_file), str(rig.dir("steals.1").path)
    attempt_id = start(rig, "steals", STEALS, token, mine, str(shared), cwd=str(shared), outputs=NAMES)
    assert rig.ended(attempt_id)["state"] == "succeeded", said(rig, attempt_id)
    kept = rig.dir(attempt_id).outputs
    assert {path.read_text() for path in kept.rglob("*") if path.is_file()} == {"good"}
    told = rig.output(attempt_id, "stderr")
    for name, why in (("link", "leads out"), ("folder", "leads out"), ("pipe", "no file, folder or link")):
        assert any(f"{name}: it" in part and why in part for part in told.split(";")), told
    assert "folder/admin.token: it lies behind a link that leads out" in told
    assert SECRET not in rig.output(attempt_id) + told


SWAPS_CWD = """
import os, sys
own, other = sys.argv[1:]
os.rename(own, own + ".away")
os.symlink(other, own)
"""


def test_a_directory_that_the_work_replaces_by_a_link_gives_nothing_of_where_that_leads(rig: Rig, shared: Path) -> None:
    around, other = shared / "around", shared / "other"
    for folder in (around, around / "cwd", other):
        folder.mkdir()
        folder.chmod(0o777)
    (other / "model").write_text(SECRET)
    (other / "model").chmod(0o600)
    # By itself it cannot reach around its directory: another job of its user's does it.
    (around / "gate").touch()
    waits = "import os, sys, time\nopen('up', 'w')\nwhile not os.path.lexists('go'): time.sleep(0.01)"
    attempt_id = start(rig, "swapped", waits, cwd=str(around / "cwd"), outputs=["model", "up"])
    rig.node.run_until((around / "cwd" / "up").exists, what="it runs")
    job = rig.run(
        "swaps-it",
        command=["python3", "-c", SWAPS_CWD + "open(own + '.away/go', 'w')", str(around / "cwd"), str(other)],
        user_id=ANN,
        cwd=str(around),
    )
    assert job["state"] == "succeeded", said(rig, "swaps-it.1")
    rig.ended(attempt_id)
    assert not [path for path in rig.dir(attempt_id).outputs.rglob("*") if path.is_file()]
    assert "another directory lies where the work began" in rig.output(attempt_id, "stderr")


@pytest.mark.parametrize("where", ["the agent's", "around it", "the attempt's", "by a link of /proc"])
def test_a_directory_that_the_work_may_not_have_gives_nothing_and_gets_nothing(rig: Rig, where: str) -> None:
    name = f"refused{len(where)}"
    data = rig.paths.data_dir
    cwd, wanted = {
        "the agent's": (data, ["admin.token"]),
        "around it": (data.parent, [f"{data.name}/admin.token"]),
        "the attempt's": (rig.dir(f"{name}.1").path, ["spec.msgpack", "credential.json", "started"]),
        "by a link of /proc": (Path("/proc/self/cwd"), ["README.md", "pyproject.toml"]),
    }[where]
    fields = {"cwd": str(cwd), "outputs": wanted, "checkpoint": {"path": "made/here"}}
    job = rig.run(name, command=["true"], user_id=ANN, **fields)
    assert not [path for path in rig.dir(f"{name}.1").outputs.rglob("*") if path.is_file()]
    assert not os.path.exists("/made") and not (cwd / "made" / "here").exists()
    # Around the agent's files a uid of its own may be, and what a link of /proc means is each process's own.
    may_run = where == "by a link of /proc" or (where == "around it" and os.geteuid() == 0)
    assert job["state"] == "failed" or may_run, said(rig, f"{name}.1")


@is_root
def test_what_the_work_has_others_of_is_no_output_of_its(rig: Rig, shared: Path) -> None:
    (shared / "theirs").write_text("of others, and for everybody to read")
    wanted = [str(shared / "theirs").lstrip("/"), str(shared.parent).lstrip("/"), "proc/version", "etc/passwd"]
    job = rig.run("covered", command=["true"], user_id=ANN, cwd="/", outputs=wanted)
    assert job["state"] == "succeeded", said(rig, "covered.1")
    kept = rig.dir("covered.1").outputs
    assert {path.name for path in kept.rglob("*") if path.is_file()} == {"passwd"}
    assert rig.output("covered.1", "stderr").count("a folder that the work did not see") == 3
