"""A socket that leads to a worker over a relay: what is told to have arrived is read, however it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorgrid.client.relay_loop import RelayLoop
from actorgrid.client.relayed_socket import RelayedSocket
from actorgrid.errors import UnknownAllocation


@pytest.fixture
def loop() -> Iterator[RelayLoop]:
    made = RelayLoop()
    made.start()
    yield made
    made.finish(30)


def test_what_came_before_it_failed_is_read_to_its_end(loop: RelayLoop) -> None:
    relayed = RelayedSocket(loop, "worker", {}, "secret")
    sent = b"x" * 8 * 2**20
    relayed._to_inner += sent  # more than the user's end takes at once
    assert loop.post(lambda: relayed.fail(UnknownAllocation("the worker is gone")))
    came = bytearray()
    with relayed.sock:
        while data := relayed.sock.recv(65536):
            came += data
    assert bytes(came) == sent
    assert isinstance(relayed.failure, UnknownAllocation)
