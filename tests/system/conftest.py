from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes import until
from tests.system.agent import Agent, closing_all
from tests.system.cluster_host import ClusterHost, Two


@pytest.fixture
def make_agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(*settings: str, name: str = "host", gpus: str = "simulated:4xH100-80GB") -> Agent:
        agent = Agent(tmp_path / name, *settings, gpus=gpus)
        made.append(agent)
        return agent

    with closing_all(made):
        yield make


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One agent for tests that leave it as they found it."""
    agent = Agent(tmp_path_factory.mktemp("shared") / "host").start()
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Two hosts for a whole file. The first leads and has one GPU, the second has three of another model."""
    folder = tmp_path_factory.mktemp("two")
    first = ClusterHost(folder / "first", "simulated:1xH100-80GB")
    second = ClusterHost(folder / "second", "simulated:3xA100-40GB")
    with closing_all((first, second)):
        first.found()
        second.join(first, first.token()["token"])
        until(lambda: first.roles() == second.roles() == {1: "leader", 2: "learner"}, "both know both")
        until(lambda: len(first.cli_json("gpus")["gpus"]) == 4, "all devices are known")
        yield first, second


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[Callable[..., ClusterHost]]:
    made: list[ClusterHost] = []

    def make(name: str, gpus: int) -> ClusterHost:
        host = ClusterHost(tmp_path / name, f"simulated:{gpus}xH100-80GB")
        made.append(host)
        return host

    with closing_all(made):
        yield make
