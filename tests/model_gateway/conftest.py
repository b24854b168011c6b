"""A gateway before one scripted replica, and clients for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import openai
import pytest

from actorgrid.actors.serving.table import ServiceTable

from .running import RunningGateway, endpoint, route, table
from .scripted_replica import ScriptedReplica


@pytest.fixture(scope="module")
def replica() -> Iterator[ScriptedReplica]:
    made = ScriptedReplica()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def gateway(replica: ScriptedReplica) -> Iterator[RunningGateway]:
    made = RunningGateway(table(route(endpoint(replica))))
    yield made
    made.stop()


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="sk-none", base_url=gateway.url, max_retries=0) as made:
        yield made


@pytest.fixture
def replicas() -> Iterator[Callable[..., ScriptedReplica]]:
    """Makes replicas of a test's own."""
    made: list[ScriptedReplica] = []

    def make(plan: str = "") -> ScriptedReplica:
        made.append(ScriptedReplica(plan))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def gateways() -> Iterator[Callable[[ServiceTable], RunningGateway]]:
    """Makes gateways of a test's own."""
    made: list[RunningGateway] = []

    def make(now: ServiceTable) -> RunningGateway:
        made.append(RunningGateway(now))
        return made[-1]

    yield make
    for each in made:
        each.stop()
