"""Whose turn it is to be dialled, and a host that links to many others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from actorgrid.transports.peer import dials as dials_module
from actorgrid.transports.peer.dials import SILENT_S, Dials
from tests.transports.peer_conformance import QUICK, SocketWorld


@dataclass(eq=False)
class Dial:
    bytes_in: int = 0


def begin(dials: Dials[str, Dial], now_s: float) -> list[Dial]:
    """Dial all that may be dialled now."""
    begun = []
    while dials.next(now_s) is not None:
        begun.append(Dial())
        dials.began(begun[-1], now_s)
    return begun


def asked(at_once: int, count: int) -> Dials[str, Dial]:
    dials: Dials[str, Dial] = Dials(at_once)
    for number in range(count):
        dials.ask(f"h{number}")
    return dials


def test_so_many_are_dialled_at_a_time_and_the_next_when_one_is_over() -> None:
    dials = asked(3, 5)
    first = begin(dials, 0.0)
    assert len(first) == 3
    dials.over(first[1])
    assert dials.next(0.0) == "h3"
    dials.over(Dial())
    assert len(begin(dials, 0.0)) == 1
    assert len(dials) == 0


def test_who_does_not_answer_keeps_nobody_waiting_for_long() -> None:
    dials = asked(3, 5)
    first = begin(dials, 0.0)
    first[0].bytes_in = 1
    assert not begin(dials, SILENT_S / 2)
    assert len(begin(dials, SILENT_S)) == 2
    dials.ask("late")
    assert dials.next(SILENT_S) is None


def test_a_host_that_keeps_many_links_makes_so_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dials_module, "SILENT_S", 60.0)  # a loaded machine is no silent host
    world = SocketWorld(tmp_path)
    names = [f"h{number}" for number in range(12)]
    for name in names:
        world.add(name)
    world.limits = replace(QUICK, dials_max=2)
    one = world.add("one")
    one.net.keep(names)
    most = 0

    def linked() -> bool:
        nonlocal most
        most = max(most, one.net.stats()["connections"] - sum(map(one.net.reachable, names)))
        return all(map(one.net.reachable, names))

    world.until(linked)
    assert 1 <= most <= 2
    assert not one.net.refusals
    world.close()
