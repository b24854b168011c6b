"""Steps that stream on a real host: taken while they are made, after the end, and anew when who gives dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import actorgrid
from actorgrid import Dag, errors
from tests.processes import until
from tests.system.agent import Agent

WAIT_S = 120.0


@pytest.fixture(scope="module")
def client(shared_agent: Agent) -> Iterator[actorgrid.Client]:
    with actorgrid.connect(data_dir=shared_agent.data_dir) as client:
        yield client


def gives(seen: str, count: int, kills: str = "") -> Iterator[tuple[int, int]]:
    """Items with the process that made them; after the first it waits until somebody has *seen* that."""
    yield 0, os.getpid()
    until(lambda: os.path.exists(seen), "the first one is taken while this runs")
    if kills and not os.path.exists(kills):
        Path(kills).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    for number in range(1, count):
        yield number, os.getpid()


def takes(items: Iterator[tuple[int, int]], seen: str) -> tuple[int, int]:
    """The sum of the items, and how many processes made them."""
    total, made_by = 0, set()
    for number, pid in items:
        total += number
        made_by.add(pid)
        Path(seen).touch()
    return total, len(made_by)


def test_a_step_takes_the_items_of_another_while_that_runs(client: actorgrid.Client, tmp_path: Path) -> None:
    dag = Dag("streams")
    items = dag.add(gives, str(tmp_path / "seen"), 200, stream=True, cpus=0.1, id="gives")
    dag.add(takes, items, str(tmp_path / "seen"), cpus=0.1, id="takes")
    run = client.dag(dag)
    assert run.result(WAIT_S) == {"takes": (sum(range(200)), 1)}
    assert [number for number, _ in run["gives"].result()] == list(range(200))


def kept(items: Iterator[int]) -> list[int]:
    return list(items)


def counted(count: int) -> Iterator[int]:
    yield from range(count)


def test_without_room_for_both_the_items_are_taken_after_the_end(client: actorgrid.Client) -> None:
    dag = Dag("after", in_parallel=1)
    items = dag.add(counted, 300, stream=True, cpus=0.1)
    dag.add(kept, items, cpus=0.1, id="kept")
    assert client.dag(dag).result(WAIT_S) == {"kept": list(range(300))}


def test_when_the_one_that_gives_dies_the_one_that_takes_begins_anew(client: actorgrid.Client, tmp_path: Path) -> None:
    seen, killed = str(tmp_path / "seen"), str(tmp_path / "killed")
    dag = Dag("again")
    items = dag.add(gives, seen, 50, killed, stream=True, cpus=0.1, retries=1, id="gives")
    dag.add(takes, items, seen, cpus=0.1, id="takes")
    run = client.dag(dag)
    assert run.result(WAIT_S) == {"takes": (sum(range(50)), 1)}
    assert os.path.exists(killed)
    steps = {step["id"]: step for step in run.steps()}
    assert steps["takes"]["failures"] == 0, "it is no fault of its own"
    assert len(client.job(steps["gives"]["job_id"])["attempts"]) == 2


def test_what_cannot_take_items_is_refused(client: actorgrid.Client) -> None:
    dag = Dag()
    items = dag.add(counted, 3, stream=True)
    with pytest.raises(TypeError, match="iterates over its items"):
        items[0]
    with pytest.raises(errors.InvalidGraph, match="a merge takes no items"):
        dag.merge(items)
    dag.add(sum, [dag.inline(kept, items)])
    with pytest.raises(errors.InvalidGraph, match="inline and takes items"):
        client.dag(dag)
