"""The ring in shared memory, in every order of its steps: nothing is lost, nothing half written is read, and nobody
sleeps over a message or over room. And without any one of its orders, one of these is found to happen."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

import pytest

from actorgrid.errors import MalformedMessage
from actorgrid.hotpath.reference.message_ring import FULL, PUSHED_RING, RingSide, Step, Steps
from tests.hotpath.interleavings import Outcome, explore

CAPACITY = 32
"""Two messages of 8 bytes fill it."""
A, B, C = b"a" * 8, b"b" * 8, b"c" * 8
Spoil = Callable[[Step], Step | None]


def as_it_is(step: Step) -> Step | None:
    return step


def played(steps: Steps, spoil: Spoil) -> Steps:
    """*steps* with what *spoil* makes of each; of positions the place in the ring."""
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return end.value
        if step[0] in ("read", "write"):
            step = (step[0], step[1] % CAPACITY, step[2])
        spoiled = spoil(step)
        answer = (yield spoiled) if spoiled is not None else None


def pushing(messages: Iterable[bytes], spoil: Spoil = as_it_is) -> Callable[[], Generator[Step, Any, Any]]:
    """Whoever pushes: sleeps where the ring is full."""

    def program() -> Steps:
        side = RingSide(CAPACITY)
        for message in messages:
            while (pushed := (yield from played(side.push(message), spoil))) == FULL:
                if (yield from played(side.starve(), spoil)):
                    yield "sleep", "pusher"
            if pushed == PUSHED_RING:
                yield "wake", "popper"
        return "sent"

    return program


def popping(count: int, spoil: Spoil = as_it_is) -> Callable[[], Generator[Step, Any, Any]]:
    """Whoever pops: sleeps where there is nothing."""

    def program() -> Steps:
        side, came = RingSide(CAPACITY), []
        while len(came) < count:
            message = yield from played(side.pop(), spoil)
            if side.ring_other:
                side.ring_other = False
                yield "wake", "pusher"
            if message is not None:
                came.append(message)
            elif (yield from played(side.arm(), spoil)):
                yield "sleep", "popper"
        return tuple(came)

    return program


def of_ring(messages: list[bytes], spoil: Spoil = as_it_is) -> Outcome:
    return explore((pushing(messages, spoil), popping(len(messages), spoil)))


def test_all_messages_come_in_order_and_nobody_sleeps_for_ever() -> None:
    for messages in ([A], [b"a", b"b"], [b"", b"x"]):
        found = of_ring(messages)
        assert found.stuck == []
        assert found.results == {(("sent",), (tuple(messages),))}


@pytest.mark.system
def test_a_full_ring_is_waited_for_by_whoever_pushes() -> None:
    messages = [A, B, C]
    found = of_ring(messages)
    assert found.stuck == []
    assert found.results == {(("sent",), (tuple(messages),))}
    assert found.worlds > 1000, "that many orders there are"


def without_fences(step: Step) -> Step | None:
    return None if step == ("fence",) else step


def without_release(step: Step) -> Step | None:
    return ("store", *step[1:]) if step[0] == "release" else step


def test_without_fences_somebody_sleeps_over_a_message() -> None:
    """The planted fault: both look before what the other wrote has reached the memory."""
    assert of_ring([b"a"], without_fences).stuck


def test_without_release_bytes_are_read_before_they_are_written() -> None:
    """The planted fault: the head is there before the bytes. The ring is checked, so that it is an error, or other
    bytes than were sent."""
    try:
        found = of_ring([b"a"], without_release)
    except (MalformedMessage, KeyError) as error:
        assert isinstance(error, MalformedMessage)
        return
    assert found.results != {(("sent",), ((b"a",),))}


@pytest.mark.parametrize("forgotten", ["sleeping", "starving"])
def test_a_flag_that_is_never_set_leaves_somebody_asleep(forgotten: str) -> None:
    cell = {"sleeping": 128, "starving": 192}[forgotten]

    def spoil(step: Step) -> Step | None:
        return None if step == ("store", cell, 1) else step

    assert of_ring([A, B, C], spoil).stuck
