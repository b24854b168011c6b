"""A name server that does not answer holds nobody up for longer than a try may take."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from actorgrid.actors.notifications import name_lookup
from actorgrid.actors.notifications.name_lookup import LEFT_MAX, look_up


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lookups hang until it is set."""
    go_on = threading.Event()
    ended = threading.Semaphore(0)

    def hang(*_args: Any, **_more: Any) -> list[Any]:
        go_on.wait(60)
        ended.release()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(name_lookup, "_running", threading.BoundedSemaphore(LEFT_MAX))
    yield go_on
    go_on.set()


def test_a_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look_up("localhost", 80, 60.0)[0][4][1] == 80
    with pytest.raises(OSError, match=r".+"):
        look_up("no-such-host.invalid", 80, 60.0)


def test_a_lookup_that_hangs_is_left_behind(silent: threading.Event) -> None:
    with pytest.raises(TimeoutError, match="no name server answered"):
        look_up("a.example", 80, 0.01)


def test_no_more_are_left_behind_than_there_may_be_and_they_come_back(silent: threading.Event) -> None:
    for _ in range(LEFT_MAX):
        with pytest.raises(TimeoutError, match="no name server"):
            look_up("a.example", 80, 0.001)
    with pytest.raises(TimeoutError, match="lookups of names hang"):
        look_up("a.example", 80, 60.0)
    silent.set()
    for thread in threading.enumerate():
        if thread.name == "lookup":
            thread.join(60)
    assert look_up("a.example", 80, 60.0) == []
