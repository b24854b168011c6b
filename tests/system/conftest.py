from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.agent import Agent
from tests.system.cluster_host import ClusterHost


@pytest.fixture
def make_agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(*settings: str, name: str = "host", gpus: str = "simulated:4xH100-80GB") -> Agent:
        agent = Agent(tmp_path / name, *settings, gpus=gpus)
        made.append(agent)
        return agent

    yield make
    for agent in made:
        agent.close()


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One agent for tests that leave it as they found it."""
    agent = Agent(tmp_path_factory.mktemp("shared") / "host").start()
    yield agent
    agent.close()


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[Callable[..., ClusterHost]]:
    made: list[ClusterHost] = []

    def make(name: str, gpus: int) -> ClusterHost:
        host = ClusterHost(tmp_path / name, f"simulated:{gpus}xH100-80GB")
        made.append(host)
        return host

    yield make
    for host in made:
        host.close()
