"""Links, monitors, exit signals, names and groups of light processes, as Erlang has them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from actorgrid.errors import ActorDown, BadRequest, NameTaken, NoSuchActor, Overloaded
from actorgrid.supervisors.exits import NOPROC, NORMAL, SHUTDOWN
from actorgrid.supervisors.process import (
    ExitReason,
    GenServer,
    Pid,
    Process,
    ProcessDown,
    ProcessExit,
    exit_process,
    ties,
)
from tests.light.conftest import StillShard, Witness


def test_a_monitor_tells_once_and_with_the_reason(shard: StillShard) -> None:
    watcher, watched = shard.spawn(Witness), shard.spawn(Witness)
    monitor = shard.call(watcher, ("monitor", watched))
    shard.cast(watched, ("crash", "of this"))
    shard.run_until_idle()
    [down] = shard.call(watcher, ("told",))
    assert (down.monitor, down.pid, down.reason.kind) == (monitor, watched, "error")
    assert down.reason.message == "ValueError: of this"
    assert "in crash" in down.reason.traceback


def test_several_monitors_of_one_process_tell_each_and_one_taken_back_does_not(shard: StillShard) -> None:
    watcher, watched = shard.spawn(Witness), shard.spawn(Witness)
    first, second, third = (shard.call(watcher, ("monitor", watched)) for _ in range(3))
    shard.call(watcher, ("demonitor", second))
    shard.exit(watched, "shutdown")
    told = shard.call(watcher, ("told",))
    assert [down.monitor for down in told] == [first, third]
    assert all(down.reason == SHUTDOWN for down in told)


def test_a_monitor_taken_back_says_nothing_even_if_its_word_is_in_the_mailbox(shard: StillShard) -> None:
    seen: list[Any] = []

    async def careless(me: Process, watched: Pid) -> None:
        monitor = me.monitor(watched)
        me.exit(watched, "killed")
        assert me.mailbox_length == 1
        me.demonitor(monitor)
        seen.append(me.mailbox_length)

    shard.spawn(careless, shard.spawn(Witness))
    shard.run_until_idle()
    assert seen == [0]


@pytest.mark.parametrize("whom", ["dead", "nobody"])
def test_a_monitor_of_the_dead_tells_noproc(shard: StillShard, whom: str) -> None:
    watcher, dead = shard.spawn(Witness), shard.spawn(Witness)
    shard.stop(dead)
    monitor = shard.call(watcher, ("monitor", dead if whom == "dead" else "nobody"))
    assert shard.call(watcher, ("told",)) == [ProcessDown(monitor, dead if whom == "dead" else None, NOPROC)]


@pytest.mark.parametrize(
    ("word", "dies"), [("normal", False), ("shutdown", True), ("killed", True), ("of something", True)]
)
def test_a_link_takes_both_down_but_for_normal(shard: StillShard, word: str, dies: bool) -> None:
    first, second = shard.spawn(Witness), shard.spawn(Witness)
    shard.call(first, ("link", second))
    shard.stop(second, ExitReason("normal") if word == "normal" else word)
    assert (shard.info(first) is None) is dies


def test_who_traps_exits_hears_of_all_of_them_and_lives(shard: StillShard) -> None:
    trapper = shard.spawn(Witness, None, True)
    others = [shard.spawn(Witness) for _ in range(3)]
    for other in others:
        shard.call(trapper, ("link", other))
    for other, word in zip(others, ("normal", "shutdown", "killed"), strict=True):
        shard.stop(other, word)
    told = shard.call(trapper, ("told",))
    assert [(each.pid, each.reason.kind) for each in told] == [
        (others[0], "normal"),
        (others[1], "shutdown"),
        (others[2], "killed"),
    ]


def test_an_exit_signal_of_killed_cannot_be_trapped_but_its_links_see_an_ordinary_end(shard: StillShard) -> None:
    victim, friend = shard.spawn(Witness, None, True), shard.spawn(Witness, None, True)
    shard.call(friend, ("link", victim))
    shard.exit(victim, "shutdown", friend)
    assert shard.call(victim, ("told",)) == [ProcessExit(friend, SHUTDOWN)]
    shard.exit(victim, "killed")
    assert shard.info(victim) is None
    assert [each.reason.kind for each in shard.call(friend, ("told",))] == ["killed"]


def test_an_unlinked_process_dies_alone_and_a_link_to_the_dead_is_the_end(shard: StillShard) -> None:
    first, second, third = (shard.spawn(Witness) for _ in range(3))
    shard.call(first, ("link", second))
    shard.call(second, ("unlink", first))
    shard.stop(second, "killed")
    assert shard.info(first) is not None
    with pytest.raises(ActorDown):
        shard.call(first, ("link", second))
    trapper = shard.spawn(Witness, None, True)
    shard.call(trapper, ("link", second))
    assert shard.call(trapper, ("told",)) == [ProcessExit(second, NOPROC)]
    assert shard.info(third) is not None


def test_a_chain_of_a_hundred_thousand_links_falls_without_depth(shard: StillShard) -> None:
    before = None
    for _ in range(100_000):
        process = shard.core.spawn(Witness)
        if before is not None:
            shard.link(process, before)
        before = process.pid
    assert before is not None
    shard.stop(before, "killed")
    assert shard.core.living == 0


def test_of_many_that_are_killed_at_random_every_link_and_monitor_is_told_once(shard: StillShard) -> None:
    dice = random.Random(7)
    watchers = [shard.spawn(Witness, None, True) for _ in range(20)]
    watched = [shard.spawn(Witness) for _ in range(1000)]
    expected: dict[Pid, list[tuple[str, Pid]]] = {pid: [] for pid in watchers}
    for pid in watched:
        for watcher in dice.sample(watchers, 2):
            shard.call(watcher, ("monitor", pid))
            expected[watcher].append(("ProcessDown", pid))
        watcher = dice.choice(watchers)
        shard.call(watcher, ("link", pid))
        expected[watcher].append(("ProcessExit", pid))
    dice.shuffle(watched)
    for pid in watched:
        shard.exit(pid, "killed")
    for watcher in watchers:
        told = [(type(each).__name__, each.pid) for each in shard.call(watcher, ("told",))]
        assert sorted(told, key=repr) == sorted(expected[watcher], key=repr)
    assert shard.core.living == len(watchers)


def test_exit_process_ends_from_any_depth_and_finally_blocks_run(shard: StillShard) -> None:
    log: list[str] = []

    async def deep(me: Process) -> None:
        try:
            exit_process("shutdown")
        except ValueError:
            log.append("caught")
        finally:
            log.append("tidied")

    watcher = shard.spawn(Witness)
    pid = shard.spawn(deep)
    shard.call(watcher, ("monitor", pid))
    assert [down.reason for down in shard.call(watcher, ("told",))] == [SHUTDOWN]
    assert log == ["tidied"]


class Tidy(Witness):
    """Says why it ends."""

    def terminate(self, reason: ExitReason) -> None:
        self.log.append(reason.kind)
        self.send("heir", ("left", len(self.log)))
        if "fail" in self.log:
            raise ValueError("in terminate")


@pytest.mark.parametrize("word", ["normal", "shutdown", "killed", "of something"])
def test_terminate_is_called_last_unless_it_is_killed_and_its_messages_go_out(shard: StillShard, word: str) -> None:
    log: list[Any] = []
    heir = shard.spawn_opt(Witness, name="heir")
    pid = shard.start(Tidy, log)
    shard.stop(pid, word)
    kind = {"of something": "error"}.get(word, word)
    assert log == ([] if word == "killed" else [kind])
    assert shard.call(heir, ("told",)) == ([] if word == "killed" else [("left", 1)])


def test_terminate_comes_after_a_crash_too_and_what_it_raises_ends_nobody_else(shard: StillShard) -> None:
    log: list[Any] = ["fail"]
    pid = shard.spawn(Tidy, log)
    shard.cast(pid, ("crash",))
    shard.run_until_idle()
    assert log == ["fail", "error"]
    assert shard.info(pid) is None


def test_a_stop_of_itself_is_normal_and_comes_after_the_handler(shard: StillShard) -> None:
    watcher, pid = shard.spawn(Witness), shard.spawn(Witness)
    shard.call(watcher, ("monitor", pid))
    assert shard.call(pid, ("stop",)) is None
    assert [down.reason for down in shard.call(watcher, ("told",))] == [NORMAL]


# -- names and groups


def test_a_name_has_one_holder_and_is_free_when_that_ends(shard: StillShard) -> None:
    first, second = shard.spawn(Witness), shard.spawn(Witness)
    shard.call(first, ("register", "the one"))
    shard.call(first, ("register", "the one"))
    with pytest.raises(NameTaken) as refused:
        shard.call(second, ("register", "the one"))
    assert refused.value.found == str(first)
    with pytest.raises(NameTaken):
        shard.spawn_opt(Witness, name="the one")
    assert shard.whereis("the one") == first
    assert shard.call("the one", ("told",)) == []
    shard.stop(first)
    assert shard.whereis("the one") is None
    shard.call(second, ("register", "the one"))
    assert shard.call(second, ("unregister", "the one")) is True
    assert shard.call(second, ("unregister", "the one")) is False
    with pytest.raises(NoSuchActor):
        shard.call("the one", ("told",))
    assert not shard.send("the one", 1)


@pytest.mark.parametrize("name", ["", "x" * 201, 7, None, ("a",)])
def test_what_can_be_no_name_is_refused(shard: StillShard, name: Any) -> None:
    pid = shard.spawn(Witness)
    for ask in (lambda: shard.register(name, pid), lambda: shard.send(name, 1), lambda: shard.join(name, pid)):
        with pytest.raises(BadRequest):
            ask()


def test_a_group_has_its_members_in_order_without_the_dead(shard: StillShard) -> None:
    pids = [shard.spawn(Witness) for _ in range(3)]
    for pid in pids:
        shard.call(pid, ("join", "all"))
    shard.call(pids[0], ("join", "all"))
    assert shard.members("all") == pids
    shard.stop(pids[1])
    assert shard.call(pids[0], ("members", "all")) == [pids[0], pids[2]]
    assert shard.call(pids[0], ("leave", "all")) is True
    assert shard.call(pids[0], ("leave", "all")) is False
    shard.stop(pids[2])
    assert shard.members("all") == []
    assert shard.names.groups == {}


def test_ties_and_names_are_bounded(shard: StillShard, monkeypatch: pytest.MonkeyPatch) -> None:
    from actorgrid.supervisors.process import names

    monkeypatch.setattr(ties, "TIES_MAX", 2)
    monkeypatch.setattr(names, "NAMES_PER_PROCESS_MAX", 2)
    pid, others = shard.spawn(Witness), [shard.spawn(Witness) for _ in range(3)]
    for what in ("monitor", "link"):
        for other in others[:2]:
            shard.call(pid, (what, other))
        with pytest.raises(Overloaded):
            shard.call(pid, (what, others[2]))
    for name in "ab":
        shard.call(pid, ("register", name))
    with pytest.raises(Overloaded):
        shard.call(pid, ("register", "c"))
    assert shard.info(pid) is not None


def test_nothing_is_kept_of_ties_that_are_over(shard: StillShard) -> None:
    lasting = shard.spawn(Witness, None, True)
    for n in range(50):
        pid = shard.spawn(GenServer)
        shard.call(lasting, ("link", pid))
        shard.call(lasting, ("demonitor", shard.call(lasting, ("monitor", pid))))
        shard.call(lasting, ("monitor", pid))
        shard.register(f"n{n}", pid)
        shard.stop(pid)
    held = shard.info(lasting).attachments  # type: ignore[union-attr]
    assert (held.links, held.monitors, held.watchers) == ({}, {}, None)
    assert shard.names.names == {}
