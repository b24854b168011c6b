"""Links, monitors and exit signals: Erlang's rules one by one, then a small world of actors at random."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.errors import Overloaded
from actorgrid.supervisors import signals as signals_module
from actorgrid.supervisors.exits import NORMAL, SHUTDOWN, ExitReason
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.signals import (
    Deliver,
    DemonitorSignal,
    Die,
    Down,
    DownSignal,
    Exited,
    ExitSignal,
    LinkSignal,
    MonitorSignal,
    SendSignal,
    Signals,
    UnlinkSignal,
    gone,
)

OTHER, THIRD = Ref("a.1", "other"), Ref("a.2", "third")
CRASH = ExitReason("error", "KeyError: 'x'")
KILLED = ExitReason("killed")


def test_a_monitor_tells_once_and_with_the_reason() -> None:
    me = Signals()
    monitor, instructions = me.monitor(OTHER)
    assert instructions == [SendSignal(OTHER, MonitorSignal(monitor.id))]
    assert me.received(OTHER, DownSignal(monitor.id, CRASH)) == [Deliver(Down(monitor, OTHER, CRASH))]
    assert me.received(OTHER, DownSignal(monitor.id, CRASH)) == []
    assert me.ended(OTHER, KILLED) == []


def test_each_monitor_of_one_actor_tells() -> None:
    me = Signals()
    first, second = me.monitor(OTHER)[0], me.monitor(OTHER)[0]
    assert me.ended(OTHER, KILLED) == [Deliver(Down(first, OTHER, KILLED)), Deliver(Down(second, OTHER, KILLED))]


def test_a_monitor_taken_back_says_nothing_even_if_the_word_is_under_way() -> None:
    me = Signals()
    monitor, _ = me.monitor(OTHER)
    assert me.demonitor(monitor) == [SendSignal(OTHER, DemonitorSignal(monitor.id))]
    assert me.received(OTHER, DownSignal(monitor.id, CRASH)) == []
    assert me.demonitor(monitor) == []


def test_nobody_can_say_that_another_is_down() -> None:
    me = Signals()
    monitor, _ = me.monitor(OTHER)
    assert me.received(THIRD, DownSignal(monitor.id, CRASH)) == []
    assert me.watches(OTHER.address)


def test_whoever_monitors_hears_why_we_end_and_nobody_else() -> None:
    me = Signals()
    me.received(OTHER, MonitorSignal(7))
    me.received(THIRD, MonitorSignal(7))
    me.received(THIRD, DemonitorSignal(7))
    assert me.ending(CRASH) == [SendSignal(OTHER, DownSignal(7, CRASH))]


def test_a_link_takes_both_ends_down() -> None:
    me = Signals()
    assert me.link(OTHER) == [SendSignal(OTHER, LinkSignal())]
    assert me.link(OTHER) == [], "linked already"
    assert me.received(OTHER, ExitSignal(CRASH, linked=True)) == [Die(CRASH)]

    other = Signals()
    other.received(THIRD, LinkSignal())
    assert other.ending(CRASH) == [SendSignal(THIRD, ExitSignal(CRASH, linked=True))]


def test_a_normal_end_leaves_the_other_end_alone_and_a_shutdown_does_not() -> None:
    me = Signals()
    me.link(OTHER)
    assert me.received(OTHER, ExitSignal(NORMAL, linked=True)) == []
    me.link(THIRD)
    assert me.received(THIRD, ExitSignal(SHUTDOWN, linked=True)) == [Die(SHUTDOWN)]


def test_who_traps_exits_hears_of_all_of_them_and_lives() -> None:
    me = Signals(trap_exit=True)
    for reason in (NORMAL, SHUTDOWN, CRASH, KILLED):
        me.link(OTHER)
        assert me.received(OTHER, ExitSignal(reason, linked=True)) == [Deliver(Exited(OTHER, reason))]


def test_an_unlinked_end_is_no_business_of_ours() -> None:
    me = Signals()
    me.link(OTHER)
    assert me.unlink(OTHER) == [SendSignal(OTHER, UnlinkSignal())]
    assert me.unlink(OTHER) == []
    assert me.received(OTHER, ExitSignal(CRASH, linked=True)) == []
    me.received(OTHER, LinkSignal())
    me.received(OTHER, UnlinkSignal())
    assert me.ended(OTHER, CRASH) == []


def test_a_link_to_the_dead_is_as_deadly_as_a_death() -> None:
    me = Signals()
    me.link(OTHER)
    assert me.ended(OTHER, gone(OTHER)) == [Die(gone(OTHER))]


@pytest.mark.parametrize("trap", [False, True])
def test_an_exit_signal_of_kind_killed_cannot_be_trapped(trap: bool) -> None:
    me = Signals(trap)
    assert me.received(OTHER, ExitSignal(KILLED, linked=False)) == [Die(KILLED)]


def test_other_exit_signals_can_be_trapped_and_normal_ones_do_nothing() -> None:
    assert Signals().received(OTHER, ExitSignal(SHUTDOWN, linked=False)) == [Die(SHUTDOWN)]
    assert Signals().received(OTHER, ExitSignal(NORMAL, linked=False)) == []
    trapping = Signals(trap_exit=True)
    assert trapping.received(OTHER, ExitSignal(NORMAL, linked=False)) == [Deliver(Exited(OTHER, NORMAL))]


def test_monitors_and_watchers_have_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals_module, "WATCHED_MAX", 2)
    monkeypatch.setattr(signals_module, "WATCHERS_MAX", 1)
    me = Signals()
    monitor, _ = me.monitor(OTHER)
    me.link(THIRD)
    with pytest.raises(Overloaded, match="2 monitors and links"):
        me.monitor(THIRD)
    me.demonitor(monitor)
    me.monitor(THIRD)
    me.received(OTHER, MonitorSignal(1))
    answer = me.received(THIRD, MonitorSignal(5))[0]
    assert isinstance(answer, SendSignal)
    assert isinstance(answer.signal, DownSignal)
    assert answer.signal.reason.kind == "noproc"
    me.ended(OTHER, KILLED)
    assert me.received(THIRD, MonitorSignal(6)) == [], "the dead one's place is free"
    assert me.counts() == {"monitors": 1, "monitored_by": 1, "links": 1}


class World:
    """Actors with Signals and ordered channels between each two; the kernel tells of a death after the last word."""

    def __init__(self, traps: list[bool]) -> None:
        self.refs = [Ref(f"a.{n}", str(n)) for n in range(len(traps))]
        self.actors: dict[str, Signals] = {
            ref.address: Signals(trap) for ref, trap in zip(self.refs, traps, strict=True)
        }
        self.channels: dict[tuple[str, str], deque[Any]] = {}
        self.heard: dict[str, list[Any]] = {ref.address: [] for ref in self.refs}
        self.ended: dict[str, ExitReason] = {}
        self.monitors: dict[tuple[str, int], Ref] = {}
        self.taken_back: set[tuple[str, int]] = set()

    def carry_out(self, at: str, instructions: list[Any]) -> None:
        for instruction in instructions:
            if at in self.ended:
                return
            if isinstance(instruction, SendSignal):
                self.send(at, instruction)
            elif isinstance(instruction, Deliver):
                self.heard[at].append(instruction.message)
            else:
                self.die(at, instruction.reason)

    def send(self, at: str, instruction: SendSignal) -> None:
        to = instruction.to.address
        if to in self.ended:
            self.carry_out(at, self.actors[at].ended(instruction.to, gone(instruction.to)))
        else:
            self.channels.setdefault((at, to), deque()).append(instruction.signal)

    def die(self, at: str, reason: ExitReason, speechless: bool = False) -> None:
        if at in self.ended:
            return
        if not speechless:
            for instruction in self.actors[at].ending(reason):
                assert isinstance(instruction, SendSignal)
                if instruction.to.address not in self.ended:
                    self.channels.setdefault((at, instruction.to.address), deque()).append(instruction.signal)
        self.ended[at] = reason
        for other in self.actors:
            if other not in self.ended:
                self.channels.setdefault((at, other), deque()).append(("ended", reason))

    def deliver_one(self, choice: int) -> bool:
        waiting = [key for key, queue in sorted(self.channels.items()) if queue and key[1] not in self.ended]
        if not waiting:
            return False
        source, to = waiting[choice % len(waiting)]
        signal = self.channels[source, to].popleft()
        ref = next(ref for ref in self.refs if ref.address == source)
        if isinstance(signal, tuple):
            self.carry_out(to, self.actors[to].ended(ref, signal[1]))
        else:
            self.carry_out(to, self.actors[to].received(ref, signal))
        return True


STEP = st.tuples(
    st.sampled_from(["monitor", "demonitor", "link", "unlink", "exit", "kill", "crash", "leave", "deliver", "deliver"]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 30),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.booleans(), min_size=4, max_size=4), st.lists(STEP, max_size=40))
def test_in_a_world_at_random_every_monitor_tells_once_and_no_link_is_forgotten(
    traps: list[bool], steps: list[tuple[str, int, int, int]]
) -> None:
    world = World(traps)
    linked: set[frozenset[str]] = set()
    unlinked: set[frozenset[str]] = set()  # which word came first is the channels' choice: nothing is promised
    for what, first, second, choice in steps:
        a, b = world.refs[first], world.refs[second]
        actor = world.actors[a.address]
        if what == "deliver":
            world.deliver_one(choice)
        elif a.address in world.ended or a == b:
            continue
        elif what == "monitor":
            monitor, instructions = actor.monitor(b)
            world.monitors[a.address, monitor.id] = b
            world.carry_out(a.address, instructions)
        elif what == "demonitor":
            mine = [key for key in world.monitors if key[0] == a.address]
            if mine:
                key = mine[choice % len(mine)]
                told = [down for down in world.heard[a.address] if isinstance(down, Down) and down.monitor.id == key[1]]
                if not told:
                    world.taken_back.add(key)
                world.carry_out(a.address, actor.demonitor(signals_module.MonitorRef(key[1])))
        elif what == "link":
            linked.add(frozenset((a.address, b.address)))
            world.carry_out(a.address, actor.link(b))
        elif what == "unlink":
            unlinked.add(frozenset((a.address, b.address)))
            world.carry_out(a.address, actor.unlink(b))
        elif what == "exit":
            world.carry_out(a.address, actor.send_exit(b, [CRASH, KILLED, NORMAL, SHUTDOWN][choice % 4]))
        else:
            reason = {"kill": KILLED, "crash": CRASH, "leave": NORMAL}[what]
            world.die(a.address, reason, speechless=what == "kill")
    while world.deliver_one(0):
        pass
    for (owner, monitor_id), target in world.monitors.items():
        if owner in world.ended:
            continue
        told = [down for down in world.heard[owner] if isinstance(down, Down) and down.monitor.id == monitor_id]
        expected = target.address in world.ended and (owner, monitor_id) not in world.taken_back
        assert len(told) == (1 if expected else 0), (owner, monitor_id, told)
        assert all(down.ref == target and down.reason in (world.ended[target.address], gone(target)) for down in told)
    for pair in linked - unlinked:
        a_, b_ = sorted(pair)
        for dead, other in ((a_, b_), (b_, a_)):
            if dead in world.ended and other not in world.ended:
                normal = world.ended[dead] == NORMAL
                assert normal or world.actors[other].trap_exit, f"{other} lives on, linked to {dead}"
