"""A crash is told once, with all that is known; a start that fails and a wrong name say what there is."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.host.logs import AgentLog
from actorgrid.errors import ActorDown, NoSuchActor, StartFailed
from actorgrid.supervisors.child import ChildSpec
from actorgrid.supervisors.supervisor import Supervisor, WhichChildren
from actorgrid.supervisors.tree import Tree
from tests.otp.till import Burn, Sell


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Any]:
    """What all processes of the trees of this test log, from warnings on."""
    path = tmp_path / "log"
    handler = AgentLog(path, 1 << 20)
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield lambda: [json.loads(line) for line in path.read_text().splitlines()]
    finally:
        logging.getLogger().removeHandler(handler)


def till(kind: str = "Till", name: str = "till") -> ChildSpec:
    return ChildSpec(name, f"tests.otp.till:{kind}", restart="temporary")


def test_a_crash_is_one_record_with_message_and_state_and_without_secrets(records: Any) -> None:
    with Tree() as tree:
        tree.up(Supervisor, None, (till(),))
        assert tree.call("till", Sell("tea")) == 1
        with pytest.raises(ActorDown):
            tree.call("till", Sell("cat"))
    (record,) = records()
    crash = record["crash"]
    assert record["message"] == f"till (pid {crash['pid']}) ended: {crash['reason']}"
    assert crash["reason"] == "ZeroDivisionError: cats are not sold (exit status 70)" and crash["kind"] == "error"
    assert crash["last_message"] == "call Sell(item='cat', card_token=(hidden)) from main"
    assert crash["state"] == {"sold": "['tea', 'cat']", "password": "(hidden)"}
    assert crash["traceback"].rstrip().endswith("ZeroDivisionError: cats are not sold")
    assert crash["server"] == "till" and crash["pid"] != record["pid"], "its supervisor says it"


def test_who_dies_without_a_word_is_told_with_the_message_that_it_handled(records: Any) -> None:
    with Tree() as tree:
        tree.up(Supervisor, None, (till(),))
        with pytest.raises(ActorDown):
            tree.call("till", Burn())
        while tree.call("root", WhichChildren()):  # until its supervisor has heard of the end: no order to stop before
            pass
    (record,) = records()
    assert record["crash"]["reason"] == "exit status 9" and record["crash"]["last_message"] == "Burn"


def test_a_start_that_fails_names_the_child_the_reason_and_the_place(records: Any) -> None:
    with Tree() as tree, pytest.raises(StartFailed) as failed:
        tree.up(Supervisor, None, (till(), till("BadStart", "drawer")))
    assert failed.value.message == "drawer did not start: KeyError('drawer')"
    assert "till.py" in failed.value.found and "in start" in failed.value.found
    assert "log" not in failed.value.hint
    assert [each["crash"]["server"] for each in records() if "crash" in each] == ["drawer"]


def test_a_start_that_takes_too_long_names_who_is_late() -> None:
    with Tree() as tree:
        with pytest.raises(StartFailed) as failed:
            tree.up(Supervisor, None, (till(), till("Waits", "late")), timeout_s=2.0)
        assert failed.value.found == "begun last: late" and "timeout_s" in failed.value.hint


def test_a_wrong_name_is_answered_with_those_that_there_are() -> None:
    with Tree() as tree:
        tree.up(Supervisor, None, (till(), till(name="bank")))
        with pytest.raises(NoSuchActor) as unknown:
            tree.call("tlil", Sell("tea"))
        assert unknown.value.found == "servers now: bank, root, till" and unknown.value.hint == "Did you mean 'till'?"
        assert not tree.cast("tlil", Sell("tea"))
