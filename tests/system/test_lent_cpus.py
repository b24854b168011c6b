"""Tasks that fill the host and wait for tasks of their own: these run on the CPUs of what waits."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import actorgrid
from tests.system.agent import Agent


def fibonacci(n: int, cpus: float) -> int:
    """Each waits for two others, down to the bottom."""
    if n < 2:
        return n
    with actorgrid.connect() as client:
        parts = [client.submit(fibonacci, n - back, cpus, cpus=cpus) for back in (1, 2)]
        return sum(part.result() for part in parts)


def square(number: int) -> int:
    return number * number


def waits_for_four(how: str, folder: str, cpus: float) -> list[int]:
    """Holds *cpus* and waits for tasks that need as much."""
    with actorgrid.connect() as client:
        if how == "map":
            return list(client.map(alone, range(4), [folder] * 4, cpus=cpus))
        futures = [client.submit(alone, number, folder, cpus=cpus) for number in range(4)]
        if how == "as_completed":
            return sorted(future.result() for future in concurrent.futures.as_completed(futures))
        if how == "wait":
            assert not concurrent.futures.wait(futures).not_done
        return [future.result() for future in futures]


def alone(number: int, folder: str) -> int:
    """Fails beside another of the same folder."""
    mark = Path(folder, "one runs")
    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    sum(range(200_000))
    mark.unlink()
    return number * number


def whole_of(client: Any) -> float:
    return float(sum(host["cpu_milli"] for host in client.hosts()) / 1000)


def test_a_tree_of_tasks_that_wait_for_each_other_comes_to_its_end(make_agent: Callable[..., Agent]) -> None:
    client = make_agent().start().client()
    whole = whole_of(client)
    assert client.submit(fibonacci, 4, whole, cpus=whole).result(300) == 3


def test_every_way_of_waiting_lends_and_one_runs_at_a_time(make_agent: Callable[..., Agent], tmp_path: Path) -> None:
    client = make_agent().start().client()
    whole = whole_of(client)
    for how in ("result", "wait", "as_completed", "map"):
        found = client.submit(waits_for_four, how, str(tmp_path), whole, cpus=whole).result(120)
        assert found == [0, 1, 4, 9], how


def waits_for_squares(cpus: float) -> list[int]:
    with actorgrid.connect() as client:
        return [future.result() for future in [client.submit(square, number, cpus=cpus) for number in range(4)]]


def test_tasks_that_fill_the_host_each_lend_to_their_own(make_agent: Callable[..., Agent]) -> None:
    client = make_agent().start().client()
    half = whole_of(client) / 2
    futures = [client.submit(waits_for_squares, half, cpus=half) for _ in range(6)]
    assert [future.result(120) for future in futures] == [[0, 1, 4, 9]] * 6


def descend(depth: int) -> int:
    """Waits for one more of its kind, down to the bottom."""
    if depth == 0:
        return 0
    with actorgrid.connect() as client:
        return 1 + int(client.submit(descend, depth - 1).result())


def test_tasks_wait_for_each_other_fifty_deep(make_agent: Callable[..., Agent]) -> None:
    assert make_agent().start().client().submit(descend, 50).result(300) == 50
