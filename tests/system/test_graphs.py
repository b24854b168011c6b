"""Graphs of steps on a real host: every kind of step, what fails, what ends them, and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid import Dag, Function, errors, task
from tests.processes import is_alive, until
from tests.system.agent import Agent

WAIT_S = 120.0
HERE = Path(__file__)


@pytest.fixture(scope="module")
def client(shared_agent: Agent) -> Iterator[actorgrid.Client]:
    with actorgrid.connect(data_dir=shared_agent.data_dir) as client:
        yield client


def inc(x: int) -> int:
    return x + 1


def total(values: list[int]) -> int:
    return sum(values)


def boom(x: int) -> int:
    raise ValueError(f"no {x}")


@task(retries=1)
def doubled(x: int) -> int:
    return 2 * x


def states(run: Any) -> dict[str, str]:
    return {step["id"]: step["state"] for step in run.steps()}


def test_graphs_can_be_awaited(client: actorgrid.Client) -> None:
    async def two_graphs() -> None:
        async_client = actorgrid.AsyncClient(client)
        dag = Dag("awaited")
        one = dag.add(inc, 1)
        dag.add(boom, one, id="never")
        run = await async_client.dag(dag)
        with pytest.raises(errors.StepFailed) as failed:
            await run.result(WAIT_S)
        assert isinstance(failed.value.__cause__, ValueError)
        again = await async_client.graph(run.id)
        assert await (await again.step(one)).result(WAIT_S) == 2
        with pytest.raises(ValueError, match="no 2"):
            await (await again.step("never")).result(WAIT_S)
        assert not await again.cancel(), "it is over"
        with pytest.raises(errors.UnknownJob):
            await async_client.graph("0" * 32)

    asyncio.run(two_graphs())


def test_calls_of_tasks_in_a_block_are_a_graph(client: actorgrid.Client) -> None:
    with client.dag("block") as dag:
        last = doubled(doubled(3))
    assert dag.submitted is not None
    assert dag.submitted.result(WAIT_S) == {last.id: 12}
    assert dag.submitted[last].result(WAIT_S) == 12
    again = client.graph(dag.submitted.id)
    assert again.states == {"succeeded": 2}
    assert again[last.id].result(WAIT_S) == 12


def test_functions_in_the_words_of_the_design(client: actorgrid.Client) -> None:
    run = client.dag(
        [
            Function("ask", [], lambda: 42),
            Function("double", ["ask"], lambda x, k: x * k, extra_args=[2]),
            Function("tell", [("double", None)], lambda value: f"The final answer is: {value}"),
        ]
    )
    assert run.result(WAIT_S) == {"tell": "The final answer is: 84"}


def test_values_inlined_calls_items_and_commands(client: actorgrid.Client, tmp_path: Path) -> None:
    dag = Dag("kinds")
    value = dag.value(list(range(5)))
    sums = dag.inline(total, value)
    pair = dag.add(divmod, sums, 4, id="pair")
    rest = dag.add(inc, pair[1], id="rest")
    made = dag.run(["sh", "-c", "echo made > made"], cwd=str(tmp_path), id="command")
    read = dag.add(lambda path: Path(path).read_text(), str(tmp_path / "made"), after=made, id="read")
    result = client.dag(dag).result(WAIT_S)
    assert result == {rest.id: 3, read.id: "made\n"}


def test_branches_loops_and_a_merge(client: actorgrid.Client) -> None:
    dag = Dag("branches")
    even = dag.add(lambda x: x % 2 == 0, 2, id="even")
    with dag.when(even, True):
        yes = dag.add(inc, 10, id="yes")
    with dag.when(even, False):
        no = dag.add(inc, 20, id="no")
    either = dag.merge(yes, no, id="either")
    dag.loop(inc, either, until=lambda value: value >= 14, rounds=10, id="count")
    run = client.dag(dag)
    assert run.result(WAIT_S) == {"count": 14}
    assert states(run)["no"] == "skipped"
    assert Counter(states(run).values())["skipped"] == 8
    with pytest.raises(errors.StepSkipped):
        run[no].result(0)


def test_what_fails_is_named_with_its_cause_and_tried_as_often_as_asked(client: actorgrid.Client) -> None:
    dag = Dag("fails")
    bad = dag.add(boom, dag.add(inc, 6), retries=1, id="bad")
    dag.add(inc, bad, id="never")
    run = client.dag(dag)
    with pytest.raises(errors.StepFailed, match="bad") as caught:
        run.result(WAIT_S)
    assert isinstance(caught.value.__cause__, ValueError)
    assert str(caught.value.__cause__) == "no 7"
    step = next(each for each in run.steps() if each["id"] == "bad")
    assert (step["state"], step["failures"]) == ("failed", 2)
    assert states(run)["never"] == "waiting"
    why = client.http.get(f"/api/jobs/{run.id}/why")
    assert why["headline"] == "step bad failed"
    assert any("actorgrid retry" in each for each in why["next_steps"])


def test_a_graph_may_go_on_beside_what_failed(client: actorgrid.Client) -> None:
    dag = Dag("goes on", on_failure="continue")
    bad = dag.add(boom, 1, id="bad")
    dag.add(inc, bad, id="behind")
    for number in range(20):
        dag.add(inc, number, id=f"beside-{number}")
    run = client.dag(dag)
    with pytest.raises(errors.StepFailed):
        run.result(WAIT_S)
    found = Counter(states(run).values())
    assert found == {"succeeded": 20, "failed": 1, "waiting": 1}
    assert run["beside-3"].result(0) == 4


def test_a_graph_that_failed_goes_on_from_there(client: actorgrid.Client, tmp_path: Path) -> None:
    flag, log = tmp_path / "flag", tmp_path / "log"

    def note(x: int) -> int:
        with log.open("a") as file:
            file.write(f"{x}\n")
        return x

    def needs_flag(x: int) -> int:
        if not flag.exists():
            raise RuntimeError("not yet")
        return x

    dag = Dag("again")
    noted = dag.map(note, range(5))
    dag.add(needs_flag, dag.add(total, noted), id="last")
    run = client.dag(dag)
    with pytest.raises(errors.StepFailed):
        run.result(WAIT_S)
    with pytest.raises(errors.WrongState):
        client.graph(client.dag([Function("one", [], lambda: 1)]).id).retry()
    flag.touch()
    assert run.retry()["again"] == 1
    assert run.result(WAIT_S) == {"last": 10}
    assert sorted(log.read_text().split()) == ["0", "1", "2", "3", "4"], "what was done was not done again"


def test_a_thousand_steps_into_one_and_a_chain(client: actorgrid.Client) -> None:
    dag = Dag("fan")
    root = dag.add(inc, 0)
    dag.add(total, [dag.add(inc, root) for _ in range(1_000)], id="all")
    chain = root
    for _ in range(100):
        chain = dag.add(inc, chain)
    run = client.dag(dag)
    result = run.result(WAIT_S)
    assert result == {"all": 2_000, chain.id: 101}
    assert run.states == {"succeeded": 1_102}


def live_jobs(client: actorgrid.Client, graph_id: str) -> list[dict[str, Any]]:
    found = client.http.get("/api/jobs", prefix=f"{graph_id}.", state="queued,placed,running")
    return list(found["jobs"])


@pytest.mark.parametrize("after", [0, 5, 30])
def test_a_cancelled_graph_leaves_nothing(client: actorgrid.Client, tmp_path: Path, after: int) -> None:
    """Whenever it is cancelled: no process, no job, no allocation, no lock of its own."""
    pids = tmp_path / "pids"
    pids.mkdir()

    def work(x: int, *_: int) -> int:
        (pids / str(os.getpid())).touch()
        time.sleep(0.05)
        return x

    dag = Dag("cancelled", resources={"seat": 4})
    first = dag.map(work, range(20), needs={"seat": 1})
    for number in range(40):
        dag.add(work, number, first[number % 20], first[(number + 1) % 20])
    sleeper = dag.run(["sh", "-c", f"echo > {pids}/$$; exec sleep 600"])
    dag.run(["true"], after=sleeper)
    run = client.dag(dag)
    until(lambda: run.states.get("succeeded", 0) >= after, f"{after} steps are done", WAIT_S)
    assert run.cancel()
    assert run.wait(WAIT_S)["state"] == "cancelled"
    assert live_jobs(client, run.id) == []
    gpus = client.http.get("/api/allocations")["allocations"]
    assert [each for each in gpus if str(each.get("job_id", "")).startswith(run.id)] == []
    for pid in (int(each.name) for each in pids.iterdir()):
        # A process that serves functions may go on: then for others, and without a child.
        if is_alive(pid):
            assert b"actorgrid" in Path(f"/proc/{pid}/cmdline").read_bytes()
    succeeded = run.states["succeeded"] if after else 0
    assert run.retry()["again"] <= 62 - succeeded
    assert run.cancel()
    assert run.wait(WAIT_S)["state"] == "cancelled"


def test_whoever_submitted_it_may_die(shared_agent: Agent, client: actorgrid.Client, tmp_path: Path) -> None:
    program = tmp_path / "submits.py"
    program.write_text(
        "import os, signal, actorgrid, time\n"
        "client = actorgrid.connect()\n"
        "dag = actorgrid.Dag('orphan', id='orphan')\n"
        "slow = [dag.add(time.sleep, 0.2) for _ in range(8)]\n"
        "dag.add(len, slow, id='last')\n"
        "client.dag(dag)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "ACTORGRID_DATA_DIR": str(shared_agent.data_dir)},
        timeout=WAIT_S,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert client.graph("orphan").result(WAIT_S) == {"last": 8}


def test_a_graph_that_cannot_be_is_refused_by_name_before_anything_runs(client: actorgrid.Client) -> None:
    dag = Dag("too much")
    dag.add(inc, 1, gpus=64, id="greedy")
    with pytest.raises(errors.ActorGridError, match="greedy"):
        client.dag(dag)
    dag = Dag("nobody")
    dag.add(inc, 1, node="no-such-host", id="there")
    with pytest.raises(errors.UnsatisfiableCost, match="there"):
        client.dag(dag)
    with pytest.raises(errors.UnknownPolicy):
        client.dag(_one(strategy="astrology"))
    with pytest.raises(errors.UnknownJob):
        client.graph("never-submitted")


def _one(**settings: Any) -> Dag:
    dag = Dag("one", **settings)
    dag.add(inc, 1)
    return dag


def test_the_same_graph_twice_is_one(client: actorgrid.Client) -> None:
    dag = _one(id="once")
    client.dag(dag)
    second = client.dag(_one(id="once"))
    assert list(second.result(WAIT_S).values()) == [2]


def test_an_environment_of_the_graph(client: actorgrid.Client) -> None:
    dag = Dag("environment", env={"OF_THE_GRAPH": "yes"}, python=None)
    dag.add(lambda: (os.environ.get("OF_THE_GRAPH"), os.environ.get("OF_THE_STEP")), env={"OF_THE_STEP": "too"}, id="a")
    assert client.dag(dag).result(WAIT_S) == {"a": ("yes", "too")}


def trial(level: float, steps: int) -> float:
    value = 0.0
    for step in range(1, steps + 1):
        threading.Event().wait(0.02)
        value = level + 1 / step
        actorgrid.report(step=step, metric=value)
    return value


def best(found: list[Any]) -> tuple[float, int]:
    values = [each for each in found if not isinstance(each, actorgrid.StoppedTrial)]
    return min(values), len(found) - len(values)


def test_trials_of_a_sweep_that_are_worse_end_early(client: actorgrid.Client, shared_agent: Agent) -> None:
    dag = Dag("sweep")
    points = dag.sweep(trial, level=range(12), steps=[18], stop="asha", options={"cpus": 0.25})
    dag.add(best, list(points.values()), id="best")
    run = client.dag(dag)
    found, stopped = run.result(WAIT_S)["best"]
    assert 0 <= found <= 1.1, "the best goes to its end, but for what began after it"
    assert stopped >= 4
    first = run[points[("level", 11), ("steps", 18)]].result(0)
    assert isinstance(first, float) or first == actorgrid.StoppedTrial(first.step, 11 + 1 / first.step)
    words = [step.get("word") for step in run.steps()]
    assert words.count("stopped early") == stopped
    assert "stopped" in shared_agent.cli("dag", "show", run.id).stdout
    assert trial(1.0, 2) == 1.5, "by itself it just runs"
    with pytest.raises(errors.BadRequest):
        actorgrid.report(step=1, metric=float("nan"))


def search(depth: int, x: int) -> Any:
    """A step that gives steps like itself, and one that gathers what these find."""
    if depth == 0:
        return x
    dag = Dag()
    found = [dag.add(search, depth - 1, 2 * x + side, extends=True, id=f"s{side}") for side in (0, 1)]
    shared = dag.inline(inc, 0)
    dag.add(lambda values, one: (sorted(values), one), found, shared, id="both")
    return actorgrid.extend(dag, x)


def test_steps_give_steps(client: actorgrid.Client, shared_agent: Agent) -> None:
    dag = Dag("grows")
    dag.add(search, 2, 1, extends=True, id="root")
    run = client.dag(dag)
    result = run.result(WAIT_S)
    assert result == {
        "root": 1,
        "root/both": ([2, 3], 1),
        "root/s0/both": ([4, 5], 1),
        "root/s1/both": ([6, 7], 1),
    }
    assert run["root/s1/s0"].result(WAIT_S) == 6
    assert run.states == {"succeeded": 10}
    assert "root/s0/s1" in shared_agent.cli("dag", "show", run.id).stdout


def test_steps_that_cannot_follow_fail_the_step_that_gave_them(client: actorgrid.Client) -> None:
    def greedy() -> Any:
        more = Dag()
        more.add(inc, 1, gpus=64, id="too-much")
        return actorgrid.extend(more)

    dag = Dag("cannot")
    dag.add(greedy, extends=True, id="root")
    with pytest.raises(errors.StepFailed, match="root") as failed:
        client.dag(dag).result(WAIT_S)
    assert "UnsatisfiableCost" in failed.value.found and "too-much" in failed.value.found
    dag = Dag("unexpected")
    dag.add(greedy, id="root")
    with pytest.raises(errors.StepFailed) as failed:
        client.dag(dag).result(WAIT_S)
    assert isinstance(failed.value.__cause__, errors.InvalidGraph)
    assert "extends=True" in failed.value.__cause__.hint


def test_what_an_earlier_graph_gave_is_taken_over(
    client: actorgrid.Client, shared_agent: Agent, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    def noted(x: int, path: Path) -> int:
        with path.open("a") as file:
            file.write(f"{x}\n")
        return x * x

    def graph(last: int, **more: Any) -> Any:
        dag = Dag("kept", cache="inputs", **more)
        squares = [dag.add(noted, x, log) for x in (1, 2, last)]
        dag.add(total, squares, id="total")
        return client.dag(dag)

    assert graph(3).result(WAIT_S) == {"total": 14}
    again = graph(3)
    assert again.result(WAIT_S) == {"total": 14}
    assert sorted(log.read_text().split()) == ["1", "2", "3"]
    assert all("cached_from" in step for step in again.steps())
    assert "cached" in shared_agent.cli("dag", "show", again.id).stdout
    picture = shared_agent.cli("dag", "picture", again.id, "-o", "-").stdout
    assert "4 cached" in picture
    changed = graph(4)
    assert changed.result(WAIT_S) == {"total": 21}
    assert sorted(log.read_text().split()) == ["1", "2", "3", "4"]
    assert ["cached_from" in step for step in changed.steps()] == [True, True, False, False]
    fresh = Dag("kept", cache="refresh")
    fresh.add(noted, 1, log)
    assert list(client.dag(fresh).result(WAIT_S).values()) == [1]
    assert sorted(log.read_text().split()) == ["1", "1", "2", "3", "4"]


def upper(files: actorgrid.StepFiles) -> dict[str, str]:
    return {path: content.decode().upper() for path, content in files.items()}


def test_commands_hand_files_on_and_are_not_run_again_with_the_same(
    client: actorgrid.Client, shared_agent: Agent, tmp_path: Path
) -> None:
    log, source = tmp_path / "log", tmp_path / "in.txt"
    (tmp_path / "other").mkdir()

    def graph(cache: bool = True) -> Any:
        dag = Dag("files", cache="inputs")
        line = f"echo a >> {log}; mkdir -p d; cp in.txt d/copy; cat in.txt"
        made = dag.run(["sh", "-c", line], outputs=["d"], files=["in.txt"], cwd=tmp_path, id="made")
        with dag.when(made, "yes"):
            line = f"echo b >> {log}; cat d/copy d/copy > twice"
            twice = dag.run(["sh", "-c", line], inputs=made, outputs=["twice"], cwd=tmp_path / "other", id="twice")
        with dag.otherwise(made):
            no = dag.run(["false"], id="no")
        dag.run(["test", "-e", "other/twice"], after=[twice, no], trigger="some_succeeded", cwd=tmp_path, id="end")
        dag.add(upper, twice, id="upper")
        return client.dag(dag, cache=cache)

    os.chdir(tmp_path)
    source.write_text("yes\n")
    first = graph()
    assert first.result(WAIT_S) == {"upper": {"twice": "YES\nYES\n"}}
    assert states(first)["no"] == "skipped"
    (tmp_path / "other" / "twice").unlink()
    again = graph()
    assert again.result(WAIT_S) == first.result(WAIT_S)
    assert log.read_text().split() == ["a", "b"]
    assert (tmp_path / "other" / "twice").read_text() == "yes\nyes\n", "it is put back"
    assert "cached" in shared_agent.cli("dag", "show", again.id).stdout
    assert graph(cache=False).result(WAIT_S) == first.result(WAIT_S)
    assert log.read_text().split() == ["a", "b"] * 2
    source.write_text("what else\nyes\n")
    assert graph().result(WAIT_S)["upper"] == {"twice": "WHAT ELSE\nYES\n" * 2}
    shared_agent.cli("get", again.id, "--step", "twice", str(tmp_path / "got"))
    assert (tmp_path / "got" / "twice").read_text() == "yes\nyes\n"
    dag = Dag("lacking")
    dag.run(["touch", "one"], outputs=["one", "two", "three/"], cwd=tmp_path)
    with pytest.raises(errors.StepFailed) as failed:
        client.dag(dag).result(WAIT_S)
    assert isinstance(failed.value.__cause__, errors.OutputMissing)
    assert failed.value.__cause__.details["missing"] == ["two", "three"]


ROUNDS = """
name: rounds
cache: inputs
steps:
  - id: count
    command: echo $ACTORGRID_ROUND >> count; if [ $(wc -l < count) = 2 ]; then echo done; fi
    outputs: [count]
    files: [in.txt]
    repeat: {until: "done", rounds: 4}
  - id: "yes"
    command: cat count
    inputs: [count]
    when: {step: count, word: "done"}
  - id: "no"
    command: cat count
    inputs: [count]
    when: {step: count, word: "done", negated: true}
"""


def test_a_file_with_rounds_and_branches_runs_in_a_directory_that_is_sent(shared_agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(ROUNDS)
    (tmp_path / "in.txt").touch()
    client = shared_agent.client()

    def submit(*options: str) -> dict[str, dict[str, Any]]:
        line = ("submit", "graph.yaml", "--working-dir", ".", *options)
        graph_id = shared_agent.cli(*line, cwd=tmp_path).stdout.strip()
        assert client.wait(graph_id, WAIT_S)["state"] == "succeeded"
        return {each["id"]: each for each in client.graph(graph_id).steps()}

    first = submit()
    ended = {id: step["state"] for id, step in first.items()}
    assert [ended[f"count[{number}]"] for number in range(1, 5)] == ["succeeded", "succeeded", "skipped", "skipped"]
    assert (ended["count"], ended["yes"], ended["no"]) == ("succeeded", "succeeded", "skipped")
    assert shared_agent.cli("logs", first["yes"]["job_id"]).stdout == "1\n2\n"
    assert submit()["count[2]"]["cached_from"]
    assert not submit("--no-cache")["count[2]"].get("cached_from")
    (tmp_path / "graph.yaml").write_text(ROUNDS.replace(", rounds: 4", ""))
    refused = shared_agent.cli("submit", "graph.yaml", check=False, cwd=tmp_path)
    assert refused.returncode == 2
    assert "the loop has no bound" in refused.stderr


GRAPH = """
name: report
steps:
  - id: fetch
    command: echo data > data.txt
  - id: clean
    command: [cat, data.txt]
    after: [fetch]
  - id: check
    command: test -e allowed
    after: [clean]
"""


def test_a_file_is_submitted_shown_explained_and_begun_again(shared_agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(GRAPH)
    graph_id = shared_agent.cli("submit", "graph.yaml", "--priority", "60", cwd=tmp_path).stdout.strip()
    client = shared_agent.client()
    assert client.wait(graph_id, WAIT_S)["state"] == "failed"
    shown = shared_agent.cli("dag", "show", graph_id[:10]).stdout
    assert "2 succeeded, 1 failed" in shown
    assert "the command left with status 1" in shown
    steps = {each["id"]: each for each in shared_agent.cli_json("dag", "show", graph_id)["steps"]}
    assert shared_agent.cli("logs", steps["clean"]["job_id"]).stdout == "data\n"
    assert "step check failed" in shared_agent.cli("why", graph_id).stdout
    assert "step check failed" in shared_agent.cli("ps", "--all").stdout
    assert f"{graph_id}." not in shared_agent.cli("ps", "--all").stdout, (
        "jobs of steps are listed where they are asked for"
    )
    refused = shared_agent.cli("logs", graph_id, check=False)
    assert refused.returncode == 2
    assert "dag show" in refused.stderr
    (tmp_path / "allowed").touch()
    shared_agent.cli("retry", graph_id[:10])
    assert client.wait(graph_id, WAIT_S)["state"] == "succeeded"
    assert json.loads(shared_agent.cli("dag", "show", graph_id, "--json").stdout)["retries"] == 1


def test_options_that_a_file_says_are_refused(shared_agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(GRAPH)
    refused = shared_agent.cli("submit", "graph.yaml", "--gpus", "1", check=False, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--gpus is said step by step" in refused.stderr
    (tmp_path / "graph.yaml").write_text(GRAPH.replace("after: [clean]", "after: [claen]"))
    refused = shared_agent.cli("submit", "graph.yaml", check=False, cwd=tmp_path)
    assert refused.returncode == 2
    assert "clean" in refused.stderr


def test_a_traced_workflow_runs_and_is_drawn(shared_agent: Agent, tmp_path: Path) -> None:
    workflow = HERE.parent.parent / "dag" / "workflows" / "epigenomics-chameleon-hep-1seq-100k-001.json"
    scale = ("--time-scale", "0.002", "--bytes-scale", "0.01")
    graph_id = shared_agent.cli("submit", str(workflow), *scale).stdout.strip()
    watched = shared_agent.cli("dag", "show", "--watch", graph_id, timeout_s=WAIT_S).stdout
    assert watched.splitlines()[-1].endswith("41 steps, 41 succeeded")
    shown = shared_agent.cli_json("dag", "show", graph_id)["objectives"]
    assert shown["measured"]["steps"] == 41
    assert shown["measured"]["bytes_moved"] == 0, "there is one host"
    assert 0 < shown["planned"]["makespan_s"] <= shown["measured"]["makespan_s"]
    assert "measured" in shared_agent.cli("dag", "show", graph_id).stdout
    picture, chart, trace = tmp_path / "graph.svg", tmp_path / "timeline.svg", tmp_path / "trace.json"
    assert "41 succeeded" in shared_agent.cli("dag", "picture", graph_id, "-o", str(picture)).stdout
    assert picture.read_text().count("succeeded</title>") + picture.read_text().count("succeeded ·") >= 41
    shared_agent.cli("dag", "timeline", graph_id, "-o", str(chart), "--perfetto", str(trace))
    assert "Critical path" in chart.read_text()
    assert sum(each["ph"] == "X" for each in json.loads(trace.read_text())["traceEvents"]) == 41
