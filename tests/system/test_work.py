"""What users do with a host: functions, commands, shares of GPUs, retries, cancelling, logs, state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid import errors
from actorgrid.fencing import is_fencing_token
from tests.processes import is_alive, until
from tests.system.agent import Agent, write_when_told


def uuids(agent: Agent) -> list[str]:
    return [gpu["device_id"] for gpu in agent.client().gpus()]


def test_a_task_sees_exactly_its_devices(shared_agent: Agent) -> None:
    client = shared_agent.client()

    def visible() -> tuple[str, str, str]:
        import os

        return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["ACTORGRID_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]

    known = uuids(shared_agent)
    one = client.submit(visible, gpus=0.25, cpus=0.1).result(30)
    assert one[0] in known
    assert one == (one[0], one[0], "PCI_BUS_ID")
    two = client.submit(visible, gpus=2, cpus=0.1, durable=True).result(30)
    assert len(set(two[0].split(",")) & set(known)) == 2
    assert client.submit(visible, cpus=0.1).result(30)[:2] == ("", "")
    done = client.run(["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"], gpus=1, cpus=0.1)
    assert done.stdout.decode().strip() in known


def test_shares_fill_one_gpu_before_the_next_and_never_overfill_it(shared_agent: Agent, tmp_path: Path) -> None:
    client = shared_agent.client()
    until(lambda: client.allocations() == [], "all is free")
    jobs = [
        client.submit_job(command=["sh", "-c", write_when_told(tmp_path, f"j{n}")], gpus=0.4, cpus=0.05)["job_id"]
        for n in range(8)
    ]
    until(lambda: len(list(tmp_path.glob("*.started"))) == 8, "all eight run")
    per_device: dict[str, int] = {}
    for allocation in client.allocations():
        for uuid in allocation["gpu_uuids"]:
            per_device[uuid] = per_device.get(uuid, 0) + allocation["gpu_milli"]
    assert sorted(per_device.values()) == [800] * 4
    ninth = client.submit_job(command=["true"], gpus=0.4, cpus=0.05)["job_id"]
    assert client.job(ninth)["state"] == "queued"
    why = client.why(ninth)
    assert why["state"] == "queued"
    assert any("GPU" in reason for reason in why["reasons"])
    for n in range(8):
        (tmp_path / f"j{n}.go").touch()
    for name in [*jobs, ninth]:
        assert client.job(name, wait_s=20)["state"] == "succeeded"


def test_gpu_memory_is_shared_out_like_time(shared_agent: Agent, tmp_path: Path) -> None:
    client = shared_agent.client()
    until(lambda: client.allocations() == [], "all is free")
    line = write_when_told(tmp_path, "big")
    only = uuids(shared_agent)[:1]
    big = client.submit_job(
        command=["sh", "-c", line], gpus=0.1, gpu_memory_bytes="60GiB", gpu_affinity=only, cpus=0.1
    )["job_id"]
    until((tmp_path / "big.started").exists, "the first runs")
    second = client.submit_job(command=["true"], gpus=0.1, gpu_memory_bytes="30GiB", gpu_affinity=only, cpus=0.1)[
        "job_id"
    ]
    assert client.job(second)["state"] == "queued"
    (tmp_path / "big.go").touch()
    for name in (big, second):
        ended = client.job(name, wait_s=20)
        assert ended["state"] == "succeeded"
        assert ended["attempts"][0]["gpu_uuids"] == only


def test_higher_priority_is_served_first(shared_agent: Agent, tmp_path: Path) -> None:
    client = shared_agent.client()
    until(lambda: client.allocations() == [], "all is free")
    blocker = client.submit_job(command=["sh", "-c", write_when_told(tmp_path, "b")], gpus=4, cpus=0.1)["job_id"]
    until((tmp_path / "b.started").exists, "the GPUs are taken")
    order = tmp_path / "order"
    jobs = [
        client.submit_job(command=["sh", "-c", f"echo {p} >> {order}"], gpus=4, cpus=0.1, priority=p)["job_id"]
        for p in (10, 90, 50)
    ]
    (tmp_path / "b.go").touch()
    for name in [blocker, *jobs]:
        assert client.job(name, wait_s=20)["state"] == "succeeded"
    assert order.read_text().split() == ["90", "50", "10"]


def test_a_failing_job_is_tried_again_and_says_why_it_failed(shared_agent: Agent, tmp_path: Path) -> None:
    client = shared_agent.client()
    counter = tmp_path / "tries"
    line = f"echo x >> {counter}; [ $(wc -l < {counter}) -ge 3 ] || {{ echo not yet >&2; exit 7; }}"
    job = client.submit_job(command=["sh", "-c", line], retries=3, cpus=0.1)["job_id"]
    ended = client.job(job, wait_s=30)
    assert ended["state"] == "succeeded"
    assert [(a["number"], a["exit_code"]) for a in ended["attempts"]] == [(1, 7), (2, 7), (3, 0)]
    assert b"".join(client.logs(job, "stderr", attempt=1)) == b"not yet\n"
    failed = client.submit_job(command=["sh", "-c", "echo sorry >&2; exit 9"], cpus=0.1)["job_id"]
    view = client.job(failed, wait_s=20)
    assert (view["state"], view["error"]["code"], view["attempts"][0]["exit_code"]) == ("failed", "TaskFailed", 9)
    assert "9" in " ".join(client.why(failed)["reasons"])


def test_a_command_that_does_not_exist_fails_with_a_hint(shared_agent: Agent) -> None:
    client = shared_agent.client()
    job = client.submit_job(command=["no-such-program-here"], cpus=0.1)["job_id"]
    view = client.job(job, wait_s=20)
    assert view["state"] == "failed"
    assert "no-such-program-here" in json.dumps(view["error"])
    assert view["error"]["hint"]


def test_a_time_limit_ends_the_whole_tree(shared_agent: Agent, tmp_path: Path) -> None:
    client = shared_agent.client()
    child = tmp_path / "child"
    line = f"sleep 300 & echo $! > {child}; wait"
    job = client.submit_job(command=["sh", "-c", line], max_execution_time_s=0.5, cpus=0.1)["job_id"]
    view = client.job(job, wait_s=30)
    assert (view["state"], view["error"]["code"]) == ("failed", "TaskTimedOut")
    until(lambda: not is_alive(int(child.read_text())), "the child is gone")
    with pytest.raises(errors.TaskTimedOut):
        client.submit(spin, cpus=0.1, timeout=0.3).result(30)


def spin() -> None:
    while True:
        pass


def test_cancel_ends_waiting_and_running_jobs(shared_agent: Agent, tmp_path: Path) -> None:
    client = shared_agent.client()
    line = write_when_told(tmp_path, "run")
    running = client.submit_job(command=["sh", "-c", line], gpus=4, cpus=0.1)["job_id"]
    pid = int(until(lambda: (p := tmp_path / "run.started").exists() and p.read_text().strip(), "it runs"))
    waiting = client.submit_job(command=["true"], gpus=4, cpus=0.1)["job_id"]
    assert client.cancel(waiting)
    assert client.job(waiting)["state"] == "cancelled"
    done = shared_agent.cli("cancel", running)
    assert done.returncode == 0
    assert client.job(running, wait_s=20)["state"] == "cancelled"
    assert not is_alive(pid)


def test_a_remote_exception_arrives_with_its_traceback_and_by_its_type(shared_agent: Agent) -> None:
    client = shared_agent.client()

    def fail(value: int) -> None:
        raise KeyError(f"no {value}")

    for durable in (False, True):
        with pytest.raises(errors.TaskFailed) as caught:
            client.submit(fail, 7, cpus=0.1, durable=durable).result(30)
        assert isinstance(caught.value, KeyError)
        assert 'raise KeyError(f"no {value}")' in caught.value.remote_traceback


def test_jobs_that_depend_on_jobs_get_their_values(shared_agent: Agent) -> None:
    client = shared_agent.client()
    parts = [client.submit(pow, n, 2, cpus=0.1, durable=True) for n in range(4)]
    total = client.submit(sum, parts, cpus=0.1, durable=True)
    assert total.result(60) == 14
    bad = client.submit(int, "x", cpus=0.1, durable=True)
    after = client.submit(abs, bad, cpus=0.1, durable=True)
    with pytest.raises(errors.DependencyFailed):
        after.result(60)


def test_map_and_tasks_use_several_workers(shared_agent: Agent) -> None:
    client = shared_agent.client()
    assert list(client.map(lambda n: n * n, range(100), cpus=0.1)) == [n * n for n in range(100)]

    @actorgrid.task(gpus=0.25, cpus=0.1, retries=2)
    def double(value: int) -> int:
        return 2 * value

    assert double(4) == 8
    with client:
        assert double.submit(21).result(30) == 42


def test_a_worker_that_dies_under_a_task_is_replaced_and_the_task_is_sent_again(
    shared_agent: Agent, tmp_path: Path
) -> None:
    client = shared_agent.client()
    mark = str(tmp_path / "died")

    def die_once() -> int:
        import os
        import signal

        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    assert client.submit(die_once, cpus=0.1, retries=2).result(30) > 0

    def die_always() -> None:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(errors.WorkerLost, match="killed by SIGKILL"):
        client.submit(die_always, cpus=0.1, retries=1).result(60)

    def leave(code: int) -> None:
        import os

        os.write(2, b"about to leave\n")
        os._exit(code)

    with pytest.raises(errors.WorkerLost, match="exit status 7") as left:
        client.submit(leave, 7, cpus=0.1, retries=0).result(60)
    assert left.value.details["exit_code"] == 7 and "about to leave" in left.value.found

    def crash() -> None:
        import ctypes

        ctypes.string_at(0)

    with pytest.raises(errors.WorkerLost, match="SIGSEGV") as crashed:
        client.submit(crash, cpus=0.1, retries=0).result(60)
    assert "Segmentation fault" in crashed.value.found and "in crash" in crashed.value.details["stderr"]
    job = client.submit(crash, cpus=0.1, durable=True)
    with pytest.raises(errors.TaskFailed, match="SIGSEGV") as failed:
        job.result(60)
    assert "Segmentation fault" in failed.value.found


def test_memory_limits_are_kept(shared_agent: Agent) -> None:
    client = shared_agent.client()
    line = "b = bytearray(600 * 2**20); import time\nwhile True: time.sleep(0.1)"
    job = client.submit_job(command=[sys.executable, "-c", line], memory_bytes="100MiB", cpus=0.1)["job_id"]
    view = client.job(job, wait_s=30)
    assert (view["state"], view["error"]["code"]) == ("failed", "MemoryLimitExceeded")


def test_workers_hold_no_socket_and_no_key_of_the_agent(shared_agent: Agent) -> None:
    client = shared_agent.client()

    def holdings() -> tuple[list[str], dict[str, str]]:
        import os

        found = []
        for name in os.listdir("/proc/self/fd"):
            try:
                found.append(os.readlink(f"/proc/self/fd/{name}"))
            except OSError:
                continue
        return found, dict(os.environ)

    descriptors, environment = client.submit(holdings, cpus=0.1).result(30)
    token = (shared_agent.data_dir / "admin.token").read_text().strip()
    assert token not in json.dumps(environment)
    assert is_fencing_token(environment.pop("ACTORGRID_TOKEN"))  # which opens nothing
    assert not [name for name in environment if "TOKEN" in name or "KEY" in name or "SECRET" in name]
    assert not [name for name in descriptors if "agent.log" in name or "ledger" in name or "lock" in name]
    # Its standard streams (pipes to the shim), its own listener and its client's connection.
    assert len([name for name in descriptors if name.startswith("socket:")]) <= 3


def test_the_command_line_streams_output_and_exits_as_the_command_does(shared_agent: Agent, tmp_path: Path) -> None:
    done = shared_agent.cli(
        "run", "--cpus", "0.1", "--", "sh", "-c", "echo a; echo b >&2; pwd; exit 5", check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr.splitlines()[0]) == (5, f"a\n{tmp_path}\n", "b")
    detached = shared_agent.cli(
        "run", "--detach", "--json", "--cpus", "0.1", "--env", "X=1", "--", "sh", "-c", "echo $X"
    )
    name = json.loads(detached.stdout)["job_id"]
    assert shared_agent.client().job(name, wait_s=20)["state"] == "succeeded"
    assert shared_agent.cli("logs", name).stdout == "1\n"
    script = tmp_path / "script.py"
    script.write_text("import sys; print('args', sys.argv[1:])")
    answer = json.loads(shared_agent.cli("submit", "--json", "--cpus", "0.1", str(script), "one", "two").stdout)
    client = shared_agent.client()
    assert client.job(answer["job_id"], wait_s=20)["state"] == "succeeded"
    assert shared_agent.cli("logs", answer["job_id"]).stdout == "args ['one', 'two']\n"
    assert answer["job_id"] in shared_agent.cli("ps", "--all").stdout + json.dumps(shared_agent.cli_json("ps", "--all"))


def test_logs_can_be_followed_while_the_job_runs(shared_agent: Agent, tmp_path: Path) -> None:
    client = shared_agent.client()
    line = f"echo first; {write_when_told(tmp_path, 'w')}"
    job = client.submit_job(command=["sh", "-c", line], cpus=0.1)["job_id"]
    follower = subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "logs", "--data-dir", str(shared_agent.data_dir), "-f", job],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    assert follower.stdout.readline() == "first\n"
    (tmp_path / "w.go").touch()
    assert follower.stdout.read() == "out-w\n"
    assert follower.wait(60) == 0
    follower.stdout.close()


def test_shared_state_outlives_the_agent(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "host").start()
    try:
        state = agent.client().state
        state.put("greeting", {"hello": ["world", 1]})
        assert state.increment("runs", 2) == 2 or state.get("runs") == 2
        state.add_to_set("tags", "a")
        state.add_to_set("tags", "b")
        state.remove_from_set("tags", "a")
        agent.kill()
        agent.start()
        state = agent.client().state
        assert state.get("greeting") == {"hello": ["world", 1]}
        assert state.get("runs") == 2
        assert list(state.get("tags")) == ["b"]
        with pytest.raises(errors.StateTypeConflict):
            state.increment("tags", 1)
    finally:
        agent.close()


def test_a_live_setting_outlives_the_agent_and_reaches_restarted_servers(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "host").start()
    try:
        agent.cli("config", "set", "scheduling.queue_max", "1")
        os.kill(agent.pid_of("cluster_manager") or 0, signal.SIGKILL)
        until(lambda: queue_limit(agent) == 1, "the restarted server knows")
        assert agent.stop() == 0
        agent.start()
        until(lambda: queue_limit(agent) == 1, "the restarted agent knows")
        done = agent.cli("config", "set", "cluster.bind", "0.0.0.0", check=False)
        assert done.returncode == errors.SettingNotLive.exit_code
    finally:
        agent.close()


def queue_limit(agent: Agent) -> Any:
    rows = agent.cli_json("config", "list")
    rows = rows["settings"] if isinstance(rows, dict) else rows
    return next(row["value"] for row in rows if row["key"] == "scheduling.queue_max")


def test_the_async_client_has_the_same_verbs(shared_agent: Agent) -> None:
    import asyncio

    async def use() -> tuple[int, int]:
        async with await actorgrid.AsyncClient.connect(data_dir=shared_agent.data_dir) as client:
            value = await client.submit(abs, -3, cpus=0.1)
            done = await client.run(["true"], cpus=0.1)
            return value, done.exit_code

    assert asyncio.run(use()) == (3, 0)


def public_verbs(kind: type) -> set[str]:
    ours = [each for each in kind.__mro__ if each.__module__.startswith("actorgrid.")]
    return {name for each in ours for name, value in vars(each).items() if callable(value) and name[0] != "_"}


def test_both_clients_offer_the_same() -> None:
    # submit_with gives a concurrent future, lock_terms what both make locks from, after_fork is called in a forked
    # child: for the clients' own use. get is asked by dask, which does not await.
    own = {"submit_with", "lock_terms", "after_fork", "get"}
    assert public_verbs(actorgrid.Client) - public_verbs(actorgrid.AsyncClient) == own


def test_a_gpu_is_not_free_while_a_returned_worker_still_runs_on_it(shared_agent: Agent, tmp_path: Path) -> None:
    client = shared_agent.client()
    until(lambda: client.allocations() == [], "all is free")
    mark = tmp_path / "pid"

    def stubborn() -> None:
        import os
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(mark, "w") as file:
            file.write(str(os.getpid()))
        while True:
            pass

    client.submit(stubborn, gpus=4, cpus=0.1)
    pid = int(until(lambda: mark.exists() and mark.read_text(), "the task runs"))
    client.close()
    # As long as the worker lives its devices stay allocated; nothing else may be placed on them.
    other = shared_agent.client()
    while is_alive(pid):
        held = other.allocations()
        assert not is_alive(pid) or len(held) == 1
    until(lambda: other.allocations() == [], "the devices are free")


def test_a_lease_asked_for_again_after_a_lost_answer_is_the_same_lease(shared_agent: Agent) -> None:
    http = shared_agent.client().http
    until(lambda: shared_agent.client().allocations() == [], "all is free")
    sessions = [http.post("/api/sessions", {"user_id": "u", "python": ""})["session_id"] for _ in range(2)]
    body = {"gpus": 4, "cpus": 0.1, "lease_id": "00000000deadbeef"}
    first = http.post(f"/api/sessions/{sessions[0]}/leases", body)
    again = http.post(f"/api/sessions/{sessions[0]}/leases", body)
    assert (again["lease_id"], again["worker_id"]) == (first["lease_id"], first["worker_id"])
    assert again["secret"] != first["secret"]
    with pytest.raises(errors.BadRequest):
        http.post(f"/api/sessions/{sessions[1]}/leases", body)
    for session in sessions:
        http.delete(f"/api/sessions/{session}")
    until(lambda: shared_agent.client().allocations() == [], "all is free again")


def test_work_is_ended_for_lack_of_memory_before_the_agent_is(shared_agent: Agent) -> None:
    client = shared_agent.client()
    assert shared_agent.process is not None
    own = int(Path(f"/proc/{shared_agent.process.pid}/oom_score_adj").read_text())
    shown = client.run(["cat", "/proc/self/oom_score_adj"], cpus=0.1).stdout
    score = client.submit(lambda: int(Path("/proc/self/oom_score_adj").read_text()), cpus=0.1).result(30)
    assert int(shown) == score == min(1000, own + 500)


def test_what_floods_the_disk_is_ended_by_name_and_the_next_runs(make_agent: Callable[..., Agent]) -> None:
    client = make_agent("work.disk_bytes_max=8MiB").start().client()

    def flood() -> None:
        import os
        import time

        path = os.path.join(os.path.dirname(os.environ["ACTORGRID_CREDENTIAL_FILE"]), "flood")
        with open(path, "wb", buffering=0) as out:
            os.unlink(path)
            for _ in range(64):
                out.write(os.urandom(2**20))
            time.sleep(600)

    @actorgrid.actor
    class Flooder:
        def flood(self) -> None:
            flood()

    with pytest.raises(errors.WorkerOverDisk):
        client.submit(flood, cpus=0.1, retries=0).result(60)
    with pytest.raises(errors.DiskLimitExceeded, match=r"work\.disk_bytes_max"):
        client.submit(flood, cpus=0.1, durable=True, retries=0).result(60)
    with pytest.raises(errors.ActorDied) as died:
        Flooder.options(cpus=0.1).on(client).create().flood().result(60)
    assert "disk" in f"{died.value} {died.value.__cause__}"
    assert client.submit(abs, -1, cpus=0.1).result(60) == 1
