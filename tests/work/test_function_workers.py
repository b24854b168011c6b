"""Function jobs that one process serves, one after another: what they share, and what they do not."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from actorgrid.actors.ledger.commands import CancelJob
from actorgrid.actors.work import function_workers
from actorgrid.import_environment import of_this_process, with_environment
from tests.work.rig import PYTHON, Rig, alive, wait_for
from tests.work.test_functions import value_of

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One host for all that kill no agent. Its idle processes stay, however long a call takes on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function_workers, "IDLE_S", 600.0)
        rig = Rig(tmp_path_factory.mktemp("shared") / "data", work__max_isolation_s=600.0)
        rig.start_manager()
        yield rig
        rig.close()


@pytest.fixture
def user() -> str:
    """A user of the test's own: no worker of another test's serves its calls."""
    return f"user{next(NUMBERS)}"


def by_value(function: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(function))


def pid() -> int:
    return os.getpid()


def served(rig: Rig, user: str, function: Callable[..., Any] = pid, *args: Any, **fields: Any) -> Any:
    """Run a function job that succeeds, and give its value."""
    job_id = ran(rig, user, function, *args, **fields)
    assert rig.job(job_id)["state"] == "succeeded", rig.job(job_id)
    return value_of(rig, f"{job_id}.1")


def ran(rig: Rig, user: str, function: Callable[..., Any] = pid, *args: Any, **fields: Any) -> str:
    """Run a function job to its end, and give its id."""
    job_id = begun(rig, user, function, *args, **fields)
    rig.ended(f"{job_id}.1")
    return job_id


def begun(rig: Rig, user: str, function: Callable[..., Any], *args: Any, **fields: Any) -> str:
    """Submit and grant a function job, and give its id."""
    job_id = f"j{next(NUMBERS)}"
    gpus = list(range(fields.get("resources", {}).get("gpu_count", 0)))
    rig.submit_function(job_id, by_value(function), *args, **{"user_id": user, **fields})
    rig.grant(job_id, gpus)
    return job_id


def test_one_process_serves_calls_of_one_user_each_with_its_own_output_directory_and_variables(
    shared: Rig, user: str, tmp_path: Path
) -> None:
    def look(said: str) -> tuple[Any, ...]:
        import sys

        sys.path.append(f"/nowhere/{said}")
        print(said)
        os.write(2, said.encode())
        left, umask = os.environ.get("LEFT"), os.umask(0o777)
        os.environ["LEFT"] = said
        names = ("ACTORGRID_JOB_ID", "ACTORGRID_TOKEN", "ACTORGRID_ATTEMPT")
        return os.getpid(), os.getcwd(), [os.environ.get(name) for name in names], list(sys.path), left, umask

    (tmp_path / "a").mkdir()
    a = ran(shared, user, look, "one", cwd=str(tmp_path / "a"))
    b = ran(shared, user, look, "two", cwd=str(tmp_path))
    first, second = value_of(shared, f"{a}.1"), value_of(shared, f"{b}.1")
    assert first[0] == second[0], "the same process"
    assert (first[1], second[1]) == (str(tmp_path / "a"), str(tmp_path))
    assert (first[2][0], first[2][2], second[2][0], second[2][2]) == (a, f"{a}.1", b, f"{b}.1")
    assert first[2][1] != second[2][1], "each has a token of its own"
    assert "/nowhere/one" not in second[3] and second[4:] == (None, 0o022)
    assert (shared.output(f"{a}.1"), shared.output(f"{b}.1")) == ("one\n", "two\n")
    assert (shared.output(f"{a}.1", "stderr"), shared.output(f"{b}.1", "stderr")) == ("one", "two")
    status = shared.dir(f"{b}.1").read_status()
    assert status is not None and (status["reason"], status["exit_code"]) == ("exited", 0)
    assert not (shared.dir(f"{b}.1").path / "contained").exists() and shared.dir(f"{b}.1").shim_pid() is None


def test_a_call_of_another_user_environment_demand_or_pool_has_another_process(shared: Rig, user: str) -> None:
    first = served(shared, user)
    others = ({"user_id": f"{user}-b"}, {"env": {"A": "1"}}, {"resources": {"cpu_milli": 500}}, {"pool": "io_bound"})
    assert first not in [served(shared, user, **other) for other in others]
    assert served(shared, user) == first


def test_calls_of_clients_that_import_from_different_places_share_no_process(
    shared: Rig, user: str, tmp_path: Path
) -> None:
    def ask() -> tuple[int, str]:
        import the_same_name  # type: ignore[import-not-found]

        return os.getpid(), the_same_name.SAID

    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "the_same_name.py").write_text(f"SAID = {name!r}\n")
    for name in ("one", "two", "two"):
        places = of_this_process()._replace(before=(str(tmp_path / name),), directory="")
        payload = with_environment(cloudpickle.dumps((by_value(ask), (), {})), places)
        job_id = f"j{next(NUMBERS)}"
        digest = shared.blob(payload)
        shared.submit(job_id, kind="function", command=[], payload_digest=digest, python=PYTHON, user_id=user)
        found.append(value_of(shared, f"{shared.run(job_id)['job_id']}.1"))
    assert [said for _, said in found] == ["one", "two", "two"]
    assert found[0][0] != found[1][0] == found[2][0]


def test_what_needs_a_process_of_its_own_has_one(shared: Rig, user: str) -> None:
    # A limit of memory, or a GPU: its shim's folder is the attempt's, no worker's.
    for resources in ({"memory_mib": 500}, {"gpus": 1.0, "gpu_count": 1, "gpu_milli": 1000}):
        job_id = ran(shared, user, resources=resources)
        assert shared.job(job_id)["state"] == "succeeded"
        assert "served_by" not in (shared.dir(f"{job_id}.1").read_spec() or {})
    spec = shared.dir(f"{ran(shared, user)}.1").read_spec() or {}
    assert spec["served_by"].startswith("functions-")


def leaves_thread() -> int:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return os.getpid()


def leaves_descriptor() -> int:
    os.dup(1)
    return os.getpid()


def ignores_signal() -> int:
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return os.getpid()


def lowers_limit() -> int:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    return os.getpid()


def test_a_process_that_a_call_has_changed_serves_no_other(shared: Rig, user: str) -> None:
    seen: set[int] = set()
    for spoil in (leaves_thread, leaves_descriptor, ignores_signal, lowers_limit):
        changed = served(shared, user, spoil)
        assert changed not in seen and not alive(changed)
        seen.add(changed)


def test_what_a_call_leaves_running_is_ended_with_it_before_its_end_is_told(shared: Rig, user: str) -> None:
    def leave() -> tuple[int, int]:
        import subprocess
        import sys

        deaf = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
        held = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
        assert held.stdout is not None
        held.stdout.readline()
        held.stdout.close()
        return os.getpid(), held.pid

    worker, child = served(shared, user, leave)
    assert not alive(child) and not alive(worker)
    assert served(shared, user) != worker


def test_a_call_that_fails_is_the_last_of_its_process(shared: Rig, user: str) -> None:
    def fail() -> None:
        raise KeyError("no")

    first = served(shared, user)
    job_id = ran(shared, user, fail)
    job = shared.job(job_id)
    assert job["state"] == "failed" and "KeyError" in job["error"]["message"]
    assert "KeyError" in shared.output(f"{job_id}.1", "stderr")
    assert served(shared, user) != first
    job = shared.job(ran(shared, user, cwd="/no/such/folder"))
    assert job["state"] == "failed" and "cannot enter /no/such/folder" in job["error"]["message"]


def waits(flag: Path) -> None:
    import signal

    flag.write_text(str(os.getpid()))
    signal.pause()


def test_a_killed_process_fails_the_call_it_serves_and_none_before_or_after(
    shared: Rig, user: str, tmp_path: Path
) -> None:
    before, flag = ran(shared, user), tmp_path / "flag"
    first = value_of(shared, f"{before}.1")
    job_id = begun(shared, user, waits, flag)
    shared.node.run_until(lambda: flag.exists() and flag.read_text(), what="the function")
    assert int(flag.read_text()) == first
    os.kill(first, signal.SIGKILL)
    job = shared.ended(f"{job_id}.1")
    assert job["state"] == "failed" and job["attempts"][0]["signal"] == signal.SIGKILL
    assert served(shared, user) != first
    assert shared.job(before)["state"] == "succeeded"


def test_a_killed_shim_loses_its_call_alone_and_leaves_nothing_running(shared: Rig, user: str, tmp_path: Path) -> None:
    before, flag = ran(shared, user), tmp_path / "flag"
    job_id = begun(shared, user, waits, flag, retries_left=1)
    shared.node.run_until(lambda: flag.exists() and flag.read_text(), what="the function")
    shim = shared.dir(f"{job_id}.1").shim_pid()
    assert shim is not None
    os.kill(shim, signal.SIGKILL)
    job = shared.ended(f"{job_id}.1")
    assert job["attempts"][0]["state"] == "lost" and job["state"] == "queued"
    assert not alive(int(flag.read_text()))
    assert shared.job(before)["state"] == "succeeded"


def test_a_call_past_its_time_is_ended_and_so_is_its_process(shared: Rig, user: str, tmp_path: Path) -> None:
    first = served(shared, user, max_execution_time_s=30.0)
    job = shared.job(ran(shared, user, waits, tmp_path / "flag", max_execution_time_s=0.2))
    assert job["error"]["code"] == "TaskTimedOut"
    assert not alive(first)


def test_a_cancelled_call_is_ended_with_its_process(shared: Rig, user: str, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    job_id = begun(shared, user, waits, flag)
    shared.node.run_until(lambda: flag.exists() and flag.read_text(), what="the function")
    shared.propose(CancelJob(job_id, user))
    assert shared.ended(f"{job_id}.1")["state"] == "cancelled"
    assert not alive(int(flag.read_text()))


def test_a_module_of_the_users_that_has_changed_is_imported_anew(shared: Rig, user: str, tmp_path: Path) -> None:
    module = tmp_path / "of_the_user.py"
    env = {"PYTHONPATH": str(tmp_path)}

    def ask() -> tuple[int, str]:
        import of_the_user  # type: ignore[import-not-found]

        return os.getpid(), of_the_user.SAID

    module.write_text("SAID = 'old'\n")
    first = served(shared, user, ask, env=env)
    assert served(shared, user, ask, env=env) == first == (first[0], "old")
    module.write_text("SAID = 'newer'\n")
    third = served(shared, user, ask, env=env)
    assert third[1] == "newer" and third[0] != first[0]


def reads(begun: Path, go: Path) -> int:
    begun.touch()
    with open(go) as file:
        file.read()
    return os.getpid()


def test_a_call_goes_on_without_its_agent_and_is_taken_up_by_the_next(rig: Rig, user: str, tmp_path: Path) -> None:
    first, flag, go = served(rig, user), tmp_path / "flag", tmp_path / "go"
    os.mkfifo(go)
    job_id = begun(rig, user, reads, flag, go)
    rig.node.run_until(flag.exists, what="the function")
    rig.kill_manager()
    manager = rig.start_manager()
    rig.node.run_until(lambda: [each.state for each in manager._attempts.live.values()] == ["running"], what="adoption")
    go.write_text("go")
    job = rig.ended(f"{job_id}.1")
    assert job["state"] == "succeeded" and value_of(rig, f"{job_id}.1") == first
    assert [attempt["number"] for attempt in job["attempts"]] == [1]
    # Nobody hands it more: it leaves, and the next call has another.
    wait_for(lambda: not alive(first), what="the worker's end")
    assert served(rig, user) != first


@pytest.mark.system
def test_a_call_that_ends_while_the_agent_is_away_is_told_by_the_next(rig: Rig, user: str, tmp_path: Path) -> None:
    flag, go = tmp_path / "flag", tmp_path / "go"
    os.mkfifo(go)
    job_id = begun(rig, user, reads, flag, go)
    rig.node.run_until(flag.exists, what="the function")
    rig.kill_manager()
    go.write_text("go")
    wait_for(lambda: rig.dir(f"{job_id}.1").read_status(), what="the status")
    rig.start_manager()
    assert rig.ended(f"{job_id}.1")["state"] == "succeeded"
    # And one that is idle when its agent goes, goes with it.
    first = served(rig, user)
    rig.kill_manager()
    wait_for(lambda: not alive(first), what="the worker's end")


@pytest.mark.system
def test_a_process_serves_no_more_calls_than_it_may(make_rig: Any, user: str) -> None:
    rig = make_rig(work__calls_per_process=2)
    rig.start_manager()
    pids = [served(rig, user) for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    rig.context.settings.work.calls_per_process = 1
    assert served(rig, user) != served(rig, user)


def test_a_call_that_prints_nothing_leaves_six_files_in_its_folder(shared: Rig, user: str) -> None:
    first, second = served(shared, user), ran(shared, user)
    directory = shared.dir(f"{second}.1")
    assert value_of(shared, f"{second}.1") == first
    inodes = {path.stat().st_ino: path.name for path in directory.path.iterdir()}
    names = {path.name for path in directory.path.iterdir()}
    assert names == {"lock", "started", "spec.msgpack", "status.msgpack", "result.bin", "reported"}
    assert len(inodes) == 5, "the mark that it has begun is the lock, by another name"
    assert directory.read_output("stdout") == directory.read_output("stderr") == b""
