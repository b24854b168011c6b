"""Messages pickled as their values alone come out as they went in, and those for several are pickled once."""

from __future__ import annotations

import pickle
from typing import Any

from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.command import read_command
from actorgrid.actors.ledger.messages import Applied, Proposed
from actorgrid.supervisors.envelope import Batch, Envelope
from actorgrid.supervisors.wire import pack, unpack
from tests.hostile.examples import examples, furnished


def through(body: Any) -> Any:
    return unpack(pack(Envelope("cast", "a", None, body)), "1.2").body


def test_every_command_comes_out_as_it_went_in() -> None:
    given = [read_command(plain) for plain in examples(furnished())]
    for command in given:
        found = through(command)
        assert type(found) is type(command)
        assert found == command
        assert found.to_plain() == command.to_plain()
    assert len({command.verb for command in given}) > 50


def test_what_was_not_given_is_still_absent() -> None:
    command = commands.EndAttempt("a.1", [1, 2, 3], "succeeded", at=2.0)
    assert through(command).to_plain() == command.to_plain()
    assert through(command).at == 2.0


def test_messages_with_defaults_come_out_as_they_went_in() -> None:
    first = Applied(2, 1, 1.0, "end_attempt", (("job", "a", {"state": "queued"}), ("allocation", "a.1", None)))
    last = Applied(3, 2, 1.0, "cancel_job", (("job", "a", None),), {"queued": 0})
    assert through(first) == first
    assert through(Proposed(3, {"a": 1})) == Proposed(3, {"a": 1})
    assert through(Batch((first, last))).messages == (first, last)


class Counted:
    pickled = 0

    def __reduce__(self) -> Any:
        Counted.pickled += 1
        return Counted, ()


def test_a_batch_for_several_is_pickled_once() -> None:
    Counted.pickled = 0
    batch = Batch((Counted(),))
    assert [type(through(batch).messages[0]) for _ in range(3)] == [Counted] * 3
    assert Counted.pickled == 1
    assert pickle.loads(pickle.dumps(through(batch))).messages
