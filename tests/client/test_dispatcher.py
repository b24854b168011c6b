"""The dispatcher's two threads: whoever closes it, and the reader of results."""

from __future__ import annotations

import os
from typing import Any

import pytest

from actorgrid.client.dispatcher import Dispatcher


class NoLeases:
    """Grants nothing; nobody asks."""


def test_a_reader_that_sees_the_close_first_leaves_the_descriptors_to_the_closer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source: Any = NoLeases()
    dispatcher = Dispatcher(source, None)
    waited: list[bool] = []

    def wake_the_reader() -> None:
        os.eventfd_write(dispatcher._sockets._wake_fd, 1)
        dispatcher._sockets._thread.join(0.3)
        waited.append(dispatcher._sockets._thread.is_alive())

    monkeypatch.setattr(dispatcher._room, "notify_all", wake_the_reader)
    dispatcher.close()
    assert waited == [True]
    assert not dispatcher._sockets._thread.is_alive()
    dispatcher.close()
