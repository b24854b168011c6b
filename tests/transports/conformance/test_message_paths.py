"""What every path of messages promises (``actorgrid.transports.paths``), whatever carries it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.errors import ActorGridError, FrameTooLarge
from tests.transports.conformance.paths import RIGS, PathRig

KIB = 1024


@pytest.fixture(params=sorted(RIGS))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PathRig]:
    made = RIGS[request.param](tmp_path)
    yield made
    made.close()


def messages(count: int, largest: int, seed: int = 1) -> list[bytes]:
    """Messages of all sizes up to *largest*, each of which says its number."""
    rng = random.Random(seed)
    return [b"%d:" % number + rng.randbytes(rng.choice((0, 1, 7, 64, largest))) for number in range(count)]


def test_messages_come_whole_and_in_order_both_ways(rig: PathRig) -> None:
    there, back = messages(300, 9 * KIB), messages(300, 5 * KIB, seed=2)
    for one, other in zip(there, back, strict=True):
        rig.a.send_all([one], rig.until)
        rig.b.send_all([other], rig.until)
    rig.until(lambda: len(rig.b.came) == 300 and len(rig.a.came) == 300)
    assert rig.b.came == there
    assert rig.a.came == back


def test_empty_messages_are_messages(rig: PathRig) -> None:
    rig.a.send_all([b"", b"x", b""], rig.until)
    rig.until(lambda: len(rig.b.came) == 3)
    assert rig.b.came == [b"", b"x", b""]


def test_large_messages_come_whole_between_small_ones(rig: PathRig) -> None:
    largest = min(rig.a.path.largest_bytes, 6 * 2**20)
    sent = [b"before", random.Random(3).randbytes(largest), b"between", bytes(largest // 2 + 1), b"after"]
    rig.a.send_all(sent, rig.until)
    rig.until(lambda: len(rig.b.came) == len(sent))
    assert rig.b.came == sent


def test_a_message_that_is_too_large_is_refused_and_the_path_goes_on(rig: PathRig) -> None:
    with pytest.raises(FrameTooLarge):
        rig.a.path.send(bytes(rig.a.path.largest_bytes + 1))
    rig.a.send_all([b"on"], rig.until)
    rig.until(lambda: rig.b.came)
    assert rig.b.came == [b"on"]


def test_a_reader_who_does_not_take_costs_a_bounded_amount_and_loses_nothing(rig: PathRig) -> None:
    rig.a.send_all([b"first"], rig.until)
    rig.until(lambda: rig.b.came)
    rig.b.reads = False
    rig.stopped.add("b")
    sent, piece = 0, bytes(256 * KIB)
    while rig.a.path.send(piece):
        sent += 1
        assert sent * len(piece) <= 2 * rig.bound_bytes, "a path has a bound"
    assert not rig.a.path.send(piece), "and keeps to it"
    rig.stopped.clear()
    rig.b.reads = True
    rig.b.take()
    rig.until(lambda: len(rig.b.came) == 1 + sent and rig.a.rooms)
    rig.a.send_all([b"last"], rig.until)
    rig.until(lambda: rig.b.came[-1] == b"last")
    assert len(rig.b.came) == sent + 2


def test_what_was_refused_for_want_of_credit_never_comes(rig: PathRig) -> None:
    """To give up on a message that waits for credit is not to send it again: nothing of it has gone."""
    rig.b.reads = False
    rig.stopped.add("b")
    sent, piece = 0, bytes(256 * KIB)
    while rig.a.path.send(b"%d:" % sent + piece):
        sent += 1
    rig.stopped.clear()
    rig.b.reads = True
    rig.b.take()
    rig.until(lambda: len(rig.b.came) >= sent and rig.a.rooms)
    rig.a.send_all([b"done"], rig.until)
    rig.until(lambda: rig.b.came[-1] == b"done")
    assert [message.partition(b":")[0] for message in rig.b.came[:-1]] == [b"%d" % number for number in range(sent)]


def test_the_death_of_the_other_side_is_told_once_after_what_it_said(rig: PathRig) -> None:
    rig.b.send_all([b"1", b"2", b"3"], rig.until)
    rig.until(lambda: len(rig.a.came) == 3)
    rig.kill()
    rig.until(lambda: rig.a.ends)
    rig.until(lambda: rig.a.over is not None)
    assert len(rig.a.ends) == 1
    with pytest.raises(ActorGridError):
        rig.a.path.send(b"anyone?")
    with pytest.raises(ActorGridError):
        rig.a.path.take()
    assert rig.a.came == [b"1", b"2", b"3"]
    assert len(rig.a.ends) == 1


def test_the_death_of_a_side_that_was_sent_to_is_told_while_much_is_under_way(rig: PathRig) -> None:
    rig.a.send_all([b"first"], rig.until)
    rig.until(lambda: rig.b.came)
    rig.stopped.add("b")
    for _ in range(8):
        rig.a.path.send(bytes(64 * KIB))
    rig.kill()
    rig.until(lambda: rig.a.ends)
    assert len(rig.a.ends) == 1


def test_a_side_that_is_silent_is_taken_for_dead_between_hosts_alone(rig: PathRig) -> None:
    rig.a.send_all([b"first"], rig.until)
    rig.until(lambda: rig.b.came)
    rig.stopped.add("b")
    if rig.notices_silence:
        rig.until(lambda: rig.a.ends)
        return
    rig.a.send_all([b"second"], rig.until)
    for _ in range(20):
        rig.pump()
    assert not rig.a.ends
    rig.stopped.clear()
    rig.until(lambda: len(rig.b.came) == 2)


def test_a_close_is_told_to_the_other_side_and_not_to_the_own(rig: PathRig) -> None:
    rig.a.send_all([b"bye"], rig.until)
    rig.until(lambda: rig.b.came)
    rig.a.path.close()
    rig.until(lambda: rig.b.ends)
    assert rig.b.came == [b"bye"]
    assert not rig.a.ends


def test_bytes_that_are_no_protocol_end_the_path_and_nothing_else(rig: PathRig) -> None:
    rig.a.send_all([b"first"], rig.until)
    rig.until(lambda: rig.b.came)
    try:
        rig.flood()
    except NotImplementedError as why:
        pytest.skip(str(why) or "no bytes of strangers come here")
    rig.until(lambda: rig.a.ends)
    assert len(rig.a.ends) == 1
    with pytest.raises(ActorGridError):
        rig.a.path.send(b"more")
