"""Every piece of work knows the token of its grant, by which what it writes to can tell it from its successor."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorgrid
from actorgrid.client.lock_hold import LockToken
from actorgrid.errors import BadRequest, OutsideTask
from actorgrid.fencing import FencingToken, is_fencing_token
from actorgrid.transports.task_frames import decode_result
from tests.work.rig import RawClient, Rig

TOKENS = st.builds(FencingToken, st.integers(0, 10**10 - 1), st.integers(0, 2**48 - 1))

ASK = """
import json, actorgrid
task = actorgrid.current_task()
print(json.dumps([str(task.token), task.attempt_number, task.attempt_id, task.job_id, task.lease_id]))
"""


@given(TOKENS, TOKENS)
def test_pairs_numbers_and_texts_compare_alike(one: FencingToken, other: FencingToken) -> None:
    assert (one < other) == (int(one) < int(other)) == (str(one) < str(other))
    assert FencingToken.of(int(one)) == FencingToken.parse(str(one)) == one
    assert is_fencing_token(f"{one}")
    assert pickle.loads(pickle.dumps(one)) == one


OTHER = ["", "1-2", "0000000001-00000000000004", "\u0660" * 10 + "-" + "\u0660" * 15, "agk1.a.b"]


@pytest.mark.parametrize("text", OTHER)
def test_other_text_is_no_token(text: str) -> None:
    assert not is_fencing_token(text)
    with pytest.raises(BadRequest, match="10 digits"):
        FencingToken.parse(text)


def test_locks_and_work_have_the_same_kind_of_token() -> None:
    assert LockToken is FencingToken is actorgrid.FencingToken


def test_outside_of_work_there_is_no_current_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "agk1.wnpx6xcu.jzmk"):
        monkeypatch.setenv("ACTORGRID_TOKEN", value)
        with pytest.raises(OutsideTask, match="runs no task"):
            actorgrid.current_task()
    monkeypatch.setenv("ACTORGRID_TOKEN", str(FencingToken(1, 2)))
    monkeypatch.setenv("ACTORGRID_ATTEMPT_NUMBER", "first")
    with pytest.raises(OutsideTask, match="ATTEMPT_NUMBER"):
        actorgrid.current_task()


def test_asking_loads_nothing_of_the_client() -> None:
    program = "import sys, actorgrid; actorgrid.current_task; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    ours = {name for name in loaded if name.startswith("actorgrid")}
    assert ours == {"actorgrid", "actorgrid.errors", "actorgrid.fencing", "actorgrid.task_context"}


def test_each_attempt_of_a_command_has_a_greater_token(rig: Rig) -> None:
    program = f"{ASK}\nraise SystemExit(1)"
    rig.submit("c", command=[sys.executable, "-c", program], retries_left=1, env={"ACTORGRID_TOKEN": "of the user"})
    rig.run("c")
    rig.run("c")
    first, second = (json.loads(rig.output(f"c.{number}")) for number in (1, 2))
    assert first[1:] == [1, "c.1", "c", None]
    assert second[1:] == [2, "c.2", "c", None]
    assert first[0] < second[0]
    recorded = [str(FencingToken(*attempt["token"])) for attempt in rig.job("c")["attempts"]]
    assert [first[0], second[0]] == recorded


def test_a_function_and_its_children_know_their_grant(rig: Rig) -> None:
    def ask() -> tuple[actorgrid.CurrentTask, str]:
        child = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
        return actorgrid.current_task(), json.loads(child.stdout)[0]

    rig.submit_function("f", cloudpickle.loads(cloudpickle.dumps(ask)))
    assert rig.run("f")["state"] == "succeeded"
    value = decode_result(rig.dir("f.1").result.read_bytes()).value
    assert value is not None
    task, childs = pickle.loads(value)
    assert task.token == FencingToken(*rig.job("f")["attempts"][0]["token"])
    assert (task.attempt_number, task.attempt_id, task.job_id, task.lease_id) == (1, "f.1", "f", None)
    assert childs == str(task.token)


def test_session_tasks_have_the_token_of_their_lease(rig: Rig, tmp_path: Path) -> None:
    def ask() -> actorgrid.CurrentTask:
        return actorgrid.current_task()

    ask.__module__ = "__main__"
    granted = {}
    for name in ("L1", "L2"):
        grant = rig.lease(name)
        with RawClient(grant) as client:
            client.welcome()
            granted[name] = client.call(ask)
        assert granted[name].token == FencingToken(*grant["token"])
        assert (granted[name].lease_id, granted[name].job_id) == (name, None)
        assert (granted[name].attempt_id, granted[name].attempt_number) == (grant["worker_id"], 1)
        rig.release(name)
        rig.node.run_until(lambda: not rig.manager._leases.known(), what="the lease to be gone")  # type: ignore[union-attr]
    assert granted["L1"].token < granted["L2"].token
