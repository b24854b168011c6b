"""Half an hour of a thousand requests a second: the gateway's processes are not larger at the end than before.

``ACTORGRID_SOAK_S`` says for how long instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from actorgrid.actors.serving.table import RoutingStrategy

from .gateway_process import AgentEnd, GatewayProcess
from .running import endpoint, route, table

SECONDS = float(os.environ.get("ACTORGRID_SOAK_S", "1800"))
RATE = 1_000
ROUNDS = 12
GROWTH_MAX = 8 * 2**20
"""Of all processes, from the fourth round to the last: pools, buffers and the index have what they need by then."""
LOAD = [sys.executable, "-m", "tests.bench.gateway_load"]


@pytest.fixture
def model() -> Iterator[int]:
    """The port of a canned model."""
    from tests.bench.model_gateway import canned_model

    with canned_model() as port:
        yield port


def _read_reports(agent: AgentEnd) -> None:
    with suppress(OSError, AssertionError):  # until the gateway hangs up
        while True:
            agent.report()


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
def test_half_an_hour_of_a_thousand_requests_a_second_leaves_nothing_behind(model: int, tmp_path: Path) -> None:
    process = GatewayProcess(tmp_path / "gw")
    agent = AgentEnd(process.folder)
    try:
        agent.use(table(replace(route(endpoint(model)), strategy=RoutingStrategy.PREFIX_COST)))
        while agent.report().table_sequence != 1:
            pass
        port = agent.hello.client_address.rpartition(":")[2]
        # As a host's agent does: what it left unread would be kept for it, and count.
        reading = threading.Thread(target=_read_reports, args=(agent,), daemon=True)
        reading.start()
        found: list[int] = []
        answered = 0
        for _ in range(ROUNDS):
            load = [*LOAD, "pace", port, str(SECONDS / ROUNDS), str(RATE)]
            done = subprocess.run(load, capture_output=True, text=True, check=True)
            answered += int(done.stdout.split()[0])
            taken = [psutil.Process(process.process.pid), *process.workers]
            found.append(sum(each.memory_info().rss for each in taken))
            print(f"{answered} answers, {found[-1] / 2**20:.1f} MiB, load {os.getloadavg()[0]:.1f}", flush=True)
        each_of = {each.pid: round(each.memory_info().rss / 2**20, 1) for each in taken}
        print(each_of, f"{answered} answers; MiB after each round:", [round(each / 2**20, 1) for each in found])
        assert answered == ROUNDS * int(SECONDS / ROUNDS * RATE)
        assert found[-1] - found[3] <= GROWTH_MAX, found
    finally:
        process.stop()
        agent.close()
