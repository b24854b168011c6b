"""A graph of a thousand steps on three hosts, in the middle of which everything dies that can: one result a step.

Each step writes what it does into a store that refuses whoever holds an older token, as docs/fencing.md has it.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import actorgrid
from actorgrid import Dag
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import ActorGridError
from tests.processes import until
from tests.system.agent import closing_all
from tests.system.cluster_host import ClusterHost

LONG_S = 300.0
LAYERS, WIDTH = 20, 48
LOSSES = "INSERT INTO lost (step, run) VALUES (?, ?) ON CONFLICT DO NOTHING"


class Store:
    """What steps write to: of each step the newest token, what was written under it, and how many times."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as made:
            made.execute("CREATE TABLE done (step PRIMARY KEY, token, attempt, value, times)")
            made.execute("CREATE TABLE lost (step, run, PRIMARY KEY (step, run))")

    def put(self, step: int, value: int) -> None:
        """Write what a step gives, unless somebody with a newer token has."""
        mine = actorgrid.current_task()
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as store:
            store.execute(
                "INSERT INTO done VALUES (?, ?, ?, ?, 1) ON CONFLICT (step) DO UPDATE SET times = times + 1,"
                " token = excluded.token, attempt = excluded.attempt, value = excluded.value"
                " WHERE excluded.token >= done.token",
                (step, str(mine.token), os.environ["ACTORGRID_ATTEMPT"], value),
            )

    def first_time(self, what: str, step: int) -> bool:
        """Whether this is asked for the first time, of all processes."""
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as store:
            return store.execute(LOSSES, (step, what)).rowcount == 1

    def rows(self) -> dict[int, tuple[str, int, int]]:
        """By step: the attempt that wrote last, what, and how many times."""
        with closing(sqlite3.connect(self.path, timeout=60)) as store:
            found = store.execute("SELECT step, attempt, value, times FROM done").fetchall()
        return {step: (attempt, value, times) for step, attempt, value, times in found}


def work(store: Store, step: int, *inputs: int) -> int:
    """A step: some of them kill their own process, the first time."""
    value = 1 + sum(inputs)
    threading.Event().wait(0.01)
    if step % 97 == 13 and store.first_time("segfault", step):
        os.kill(os.getpid(), signal.SIGSEGV)
    if step % 97 == 29 and store.first_time("killed", step):
        os.kill(os.getpid(), signal.SIGKILL)
    store.put(step, value)
    if step % 97 == 41 and store.first_time("late", step):
        os.kill(os.getpid(), signal.SIGKILL)  # what it did is done, and nobody knows
    return value


def greedy(store: Store, step: int, *inputs: int) -> int:
    """Takes more memory than it may, the first time."""
    if store.first_time("memory", step):
        held = [os.urandom(2**20) for _ in range(1_000)]
        del held
    return work(store, step, *inputs)


def hangs(store: Store, step: int, *inputs: int) -> int:
    """Never ends, the first time."""
    if store.first_time("hang", step):
        signal.pause()
    return work(store, step, *inputs)


def values() -> dict[int, int]:
    """What each step gives, by its number."""
    found: dict[int, int] = {}
    for layer in range(LAYERS):
        for place in range(WIDTH):
            found[layer * WIDTH + place] = 1 + sum(found[each] for each in taken(layer, place))
    return {**found, **dict.fromkeys(range(LAYERS * WIDTH, LAYERS * WIDTH + FURTHER), 1)}


def taken(layer: int, place: int) -> list[int]:
    if layer == 0:
        return []
    return [(layer - 1) * WIDTH + place] + ([(layer - 1) * WIDTH + (place + 1) % WIDTH] if place % 3 == 0 else [])


FURTHER = 40


def grow(store: Store) -> Any:
    """Gives more of them; the first time its process dies with that."""
    dag = Dag()
    kept = dag.value(store)
    for number in range(LAYERS * WIDTH, LAYERS * WIDTH + FURTHER):
        dag.options(id=f"s{number}", retries=5, runtime_s=0.02, cpus=0.25).add(work, kept, number)
    if store.first_time("grow", -1):
        os.kill(os.getpid(), signal.SIGKILL)
    return actorgrid.extend(dag)


def graph_of(store: Store) -> Dag:
    dag = Dag("a thousand", strategy="time_optimized")
    kept = dag.value(store)
    steps: list[Any] = []
    for layer in range(LAYERS):
        for place in range(WIDTH):
            number = layer * WIDTH + place
            inputs = [steps[each] for each in taken(layer, place)]
            options: dict[str, Any] = {"id": f"s{number}", "retries": 5, "runtime_s": 0.02, "cpus": 0.25}
            fn = work
            if number % 151 == 7:
                fn, options = greedy, {**options, "memory": "192MiB"}
            elif number % 151 == 77:
                fn, options = hangs, {**options, "timeout": 5}
            steps.append(dag.options(**options).add(fn, kept, number, *inputs))
    dag.add(grow, kept, id="grow", after=steps[LAYERS * WIDTH // 4], retries=5, extends=True)
    return dag


Three = tuple[ClusterHost, ClusterHost, ClusterHost]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    folder = tmp_path_factory.mktemp("three")
    hosts = [ClusterHost(folder / name, "simulated:0xH100-80GB") for name in "abc"]
    with closing_all(hosts):
        hosts[0].found()
        token = hosts[0].token("--uses", "2")["token"]
        for host in hosts[1:]:
            host.join(hosts[0], token)
        until(lambda: hosts[0].roles() == {1: "leader", 2: "voter", 3: "voter"}, "three that vote", LONG_S)
        yield hosts[0], hosts[1], hosts[2]


def of_work(host: ClusterHost) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """A host's shims, and the processes of work below them."""
    paths = HostPaths(host.data_dir)
    shims, below = [], []
    for folder in (paths.attempts_dir, paths.workers_dir):
        with suppress(OSError):
            for each in folder.iterdir():
                pid = AttemptDir(folder, each.name).shim_pid()
                if pid is not None:
                    with suppress(psutil.NoSuchProcess):
                        shims.append(psutil.Process(pid))
                        below += shims[-1].children(recursive=True)
    return shims, below


def kill_one(rng: random.Random, found: list[psutil.Process]) -> bool:
    if not found:
        return False
    with suppress(psutil.NoSuchProcess):
        rng.choice(found).kill()
        return True
    return False


def looked_at(hosts: Three, graph_id: str) -> dict[str, Any] | None:
    """The graph as a host that answers knows it."""
    for host in hosts:
        with suppress(ActorGridError, OSError, AssertionError):
            if host.process is not None and host.process.poll() is None:
                return dict(host.client().http.get(f"/api/graphs/{graph_id}"))
    return None


def done(hosts: Three, graph_id: str) -> int:
    found = looked_at(hosts, graph_id)
    return 0 if found is None else int((found["states"] or {}).get("succeeded", 0))


def settled(hosts: Three, graph_id: str) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        found = looked_at(hosts, graph_id)
        return found if found is not None and found["job"]["state"] != "running" else None

    found: dict[str, Any] = until(over, "the graph is over", LONG_S)
    return found


def check_one_result_each(hosts: Three, graph_id: str, store: Store) -> None:
    """Every step has one result, which is right, and is of the run that wrote last."""
    expected, rows = values(), store.rows()
    run = hosts[1].client().graph(graph_id)
    steps = run.steps()
    assert len(steps) - 1 == len(expected) == len(rows)
    ids = {}
    for step in steps:
        if step["id"] == "grow":
            continue
        number = int(step["id"].rpartition("s")[2])
        ids[number] = step["id"]
        assert step["state"] == "succeeded", step
        attempt, value, _ = rows[number]
        assert value == expected[number]
        assert attempt == step["attempt_id"], f"{step} is not of the run that wrote last: {rows[number]}"
    for number in random.Random(1).sample(sorted(expected), 20):
        assert run[ids[number]].result(LONG_S) == expected[number]


def test_whatever_dies_every_step_has_one_result(three: Three, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    rng = random.Random(16)
    run = three[0].client().dag(graph_of(store))
    last = LAYERS * WIDTH + FURTHER + 1
    killed = {"work": 0, "shims": 0}
    leader_killed = member_killed = False
    deadline = time.monotonic() + LONG_S

    def reached() -> int | None:
        count = done(three, run.id)
        return count if count > at or looked_at(three, run.id) is None or count == last else None

    at = -1
    while at < last and time.monotonic() < deadline:
        found = looked_at(three, run.id)
        if found is not None and found["job"]["state"] != "running":
            break
        at = until(reached, "it goes on", LONG_S)
        shims, below = zip(*(of_work(host) for host in three), strict=True)
        killed["work"] += kill_one(rng, [each for some in below for each in some])
        if killed["work"] % 3 == 0:
            killed["shims"] += kill_one(rng, [each for some in shims for each in some])
        if at > last // 4 and not leader_killed:
            leader_killed = True
            three[0].kill()
            until(lambda: "leader" in [three[1].roles()[node] for node in (2, 3)], "another leads", LONG_S)
            three[0].start()
        if at > last // 2 and not member_killed:
            member_killed = True
            three[2].kill()
            three[2].start()
    assert settled(three, run.id)["job"]["state"] == "succeeded"
    assert killed["work"] >= 5 and killed["shims"] >= 2 and leader_killed and member_killed
    check_one_result_each(three, run.id, store)


def squared(x: int) -> int:
    return x * x


def test_results_that_lie_on_other_hosts_are_taken_over(three: Three) -> None:
    def graph(last: int) -> Any:
        dag = Dag("kept", cache="inputs")
        dag.add(sum, dag.map(squared, [*range(11), last], cpus=0.5, runtime_s=0.1), id="all")
        return three[1].client().dag(dag)

    first = graph(11)
    assert first.result(LONG_S) == {"all": 506}
    assert len({step["host"] for step in first.steps()}) > 1
    again = graph(11)
    assert again.result(LONG_S) == {"all": 506}
    assert all("cached_from" in step for step in again.steps())
    changed = graph(12)
    assert changed.result(LONG_S) == {"all": 529}
    assert sum("cached_from" in step for step in changed.steps()) == 11


def test_files_of_commands_go_to_other_hosts_and_are_found_there_again(three: Three, tmp_path: Path) -> None:
    here, there, _ = (each["node_id"] for each in three[0].client().hosts())
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    def graph() -> Any:
        dag = Dag("files", cache="inputs")
        line = f"echo ran >> {tmp_path}/log; echo a line > file"
        made = dag.run(["sh", "-c", line], cwd=tmp_path / "one", outputs=["file"], node=here, id="made")
        line = f"echo ran >> {tmp_path}/log; cat file file > both"
        dag.run(["sh", "-c", line], cwd=tmp_path / "two", inputs=made, outputs=["both"], node=there, id="both")
        return three[2].client().dag(dag)

    for _ in range(2):
        run = graph()
        assert run.wait(LONG_S)["state"] == "succeeded"
        assert run["both"].result()["both"] == b"a line\na line\n"
        assert [step["host"] for step in run.steps()] == [here, there]
        assert (tmp_path / "two" / "both").read_text() == "a line\na line\n"
        (tmp_path / "two" / "both").unlink()
        assert (tmp_path / "log").read_text().split() == ["ran", "ran"]


def given(seen: str) -> Iterator[int]:
    yield 1
    until(lambda: os.path.exists(seen), "it is taken on the other host while this runs", LONG_S)
    yield from range(2, 1000)


def summed(items: Iterator[int], seen: str) -> int:
    total = 0
    for number in items:
        total += number
        Path(seen).touch()
    return total


def test_items_go_to_another_host_while_they_are_made(three: Three, tmp_path: Path) -> None:
    here, there, _ = (each["node_id"] for each in three[0].client().hosts())
    dag = Dag("streams")
    items = dag.add(given, str(tmp_path / "seen"), stream=True, cpus=0.1, node=here, id="given")
    dag.add(summed, items, str(tmp_path / "seen"), cpus=0.1, node=there, id="taken")
    run = three[2].client().dag(dag)
    assert run.result(LONG_S) == {"taken": sum(range(1000))}
    assert [step["host"] for step in run.steps()] == [here, there]
