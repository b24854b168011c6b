"""A port that leads to a job, while that job runs, waits and ends."""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import Any

import pytest

from actorgrid.client import port_forward
from actorgrid.client.client import Client
from actorgrid.client.port_forward import PortForward
from actorgrid.errors import HostUnreachable, JobNotRunning
from tests.client.stand_in import StandIn, wait_until

ADDRESS = {"job_id": "j", "attempt_id": "j.1", "attempt": 1, "secret": "s", "terminal": False}


def test_it_stays_while_the_job_waits_for_another_attempt(
    host: StandIn, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_forward, "LOOK_S", 0.05)
    state = "running"
    said: list[str] = []

    def channel(_body: Any, _query: Any) -> dict[str, Any]:
        if state == "cut off":
            raise HostUnreachable("the host that the job runs on is not reached")
        if state != "running":
            raise JobNotRunning(f"the job is not running: it is {state}")
        return ADDRESS

    host.routes["POST", "/api/jobs/j/channel"] = channel
    host.routes["GET", "/api/jobs/j"] = lambda _body, _query: {"job_id": "j", "state": state}
    ends: list[JobNotRunning] = []

    def forwards(forward: PortForward) -> None:
        try:
            forward.run()
        except JobNotRunning as error:
            ends.append(error)

    def heard(told: str) -> bool:
        return any(told in text for text in said) or not thread.is_alive()

    with PortForward(client.http, "j", 80, 0, notice=said.append) as forward:
        thread = threading.Thread(target=forwards, args=(forward,))
        thread.start()
        for next_state, told in (("cut off", "not reached"), ("queued", "it is queued")):
            state = next_state
            wait_until(partial(heard, told))
            with socket.create_connection(("127.0.0.1", forward.local_port)) as connection:
                connection.settimeout(30)
                assert connection.recv(1) == b""
        assert thread.is_alive() and not ends
        state = "failed"
        thread.join(30)
    assert len(ends) == 1
