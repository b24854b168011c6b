"""Two real hosts that hear of each other's load, a worker that leaves one of them, and tasks that are stolen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from tests.processes import until
from tests.system.agent import closing_all
from tests.system.cluster_host import ClusterHost


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClusterHost, ClusterHost]]:
    """The first host leads."""
    folder = tmp_path_factory.mktemp("load")
    first, second = ClusterHost(folder / "first", "none"), ClusterHost(folder / "second", "none")
    with closing_all((first, second)):
        first.found()
        second.join(first, first.token()["token"])
        until(lambda: first.roles() == second.roles() == {1: "leader", 2: "learner"}, "both know both")
        yield first, second


Two = tuple[ClusterHost, ClusterHost]


def test_each_host_hears_of_the_others_load(two: Two) -> None:
    for host in two:

        def states(host: ClusterHost = host) -> list[str]:
            return [each["state"] for each in host.cli_json("hosts", "--load")["hosts"]]

        until(lambda: states() == ["known", "known"], "both loads are known", within_s=60)
        for each in host.cli_json("hosts", "--load")["hosts"]:
            assert each["reading"]["cpus"] == os.cpu_count() and each["history"] and each["expected"] is not None
        assert "known" in host.cli("inspect", "load_balancer").stdout


def test_a_worker_leaves_its_host_when_that_is_to_be_emptied(two: Two) -> None:
    first, _ = two
    ids = {node: host["node_id"] for node, host in first.hosts().items()}

    def there() -> list[str]:
        return [each["host"] for each in first.client().allocations()]

    with actorgrid.connect(data_dir=first.data_dir, keep_alive_s=600.0) as client:
        client.submit(os.getpid, cpus=0.1).result(60)
        assert there() == [ids[1]]
        assert [each["done"] for each in first.cli_json("rebalance", "--off", "1")["moves"]] == [False]
        assert there() == [ids[1]], "that was only the plan"
        until(lambda: bool(first.cli_json("rebalance", "--off", "1", "--yes")["moves"]), "its client is told")
        until(lambda: there() == [], "its client has let it go")
        client.submit(os.getpid, cpus=0.1).result(60)
        assert there() == [ids[2]]
    until(lambda: there() == [], "all are returned")


def test_tasks_behind_one_that_takes_long_run_elsewhere_and_once(two: Two, tmp_path: Path) -> None:
    first, _ = two
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    os.mkfifo(gate)

    def work(number: int, gate: str, ran: str) -> int:
        with open(ran, "a") as file:
            file.write(f"{number}\n")
        if gate:
            with open(gate) as held:
                held.read()
        return number

    def start(numbers: range, gate: str = "") -> list[Any]:
        return [client.submit(work, number, gate, str(ran), cpus=0.1) for number in numbers]

    with actorgrid.connect(data_dir=first.data_dir, keep_alive_s=600.0) as client:
        gates = [tmp_path / "first", tmp_path / "second"]
        blocking = []
        for held in gates:
            os.mkfifo(held)
            blocking += start(range(-1, 0), str(held))
        until(lambda: client._session.figures()["workers"] >= 2, "there is a second worker", within_s=60)
        for held, future in zip(gates, blocking, strict=True):
            held.write_text("go")
            assert future.result(60) == -1
        for future in start(range(-300, 0)):
            future.result(60)
        ran.unlink()
        long_one = start(range(1), str(gate))
        others = start(range(1, 60))
        assert [future.result(60) for future in others] == list(range(1, 60)), "while the first is held at its gate"
        gate.write_text("go")
        assert long_one[0].result(60) == 0
    assert sorted(int(line) for line in ran.read_text().split()) == list(range(60)), "each ran once"
