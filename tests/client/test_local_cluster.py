from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.client.local_cluster import LocalCluster
from actorgrid.client.task import default_client
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    DependencyFailed,
    MemoryLimitExceeded,
    StartFailed,
    StateTypeConflict,
    TaskFailed,
    TaskTimedOut,
    TooManyGpus,
    UnknownJob,
    UnknownKey,
    WorkerLost,
    WrongState,
)
from tests.client.stand_in import wait_until
from tests.processes import server_below


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(gpus=8) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Client:
    return cluster.client()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def add(a: int, b: int) -> int:
    return a + b


def fail_with(text: str) -> None:
    raise KeyError(text)


@actorgrid.task(gpus=0.25, gpu_memory="2GiB", retries=1)
def devices() -> str:
    return os.environ.get("ACTORGRID_DEVICES", "")


@actorgrid.task
def greet(name: str, mark: str = "!") -> str:
    return f"hello {name}{mark}"


# -- commands


def test_a_command_gives_its_status_and_output(client: Client) -> None:
    done = client.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.exit_code, done.stdout, done.stderr, done.ok) == (3, b"out\n", b"err\n", False)
    assert client.run(["cat"], stdin=b"\x00fed").stdout == b"\x00fed"


def test_a_command_sees_its_directory_and_environment(client: Client, tmp_path: Path) -> None:
    done = client.run(["sh", "-c", "pwd; echo $COLOUR"], cwd=tmp_path, env={"COLOUR": "blue"}, check=True)
    assert done.stdout.decode().split() == [str(tmp_path), "blue"]


def test_check_raises_for_a_command_that_fails(client: Client) -> None:
    with pytest.raises(TaskFailed):
        client.run(["false"], check=True)
    with pytest.raises(BadRequest, match="list of words"):
        client.run("ls")


def test_a_command_past_its_limit_is_stopped(client: Client) -> None:
    with pytest.raises(TaskTimedOut):
        client.run(["sleep", "60"], timeout=0.3, check=True)


def test_more_gpus_than_exist_are_refused_at_once(client: Client) -> None:
    with pytest.raises(TooManyGpus):
        client.run(["true"], gpus=64)
    with pytest.raises(TooManyGpus):
        client.submit(abs, -1, gpus=64).result(30)
    with pytest.raises(TooManyGpus):
        client.submit(abs, -1, gpus=64, durable=True).result(30)


# -- jobs


def test_a_job_is_listed_explained_followed_and_cancelled(client: Client) -> None:
    job_id = client.submit_job(command=["sh", "-c", "echo begun; exec sleep 60"], name="sleeper")["job_id"]
    pieces = client.logs(job_id, follow=True)
    assert next(pieces) == b"begun\n"
    assert job_id in [job["job_id"] for job in client.jobs(state="running")]
    assert client.why(job_id)["state"] == "running"
    assert client.cancel(job_id)
    assert client.wait(job_id, 30)["state"] == "cancelled"
    assert list(pieces) == []
    assert not client.cancel(client.run(["true"]).job_id)


def test_the_same_task_id_stays_one_job(client: Client) -> None:
    first = client.submit_job(command=["true"], task_id="only-once")
    again = client.submit_job(command=["true"], task_id="only-once")
    assert (first["duplicate"], again["duplicate"]) == (False, True)


def test_an_unknown_job_is_said_to_be_unknown(client: Client) -> None:
    with pytest.raises(UnknownJob):
        client.job("nothing")
    with pytest.raises(UnknownJob):
        client.job_future("nothing").result(60)


# -- durable functions


def test_a_durable_function_is_a_job_with_a_value(client: Client) -> None:
    future = client.submit(add, 1, 2, durable=True, name="sum")
    assert future.accepted(20)  # type: ignore[attr-defined]
    assert future.result(30) == 3
    job_id = future.job_id  # type: ignore[attr-defined]
    assert client.result(job_id) == 3
    assert client.job(job_id)["name"] == "sum"
    assert client.job_future(job_id).result(60) == 3


def test_jobs_passed_to_jobs_become_their_values(client: Client) -> None:
    left, right = client.submit(add, 1, 2, durable=True), client.submit(add, 3, 4, durable=True)
    total = client.submit(sum, [left, right], durable=True)
    assert total.result(30) == 10
    assert len(client.job(total.job_id)["depends_on"]) == 2  # type: ignore[attr-defined]


def test_a_failed_job_carries_its_exception_and_fails_those_that_need_it(client: Client) -> None:
    bad = client.submit(fail_with, "missing", durable=True)
    after = client.submit(add, bad, 1, durable=True)
    with pytest.raises(TaskFailed, match="missing") as caught:
        bad.result(30)
    assert isinstance(caught.value, KeyError)
    with pytest.raises(DependencyFailed):
        after.result(30)


def test_a_refused_job_does_not_refuse_its_neighbours(client: Client) -> None:
    futures = [client.submit(add, n, n, durable=True, gpus=64 if n == 2 else 0) for n in range(4)]
    assert isinstance(futures[2].exception(30), TooManyGpus)
    with pytest.raises(TooManyGpus):
        futures[2].accepted(1)  # type: ignore[attr-defined]
    assert [f.result(30) for n, f in enumerate(futures) if n != 2] == [0, 2, 6]


def test_many_durable_functions_come_back(client: Client) -> None:
    assert list(client.map(add, range(20), range(20), durable=True)) == [2 * n for n in range(20)]


def test_results_that_are_small_are_given_together_and_are_those_that_are_given_alone(client: Client) -> None:
    fine, empty = client.submit(add, 1, 2, durable=True), client.submit(print, durable=True)
    bad, large = client.submit(fail_with, "gone", durable=True), client.submit(bytes, 40_000, durable=True)
    command = client.run(["true"]).job_id
    for future in (fine, empty, bad, large):
        future.exception(60)
    ids = [future.job_id for future in (fine, empty, bad, large)]  # type: ignore[attr-defined]
    answer = client.http.post("/api/jobs/results", {"job_ids": [*ids, ids[0], command, "nobody"]})["results"]
    told = {each["job_id"]: each["result"] for each in answer}
    assert list(told) == [*ids, command, "nobody"]
    alone = [base64.b64encode(client.http.get(f"/api/jobs/{name}/result")).decode() for name in ids[:3]]
    assert [told[name] for name in ids[:3]] == alone
    assert told[ids[3]] is told[command] is told["nobody"] is None
    for wrong in ([], [f"j{number}" for number in range(65)]):
        with pytest.raises(BadRequest):
            client.http.post("/api/jobs/results", {"job_ids": wrong})


def test_a_host_that_gives_results_one_by_one_gives_them_all(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an earlier version does: there is no such path at it."""
    other, asked = Client(cluster.url, cluster.token), []
    post = other.http.post

    def of_before(path: str, *given: Any, **named: Any) -> Any:
        if path == "/api/jobs/results":
            asked.append(path)
            return post("/api/jobs/results/none", *given, **named)
        return post(path, *given, **named)

    monkeypatch.setattr(other.http, "post", of_before)
    with other:
        assert list(other.map(add, range(150), range(150), durable=True, cpus=0.05)) == [2 * n for n in range(150)]
    assert len(asked) <= 4, "each of its fetchers may have asked once before it is known"


def test_a_waiting_job_is_cancelled_through_its_future(client: Client) -> None:
    blocker = client.submit(time.sleep, 60, durable=True)
    waiting = client.submit(add, 1, 2, durable=True, depends_on=[blocker])
    assert waiting.accepted(20)  # type: ignore[attr-defined]
    assert waiting.cancel()
    assert blocker.cancel()
    assert concurrent.futures.wait([blocker, waiting], 30).not_done == set()
    assert waiting.cancelled()


def test_jobs_outlive_their_client(cluster: LocalCluster, client: Client) -> None:
    other = Client(cluster.url, cluster.token)
    future = other.submit(add, 20, 22, durable=True)
    other.close()
    assert client.result(future.job_id, 30) == 42  # type: ignore[attr-defined]


# -- session tasks on a real host


def test_a_gpu_task_sees_exactly_its_device(client: Client) -> None:
    seen = devices.submit(client=client).result(30)
    assert seen and "," not in seen
    assert len(devices.options(gpus=2).submit(client=client).result(30).split(",")) == 2
    assert client.submit(lambda: os.environ.get("ACTORGRID_DEVICES", "")).result(30) == ""


def test_session_tasks_in_thousands(client: Client) -> None:
    assert list(client.map(add, range(3000), range(3000))) == [2 * n for n in range(3000)]


def fill_memory() -> None:
    held = []
    while True:
        held.append(bytearray(10_000_000))


def test_a_session_task_over_its_memory_is_told_so_by_the_same_name_as_a_job(client: Client) -> None:
    with pytest.raises(MemoryLimitExceeded, match=r"more memory than it asked for \(memory=\)") as caught:
        client.submit(fill_memory, memory="200MiB", retries=0).result(120)
    assert isinstance(caught.value, WorkerLost) and isinstance(caught.value, MemoryError)
    assert caught.value.hint == "ask for more with memory="


def test_a_decorated_function_is_itself_here_and_a_task_there(cluster: LocalCluster) -> None:
    assert greet("you") == "hello you!"
    assert greet.submit("there", mark="?").result(30) == "hello there?"
    assert list(greet.map(["a", "b"])) == ["hello a!", "hello b!"]
    assert default_client().url == cluster.url


def test_the_async_client_has_the_same_verbs(cluster: LocalCluster) -> None:
    async def use() -> list[object]:
        async with await actorgrid.AsyncClient.connect(cluster.url, cluster.token) as client:
            values = [value async for value in client.map(abs, [-1, -2])]
            done = await client.run(["echo", "hi"])
            await client.state.put("async/key", {"a": 1})
            output = [piece async for piece in client.logs(done.job_id)]
            return [
                await client.submit(abs, -3),
                values,
                done.exit_code,
                output,
                await client.state.get("async/key"),
                len(await client.gpus()),
                (await client.wait(done.job_id))["state"],
            ]

    assert asyncio.run(use()) == [3, [1, 2], 0, [b"hi\n"], {"a": 1}, 8, "succeeded"]


@pytest.mark.parametrize("name", ["gateway", "worker_manager", "consensus"])
def test_tasks_do_not_notice_the_death_of(cluster: LocalCluster, client: Client, name: str) -> None:
    client.submit(abs, -1).result(30)
    long = client.submit(time.sleep, 1.0)
    os.kill(server_below(cluster.pid, name), signal.SIGKILL)
    assert client.submit(abs, -2).result(30) == 2
    assert long.result(30) is None
    assert client.run(["echo", "again"]).stdout == b"again\n"


# -- shared state


def test_shared_state_of_every_type(client: Client) -> None:
    state = client.state
    assert state.put("t/register", [1, "two"]) == [1, "two"]
    assert state.get("t/register") == [1, "two"]
    assert state.increment("t/counter", 5) == 5
    assert state.decrement("t/counter", 2) == 3
    assert state.increment("t/grows", type="g_counter") == 1
    state.add_to_set("t/set", "a")
    state.add_to_set("t/set", "b")
    assert state.remove_from_set("t/set", "a") == ["b"]
    assert state.put_field("t/map", "x", 1) == {"x": 1}
    assert state.enable("t/flag") is True
    assert state.disable("t/flag") is False
    assert [entry["key"] for entry in state.list("t/")] == [
        "t/counter", "t/flag", "t/grows", "t/map", "t/register", "t/set",
    ]  # fmt: skip
    with pytest.raises(StateTypeConflict):
        state.increment("t/register")
    with pytest.raises(UnknownKey):
        state.get("t/none")
    assert state.get("t/none", None) is None
    assert state.put("t/odd key/ä?#%", 1) == 1
    assert state.get("t/odd key/ä?#%") == 1


def test_watching_tells_of_changes_under_the_prefix(client: Client) -> None:
    client.state.put("w/a", 1)
    changes = client.state.watch("w/", initial=True)
    assert next(changes)["value"] == 1
    client.state.put("other", 1)
    client.state.put("w/b", 2)
    second = next(changes)
    assert (second["key"], second["type"], second["value"]) == ("w/b", "lww_register", 2)
    changes.close()  # type: ignore[attr-defined]


# -- the cluster


def test_the_cluster_describes_itself(client: Client) -> None:
    assert len(client.gpus()) == 8
    assert client.hosts()[0]["hostname"]
    assert client.cluster()["gpus"] == 8
    assert client.performance()["active_tasks"] >= 0
    assert "consensus" in client.inspect()["servers"]
    assert client.set_config("work.kill_grace_s", 4.0)["value"] == 4.0
    assert {s["key"]: s["value"] for s in client.config()}["work.kill_grace_s"] == 4.0


def test_allocations_show_who_holds_what(client: Client) -> None:
    job_id = client.submit_job(command=["sleep", "60"], gpus=0.5)["job_id"]
    wait_until(lambda: client.job(job_id)["state"] == "running")
    held = [a for a in client.allocations() if a["owner"].get("job_id") == job_id]
    client.cancel(job_id)
    assert len(held) == 1 and held[0]["gpu_milli"] == 500


def test_a_notebook_shows_cluster_and_client(cluster: LocalCluster, client: Client) -> None:
    assert client.url in cluster._repr_html_() and ">up<" in cluster._repr_html_()
    assert ">ready<" in client._repr_html_() and " of 8<" in client._repr_html_()


# -- the cluster's own life


@pytest.mark.system
def test_nothing_is_left_behind() -> None:
    cluster = LocalCluster(gpus=1)
    pid, folder, runtime = cluster.pid, cluster.data_dir, HostPaths(cluster.data_dir).runtime_dir
    cluster.client().run(["true"])
    cluster.close()
    cluster.close()
    assert gone(pid) and not folder.exists() and not runtime.exists()


@pytest.mark.system
def test_settings_and_a_data_directory_of_ones_own(tmp_path: Path) -> None:
    with LocalCluster(gpus=0, data_dir=tmp_path / "host", settings={"work.kill_grace_s": 1.5}) as cluster:
        client = cluster.client()
        assert client.gpus() == []
        assert {s["key"]: s["value"] for s in client.config()}["work.kill_grace_s"] == 1.5
        actorgrid.connect(data_dir=tmp_path / "host").close()
    assert (tmp_path / "host").exists()


def test_a_start_that_fails_says_why() -> None:
    with pytest.raises(ActorGridError, match="nonsense") as caught:
        LocalCluster(settings={"work.nonsense": 1})
    assert isinstance(caught.value, StartFailed)
    with pytest.raises(BadRequest, match="cluster release"):
        LocalCluster(hosts=3)


@pytest.mark.system
def test_a_cluster_ends_with_the_process_that_made_it() -> None:
    code = "import actorgrid, os; c = actorgrid.LocalCluster(gpus=1); print(c.pid, c.data_dir, flush=True); os._exit(1)"
    made = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60)
    pid, folder = made.stdout.split()
    wait_until(lambda: gone(int(pid)), 30)
    subprocess.run(["rm", "-rf", folder, str(HostPaths(Path(folder)).runtime_dir)], check=True)


DROPPED = """
import gc, os, sys, time
import actorgrid

def slow(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    return "done"

def left():
    return os.path.exists(folder) or os.path.exists(f"/proc/{pid}")

def until_gone():
    until = time.monotonic() + 60
    while left():
        gc.collect()
        assert time.monotonic() < until, "it is still there"
        time.sleep(0.02)

flag = sys.argv[1]
for durable in (False, True):
    client = actorgrid.LocalCluster(gpus=1).client()
    cluster = client.http.owner
    pid, folder = cluster.pid, cluster.data_dir
    del cluster
    gc.collect()
    assert client.run(["true"]).ok, "its client keeps it"
    assert client.submit(abs, -1, durable=durable).result(60) == 1
    future = client.submit(slow, flag, durable=durable)
    state = client.state if not durable else None
    del client
    gc.collect()
    assert left()
    open(flag, "w").close()
    assert future.result(60) == "done", "what was submitted keeps it"
    if state is not None:
        state.put("a", 1)
    del future, state
    until_gone()
    os.unlink(flag)
kept = actorgrid.LocalCluster(gpus=1)
print(kept.pid, kept.data_dir)
if os.fork() == 0:
    del kept
    gc.collect()
    os._exit(0)
os.wait()
assert kept.client().run(["true"]).ok, "a fork's copy takes nothing away"
kept = None
"""


@pytest.mark.system
def test_a_cluster_that_is_dropped_goes_when_nothing_of_it_is_used(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", DROPPED, str(tmp_path / "flag")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    pid, folder = made.stdout.split()
    assert gone(int(pid)) and not Path(folder).exists(), "dropped just before the end of the program"


@pytest.mark.system
def test_a_cluster_made_in_a_thread_outlives_the_thread() -> None:
    made: list[LocalCluster] = []
    thread = threading.Thread(target=lambda: made.append(LocalCluster(gpus=1)))
    thread.start()
    thread.join()
    assert made[0].client().run(["true"]).ok
    made[0].close()


def test_a_result_of_a_command_is_refused(client: Client) -> None:
    with pytest.raises(WrongState):
        client.result(client.run(["true"]).job_id)
