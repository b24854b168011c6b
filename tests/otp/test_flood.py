"""Floods: two actors that send each other 100,000 messages at once, and what is promised to them and to all others.

Who awaits room loses nothing. Who does not is told of each message that is not taken. Meanwhile both answer others,
stay within the bounds of their queues, and beat.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.tree import Tree
from actorgrid.supervisors.wire import TreeSettings
from tests.otp.limits_servers import DEADLINE_S, Ask, ask, lives, peak_mib, resident_mib, running, worker

pytestmark = pytest.mark.system

COUNT = 100_000
QUEUE_MIB = 256  # unix_outgoing's bound, beside 100,000 frames
MORE_MIB = 64  # besides: what is read in a turn, what it counts
NERVOUS = TreeSettings(beat_interval_s=0.25, hang_margin_s=1.0)  # who does not turn for 1.75 s is dead


@dataclass
class Meanwhile:
    """What a third actor learned while the flood was on."""

    answers: int
    in_the_midst: int  # of these, with some but not all messages handled


def watch(tree: Tree, *flooders: str, count: int) -> Meanwhile:
    """Have ``third`` ask the flooders, in turn, until each has sent all and knows that it was handled."""
    seen = Meanwhile(0, 0)
    busy = list(flooders)
    while busy:
        for name in list(busy):
            got, sending = ask(tree, "third", "forward", name, Ask("progress"), DEADLINE_S, timeout_s=DEADLINE_S)
            seen.answers += 1
            seen.in_the_midst += 0 < got < count and sending
            if not sending:
                busy.remove(name)
    return seen


def check_both_sides(tree: Tree, size: int, count: int) -> int:
    """Every message either came, in order, or its sender was told; gives how many were refused."""
    refused_by_all = 0
    for sender, receiver in (("left", "right"), ("right", "left")):
        taken, which_taken, refused, _ = ask(tree, sender, "sent")
        got, which_got, volume = ask(tree, receiver, "got")
        assert taken + refused == count
        assert (got, which_got) == (taken, which_taken)
        assert volume == got * size
        refused_by_all += refused
    return refused_by_all


@pytest.mark.parametrize(("count", "size"), [(COUNT, 0), (COUNT // 5, 10_000)], ids=["small", "10 KB"])
def test_two_actors_that_await_room_flood_each_other_and_lose_nothing(tmp_path: Path, count: int, size: int) -> None:
    with running(
        tmp_path, worker("left", "Flooder"), worker("right", "Flooder"), worker("third"), settings=NERVOUS
    ) as tree:
        before = lives(tree)
        base = {name: peak_mib(life[0]) for name, life in before.items()}
        ask(tree, "left", "flood", "right", count, size, True)
        ask(tree, "right", "flood", "left", count, size, True)
        seen = watch(tree, "left", "right", count=count)
        assert check_both_sides(tree, size, count) == 0
        assert seen.in_the_midst >= 4, seen
        assert lives(tree) == before
        for name in ("left", "right"):
            assert peak_mib(before[name][0]) - base[name] < QUEUE_MIB / 2 + MORE_MIB
            assert resident_mib(before[name][0]) - base[name] < MORE_MIB, "what was queued is not given back"


@pytest.mark.parametrize(("count", "size"), [(COUNT, 0), (30_000, 10_000)], ids=["small", "10 KB"])
def test_two_actors_that_await_nothing_are_told_of_each_message_that_is_not_taken(
    tmp_path: Path, count: int, size: int
) -> None:
    with running(
        tmp_path, worker("left", "Flooder"), worker("right", "Flooder"), worker("third"), settings=NERVOUS
    ) as tree:
        before = lives(tree)
        base = {name: peak_mib(life[0]) for name, life in before.items()}
        ask(tree, "left", "flood", "right", count, size, False)
        ask(tree, "right", "flood", "left", count, size, False)
        seen = watch(tree, "left", "right", count=count)
        check_both_sides(tree, size, count)
        assert seen.answers >= 4, seen
        assert lives(tree) == before
        for name in ("left", "right"):
            assert peak_mib(before[name][0]) - base[name] < QUEUE_MIB + MORE_MIB
            assert resident_mib(before[name][0]) - base[name] < MORE_MIB, "what was queued is not given back"


def test_two_handlers_that_send_more_than_the_queues_hold_end_and_know_what_was_refused(tmp_path: Path) -> None:
    # Neither receives while its one handler sends, so what is over the bounds must be refused, not waited for.
    count = COUNT + 20_000
    with running(tmp_path, worker("left", "Flooder"), worker("right", "Flooder"), worker("third")) as tree:
        before = lives(tree)
        base = {name: peak_mib(life[0]) for name, life in before.items()}
        ask(tree, "left", "flood", "right", count, 0, False, False)
        ask(tree, "right", "flood", "left", count, 0, False, False)
        watch(tree, "left", "right", count=count)
        assert check_both_sides(tree, 0, count) > 0, "the queues have no bound"
        assert lives(tree) == before
        for name in ("left", "right"):
            assert peak_mib(before[name][0]) - base[name] < QUEUE_MIB + MORE_MIB


def test_an_actor_that_others_flood_beats_and_answers_and_is_not_taken_for_hung(tmp_path: Path) -> None:
    flooders = ["one", "two"]
    children = [worker("victim", "Flooder"), *(worker(name, "Flooder") for name in flooders), worker("third")]
    with running(tmp_path, *children, settings=NERVOUS) as tree:
        before = lives(tree)
        for name in flooders:
            ask(tree, name, "flood", "victim", COUNT // 2, 0, True)
        answers = 0
        sending = set(flooders)
        while sending:
            got, _ = ask(tree, "third", "forward", "victim", Ask("progress"), DEADLINE_S, timeout_s=DEADLINE_S)
            answers += 0 < got < COUNT
            sending = {name for name in sending if ask(tree, name, "progress")[1]}
        assert ask(tree, "victim", "got")[0] == COUNT
        assert answers >= 4
        assert lives(tree) == before, "somebody was killed"


def test_a_frozen_receiver_fills_the_queue_to_its_bound_and_gets_all_that_was_taken_when_it_thaws(
    tmp_path: Path,
) -> None:
    count = COUNT + 20_000
    patient = TreeSettings(beat_interval_s=60.0, hang_margin_s=600.0)
    with running(tmp_path, worker("left", "Flooder"), worker("right", "Flooder"), settings=patient) as tree:
        right = lives(tree)["right"][0]
        base = peak_mib(lives(tree)["left"][0])
        to: Ref = ask(tree, "right", "me")
        assert ask(tree, "left", "forward", to, Ask("pid")) == right
        ask(tree, "left", "fill", to, count, 100, right)
        taken, which_taken, refused, _ = ask(tree, "left", "sent")
        assert COUNT <= taken < count, "what the queue holds, and the kernel"
        assert refused == count - taken
        assert peak_mib(lives(tree)["left"][0]) - base < QUEUE_MIB + MORE_MIB
        assert ask(tree, "left", "thaw", to, right) == right
        got, which_got, _ = ask(tree, "right", "got")
        assert (got, which_got) == (taken, which_taken)
