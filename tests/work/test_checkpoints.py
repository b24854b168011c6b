"""Checkpoints of real attempts: what the directory holds is the job's, whoever dies that has to do with it."""

from __future__ import annotations

import errno
import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.files.blob_store import BlobStore
from actorgrid.actors.ledger.commands import CancelJob, CheckpointAttempt, EndAttempt, PreemptAttempt
from actorgrid.actors.work.checkpoint_keeper import _Copied
from actorgrid.actors.work.checkpoint_spool import leave, told, waiting
from actorgrid.checkpoints import CHECKPOINT_BYTES_MAX, HEAD_BYTES, READY_MARK, head_of, parse_head
from tests.work.rig import Rig, wait_for

SAVE = f"echo $n > ckpt/n.tmp; mv ckpt/n.tmp ckpt/n; touch ckpt/{READY_MARK}"
PATIENT = "while :; do sleep 0.02; done"
SHOW = "echo from $ACTORGRID_CHECKPOINT_FROM: $(cat ckpt/n $ACTORGRID_CHECKPOINT_DIR/n)"


def submit(rig: Rig, tmp_path: Path, line: str, every_s: float | None = None, **fields: Any) -> str:
    wish = {"path": "ckpt", **({} if every_s is None else {"every_s": every_s})}
    (tmp_path / "cwd").mkdir(exist_ok=True)
    rig.submit("a", command=["sh", "-c", line], cwd=str(tmp_path / "cwd"), checkpoint=wish, **fields)
    return rig.grant("a")


def say(go: Path) -> None:
    """Let the work go on that reads there; fails where it does not come to that."""

    def opened() -> int | None:
        try:
            return os.open(go, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            assert error.errno == errno.ENXIO, "nobody reads there yet"
            return None

    fd = wait_for(opened, what=f"the work reads {go.name}")
    os.write(fd, b"on\n")
    os.close(fd)


def entered(rig: Rig, attempt: int, number: int) -> str:
    """The digest of that checkpoint, once the job has it, or a later one of the attempt."""

    def found() -> bool:
        last = rig.job("a").get("last_checkpoint", {"attempt": 0, "number": 0})
        return bool((last["attempt"], last["number"]) >= (attempt, number))

    rig.node.run_until(found, 60.0, what="the checkpoint is entered")
    return str(rig.job("a")["checkpoint_digest"])


def blobs(rig: Rig) -> list[str]:
    return sorted(path.name for path in rig.paths.blobs_dir.iterdir())


def test_the_next_attempt_goes_on_from_what_the_mark_said_is_ready(rig: Rig, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    first = submit(
        rig,
        tmp_path,
        f"test -e ckpt/n && {{ {SHOW}; exit 0; }}; n=1; {SAVE}; read x < {go}; n=2; {SAVE}; read x < {go};"
        " echo 3 > ckpt/n; kill -9 $$",
        retries_left=1,
    )
    one = entered(rig, 1, 1)
    assert blobs(rig) == [one]
    with open(rig.paths.blobs_dir / one, "rb") as file:
        assert parse_head(file.read(HEAD_BYTES)) == (first, 1)
    say(go)
    two = entered(rig, 1, 2)
    rig.node.run_until(lambda: blobs(rig) == [two], what="the one before is dropped")
    say(go)
    job = rig.ended(first)
    # What came behind the mark was not said to be whole.
    assert job["state"] == "queued" and job["checkpoint_digest"] == two
    assert not os.path.lexists(tmp_path / "cwd" / "ckpt"), "the link goes with the attempt"
    job = rig.run("a")
    assert job["state"] == "succeeded", job["error"]
    assert rig.output("a.2") == "from 1: 2 2\n"


def test_with_an_interval_all_that_is_whole_is_taken_and_the_last_of_it_at_sigterm(rig: Rig, tmp_path: Path) -> None:
    save = "echo saved > ckpt/n; echo half > ckpt/m.partial; exit 0"
    line = f"test -e ckpt/n && {{ {SHOW}; ls ckpt; exit 0; }}; echo 1 > ckpt/first; trap '{save}' TERM; {PATIENT}"
    attempt_id = submit(rig, tmp_path, line, every_s=1, grace_s=30.0)
    entered(rig, 1, 1)
    token = rig.job("a")["attempts"][-1]["token"]
    rig.propose(PreemptAttempt(attempt_id, token, 30.0, "other", rig.term))
    job = rig.ended(attempt_id)
    assert (job["state"], job["attempts"][-1]["state"]) == ("queued", "preempted")
    assert job["last_checkpoint"]["number"] >= 2
    rig.run("a")
    assert rig.output("a.2") == "from 1: saved saved\nfirst\nn\n"


def test_a_killed_shim_and_a_killed_agent_lose_none_that_was_whole(rig: Rig, tmp_path: Path) -> None:
    line = f"test -e ckpt/n && {{ {SHOW}; exit 0; }}; n=1; {SAVE}; {PATIENT}"
    # No agent is there when it is whole, nor when the shim is killed.
    attempt_id = submit(rig, tmp_path, line)
    rig.running(attempt_id)
    rig.kill_manager()
    wait_for(lambda: waiting(rig.dir(attempt_id).path), what="the checkpoint waits")
    os.kill(rig.dir(attempt_id).shim_pid() or 0, signal.SIGKILL)
    rig.start_manager()
    job = rig.ended(attempt_id)
    assert job["attempts"][-1]["state"] == "lost" and job["state"] == "queued"
    assert job["last_checkpoint"]["number"] == 1
    assert rig.run("a")["state"] == "succeeded"
    assert rig.output("a.2") == "from 1: 1 1\n"


def test_what_an_attempt_leaves_that_is_over_is_refused_by_name(rig: Rig, tmp_path: Path) -> None:
    attempt_id = submit(rig, tmp_path, f"n=1; {SAVE}; {PATIENT}", retries_left=1)
    digest = entered(rig, 1, 1)
    folder = rig.dir(attempt_id).path
    rig.kill_manager()  # cut off: it does not hear that the ledger has ended its attempt
    leave(folder, 2, lambda file: file.write(b"stale"))
    token = rig.job("a")["attempts"][-1]["token"]
    rig.propose(EndAttempt(attempt_id, token, "lost", charge=False))
    rig.start_manager()
    rig.node.run_until(lambda: (told(folder) or (0,))[0] == 2, 60.0, what="it is told")
    answer = told(folder)
    assert answer is not None and answer.error is not None and answer.error["code"] == "StaleToken"
    assert waiting(folder) == []
    assert rig.job("a")["checkpoint_digest"] == digest


def test_where_something_else_lies_the_attempt_is_refused_and_nothing_is_touched(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "cwd" / "ckpt").mkdir(parents=True)
    (tmp_path / "cwd" / "ckpt" / "precious").write_text("mine")
    job = rig.ended(submit(rig, tmp_path, "true"))
    assert job["state"] == "failed"
    assert "something else lies where the checkpoint directory is to be" in job["error"]["message"]
    assert (tmp_path / "cwd" / "ckpt" / "precious").read_text() == "mine"


def test_hostile_things_in_the_folder_of_the_attempt_hurt_nobody(rig: Rig, tmp_path: Path) -> None:
    attempt_id = submit(rig, tmp_path, f"n=1; {SAVE}; {PATIENT}")
    folder = rig.dir(attempt_id).path
    entered(rig, 1, 1)  # what packs it is done with the folder
    rig.node.run_until(lambda: told(folder) is not None, what="it is told")
    (folder / "checkpoint.told").unlink()
    (folder / "checkpoint.told").symlink_to("/etc/passwd")
    os.mkfifo(folder / "checkpoint-7.new")
    rig.node.run_until(lambda: (told(folder) or (0,))[0] == 7, 60.0, what="the FIFO is refused")
    answer = told(folder)
    assert answer is not None and answer.error is not None and answer.error["code"] == "NotARegularFile"
    (folder / "checkpoint-8.new" / "within").mkdir(parents=True)
    rig.node.run_until(lambda: (told(folder) or (0,))[0] == 8, 60.0, what="the directory is refused")
    leave(folder, 9, lambda file: file.write(io.BytesIO(b"x").read()))
    rig.node.run_until(lambda: (told(folder) or (0,))[0] == 9, 60.0, what="the next one is taken")
    assert waiting(folder) == [8], "what cannot be removed is looked at once"
    # What was left was no archive: the next attempt says so, and the ledger has what it was given.
    rig.propose(PreemptAttempt(attempt_id, rig.job("a")["attempts"][-1]["token"], 0.0, "other", rig.term))
    rig.ended(attempt_id)
    job = rig.run("a")
    assert job["state"] == "failed" and "the checkpoint is no archive" in job["error"]["message"]
    assert (job["last_checkpoint"]["attempt"], job["last_checkpoint"]["number"]) == (1, 9)


def test_a_mark_just_before_the_end_counts_and_what_succeeds_leaves_none(rig: Rig, tmp_path: Path) -> None:
    line = f"test -e ckpt/n && {{ {SHOW}; n=9; {SAVE}; exit 0; }}; truncate -s 32M ckpt/big; n=1; {SAVE}; kill -9 $$"
    job = rig.ended(submit(rig, tmp_path, line, retries_left=1))
    assert job["attempts"][0]["signal"] == 9
    assert job["last_checkpoint"]["attempt"] == 1 and job["last_checkpoint"]["size_bytes"] > 2**25
    job = rig.run("a")
    assert job["state"] == "succeeded" and job["last_checkpoint"]["attempt"] == 1
    assert rig.output("a.2") == "from 1: 1 1\n"


def test_with_a_full_disk_the_work_goes_on_and_the_one_before_stays(rig: Rig, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    attempt_id = submit(rig, tmp_path, f"n=1; {SAVE}; read x < {go}; n=2; {SAVE}; {PATIENT}")
    one = entered(rig, 1, 1)
    rig.context.settings.performance.min_free_bytes = 2**60
    say(go)
    folder = rig.dir(attempt_id).path
    rig.node.run_until(lambda: (told(folder) or (0,))[0] == 2, 60.0, what="it is told")
    answer = told(folder)
    assert answer is not None and answer.error is not None and answer.error["code"] == "DiskFull"
    assert rig.job("a")["last_checkpoint"]["number"] == 1 and blobs(rig) == [one] and rig.marked(attempt_id)


def test_only_checkpoints_of_the_job_are_dropped_whatever_a_host_has_entered(rig: Rig, tmp_path: Path) -> None:
    attempt_id = submit(rig, tmp_path, PATIENT)
    rig.running(attempt_id)
    payload = rig.blob(b"of another job")
    own = BlobStore(rig.paths.blobs_dir).put_file(io.BytesIO(b"x"), head_of(attempt_id, 2), 1)
    token = rig.job("a")["attempts"][-1]["token"]
    for number, digest in enumerate((payload, own, "f" * 64), 1):
        rig.propose(CheckpointAttempt(attempt_id, token, digest, number, 1))
    rig.node.run_until(lambda: own not in blobs(rig), what="the job's own is dropped")
    assert blobs(rig) == [payload]


def test_a_copy_that_was_swept_before_it_could_be_entered_is_made_again(rig: Rig, tmp_path: Path) -> None:
    attempt_id = submit(rig, tmp_path, PATIENT)
    rig.running(attempt_id)
    rig.manager._attempts.checkpoints._copied[attempt_id] = _Copied(1, "0" * 64, 4)
    leave(rig.dir(attempt_id).path, 1, lambda file: file.write(b"here"))
    assert entered(rig, 1, 1) in blobs(rig)


def test_the_last_one_waits_for_room_on_a_full_disk(rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    attempt_id = submit(rig, tmp_path, f"n=1; {SAVE}; read x < {go}; n=2; {SAVE}; kill -9 $$", retries_left=1)
    one = entered(rig, 1, 1)
    # What it takes next is first tried when nothing of the work lives any more.
    rig.context.settings.performance.min_free_bytes = 2**60
    say(go)
    rig.node.run_until(lambda: "waits for room" in caplog.text, 60.0, what="it waits")
    assert blobs(rig) == [one] and rig.job("a")["state"] == "running"
    rig.context.settings.performance.min_free_bytes = 0
    job = rig.ended(attempt_id)
    assert job["last_checkpoint"]["number"] >= 2 and job["checkpoint_digest"] != one


def test_a_cancel_while_the_last_one_is_packed_ends_it(rig: Rig, tmp_path: Path) -> None:
    line = f"truncate -s {CHECKPOINT_BYTES_MAX - 2**20} ckpt/big; n=1; {SAVE}; kill -9 $$"
    attempt_id = submit(rig, tmp_path, line, retries_left=1)
    draft = rig.dir(attempt_id).path / "checkpoint.draft"
    rig.running(attempt_id)
    rig.node.run_until(draft.exists, what="it packs")
    rig.propose(CancelJob("a", "me"))
    job = rig.ended(attempt_id)
    assert job["state"] == "cancelled" and "last_checkpoint" not in job
    assert not draft.exists()
