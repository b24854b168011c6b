from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorgrid.client.client import Client
from tests.client.stand_in import StandIn


@pytest.fixture
def host() -> Iterator[StandIn]:
    host = StandIn()
    yield host
    host.close()


@pytest.fixture
def client(host: StandIn) -> Iterator[Client]:
    client = Client(host.url, host.token)
    yield client
    client.close()
