"""What is closed can be closed again, and says that it is closed to whoever uses it after all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actorgrid.errors import PeerGone
from actorgrid.supervisors.child import ChildSpec
from actorgrid.supervisors.supervisor import Supervisor
from actorgrid.supervisors.tree import Tree, TreeGone
from actorgrid.transports.unix.loop import UnixLoop
from actorgrid.transports.unix.system import UnixSystem
from tests.descriptors import open_descriptors
from tests.otp.till import Sell

TILL = ChildSpec("till", "tests.otp.till:Till", restart="temporary")


def test_a_tree_is_closed_again_without_harm_even_to_what_has_its_numbers_by_then() -> None:
    with Tree() as tree:
        tree.up(Supervisor, None, (TILL,))
        tree.close()
        ends = [os.pipe() for _ in range(32)]  # these take the numbers that the tree let go of
        numbers = {str(end) for pair in ends for end in pair}
        before = {number: what for number, what in open_descriptors().items() if number in numbers}
        tree.close()
    assert before.items() <= open_descriptors().items()
    for pair in ends:
        for end in pair:
            os.close(end)


def test_a_closed_tree_says_so() -> None:
    tree = Tree()
    tree.up(Supervisor, None, (TILL,))
    tree.close()
    with pytest.raises(PeerGone, match="was closed"):
        tree.call("till", Sell("tea"))
    with pytest.raises(PeerGone, match="was closed"):
        tree.up(Supervisor)
    with pytest.raises(PeerGone, match="was closed"):
        tree.stop("again")
    assert not tree.cast("till", Sell("tea"))
    assert tree.next_event(0.0) == TreeGone()


def test_a_tree_that_was_never_started_is_closed_twice() -> None:
    tree = Tree()
    tree.close()
    tree.close()


def test_an_actor_system_and_a_loop_are_closed_twice(tmp_path: Path) -> None:
    system = UnixSystem(tmp_path / "boot")
    system.close()
    system.close()
    assert system.wait_gone()
    loop = UnixLoop()
    loop.close()
    loop.close()
