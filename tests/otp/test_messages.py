"""Calls, casts, timers and names between real processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.otp.conftest import Rig

MakeRig = Callable[..., Rig]
MANY = 1_000


def make_busy(tree: Rig, fifo: Path) -> Callable[[], None]:
    """``busy`` is in a long handler; gives what ends that."""
    os.mkfifo(fifo)
    tree.tell("busy", "read", str(fifo))
    tree.wait_for(lambda: "busy reads" in tree.notes(), "a long handler")

    def go_on() -> None:
        fifo.write_text("on")
        assert tree.told("busy") == "on"

    return go_on


def test_messages_from_one_to_another_come_in_the_order_they_were_sent(rig: MakeRig, tmp_path: Path) -> None:
    tree = rig()
    tree.up(tree.spec("busy", max_handler_s=60.0), tree.spec("other"))
    go_on = make_busy(tree, tmp_path / "fifo")
    for name in ("other", "watcher"):
        assert tree.ask(name, "cast_many", "busy", MANY, "pid") is True
    go_on()
    seen = tree.wait_for(lambda: tree.ask("busy", "seen") if tree.ask("busy", "count") == 2 * MANY else None, "all")
    first_of = seen.index(0)
    assert first_of == 0
    positions: dict[int, list[int]] = {}
    for position, item in enumerate(seen):
        positions.setdefault(item, []).append(position)
    assert [pair[0] for _, pair in sorted(positions.items())] == sorted(pair[0] for pair in positions.values())
    assert [pair[1] for _, pair in sorted(positions.items())] == sorted(pair[1] for pair in positions.values())


@pytest.mark.parametrize("met_before", [True, False])
def test_what_was_sent_before_an_orderly_end_arrives_though_the_receiver_is_busy(
    rig: MakeRig, tmp_path: Path, met_before: bool
) -> None:
    tree = rig()
    tree.up(tree.spec("busy", max_handler_s=60.0), tree.spec("brief", restart="temporary"))
    if met_before:
        tree.ask("brief", "ask", "busy", "pid")
    go_on = make_busy(tree, tmp_path / "fifo")
    tree.watch("brief")
    tree.ask("watcher", "ask", "brief", "pid")  # it answers, so it knows by now who watches it
    tree.tell("brief", "cast_many", "busy", MANY, "leave")
    assert tree.down("brief").kind == "normal"  # it has said so, and what is queued before that goes out
    go_on()
    tree.wait_for(lambda: tree.ask("busy", "count") == MANY, "all messages")
    assert tree.ask("busy", "seen") == list(range(MANY))
