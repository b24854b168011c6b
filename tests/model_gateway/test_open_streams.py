"""Ten thousand streams of events that are open at once, through a real gateway: what they take, and that
each of them is whole in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorgrid.actors.model_gateway.process_spec import allow_descriptors

from .gateway_process import AgentEnd, GatewayProcess
from .running import endpoint, route, table

STREAMS = 10_000
CLIENT_DESCRIPTORS = STREAMS + 500
BYTES_MAX = 400 * 2**20


def in_flight(agent: AgentEnd) -> int:
    """As the next report says."""
    return sum(each.in_flight for each in agent.report().demands)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_ten_thousand_streams_are_open_at_once_and_each_is_whole(tmp_path: Path) -> None:
    from tests.bench.model_gateway import canned_model, open_streams, workers_for

    if allow_descriptors(CLIENT_DESCRIPTORS) < CLIENT_DESCRIPTORS:
        pytest.skip(f"a process may not have {CLIENT_DESCRIPTORS} descriptors here (ulimit -Hn)")
    process = GatewayProcess(tmp_path / "gw", workers=workers_for(STREAMS))
    agent = AgentEnd(process.folder)
    try:
        with canned_model() as model:
            agent.use(table(route(endpoint(model))))
            while agent.report().table_sequence != 1:
                pass
            port = int(agent.hello.client_address.rpartition(":")[2])
            with open_streams(port, STREAMS) as end:
                while in_flight(agent) < STREAMS:
                    pass
                taken = sum(each.memory_info().rss for each in process.workers)
                assert end() == STREAMS
            print(f"{taken / 2**20:.0f} MiB with {STREAMS} open streams")
            assert taken <= BYTES_MAX
            while in_flight(agent):
                pass  # all of them are given back
    finally:
        agent.close()
        process.stop()
