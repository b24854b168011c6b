"""``leave``: asked again until the host is gone, and what is said meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorgrid.cli import leave
from actorgrid.errors import WrongState

from .conftest import Door, Invoke


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leave, "WAIT_S", 0.0)


def answer(state: str, waits_for: tuple[str, ...] = (), lost: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"host_id": "h2", "state": state, "waits_for": list(waits_for), "lost": list(lost)}


def test_it_asks_until_the_host_has_left(call: Invoke, door: Door) -> None:
    steps = [answer("draining", ("a.1",)), answer("handing_over"), answer("left")]
    door.on("POST /api/hosts/this/leave", lambda _query, _body: steps.pop(0))
    assert call("leave").stdout == "host h2 has left the cluster\n"
    assert steps == []


def test_a_host_that_is_gone_is_named_and_what_was_lost_is_told(call: Invoke, door: Door) -> None:
    door.on("POST /api/hosts/gpu-2/leave", answer("left", lost=("a.1",)))
    shown = call("leave", "--host", "gpu-2", "--force").stdout
    assert "has left" in shown and "a.1" in shown
    assert door.asked[-1][2]["force"] is True
    assert json.loads(call("leave", "--host", "gpu-2", "--force", "--json").stdout)["lost"] == ["a.1"]


def test_a_refusal_ends_it(call: Invoke, door: Door) -> None:
    door.fail("POST /api/hosts/this/leave", WrongState("host h2 is the last that may vote"))
    assert "last that may vote" in call("leave").stderr


def test_what_does_not_go_together_is_refused_before_anything_is_sent(call: Invoke, door: Door) -> None:
    assert call("leave", "--force").exit_code == 2
    assert call("leave", "--now", "--cancel").exit_code == 2
    assert door.asked == []


def test_it_may_be_taken_back(call: Invoke, door: Door) -> None:
    door.on("POST /api/hosts/this/leave", answer("stays"))
    assert call("leave", "--cancel").stdout == "host h2 stays\n"
