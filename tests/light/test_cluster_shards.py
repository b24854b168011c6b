"""Shards of a set over hosts, on virtual time: reached by pid and name, lost, cut off, begun again."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from actorgrid.client.light_shard import has_begun
from actorgrid.errors import ActorDown, BadRequest, CallTimeout, NameTaken, NoSuchActor
from actorgrid.fencing import FencingToken
from actorgrid.supervisors.process import GenServer, ProcessDown, ProcessExit, ProcessSpec, ProcessSupervisor
from actorgrid.supervisors.process.global_names import GlobalNames
from actorgrid.supervisors.process.shard_links import slot_of
from actorgrid.transports.frames import encode_frame
from tests.light.cluster_stage import ClusterStage, WireEnd
from tests.light.shard_kinds import Agent


class Member(Agent):
    """An agent with names of the set."""

    async def init(self, *names: str) -> None:  # type: ignore[override]
        super().init(True)
        self.total = 0
        for name in names:
            await self.register_global(name)

    async def take(self, name: str, timeout_s: float = 5.0) -> str:
        await self.register_global(name, timeout_s)
        return "mine"

    def token(self, name: str) -> str:
        return self.name_token(name)

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    def locked(self) -> Any:
        return threading.Lock()

    def save_state(self) -> int:
        return self.total

    def load_state(self, state: int) -> None:
        self.total = state


@pytest.fixture
def stage() -> Iterator[ClusterStage]:
    made = ClusterStage(3)
    yield made
    made.close()


def homed(stage: ClusterStage, slot: int, nth: int = 0) -> str:
    """A name that this slot grants."""
    names = (f"name {n}" for n in range(10_000))
    return [name for _, name in zip(range(nth + 1), (n for n in names if home(stage, n) == slot), strict=False)][nth]


def home(stage: ClusterStage, name: str) -> int:
    return next(iter(stage.shards.values())).global_names.home_of(name)


def holders(stage: ClusterStage, name: str) -> list[Any]:
    return [shard.whereis(name) for shard in stage.shards.values()]


def downs(log: list[Any]) -> list[tuple[Any, str]]:
    return [(event.pid, event.reason.kind) for event in log if isinstance(event, ProcessDown)]


def test_a_pid_and_a_name_lead_to_a_process_from_any_shard(stage: ClusterStage) -> None:
    bob = stage.start(1, Member, "bob")
    assert holders(stage, "bob") == [bob] * 3
    assert stage.call(0, bob, "add", 2) == 2
    assert stage.call(2, "bob", "add", 3) == 5
    ann = stage.start(0, Member, "ann")
    assert stage.call(2, ann, "ask", "bob", ("add", 5)) == 10
    numbers = list(range(20_000))
    assert all(stage.call(0, ann, "send_all", bob, numbers[n : n + 5000]) for n in range(0, 20_000, 5000))
    assert stage.call(2, "bob", "told") == numbers
    with pytest.raises(BadRequest, match="cannot be sent"):
        stage.call(2, "bob", "locked")
    assert stage.call(2, "bob", "unsendable")() is None, "code goes along where no module has it"
    with pytest.raises(ActorDown):
        stage.call(2, "bob", "crash")
    assert holders(stage, "bob") == [None] * 3


def test_ends_are_told_once_over_hosts(stage: ClusterStage) -> None:
    watcher, target, linked = stage.start(0, Member), stage.start(1, Member), stage.start(2, Member)
    for _ in range(3):
        stage.call(0, watcher, "monitor", target)
    stage.call(2, linked, "link", target)
    stage.shards[0].exit(target, "killed")
    stage.settle()
    assert downs(stage.call(0, watcher, "told")) == [(target, "killed")] * 3
    assert [e.reason.kind for e in stage.call(2, linked, "told") if isinstance(e, ProcessExit)] == ["killed"]
    stage.call(0, watcher, "monitor", target)
    stage.settle()
    assert downs(stage.call(0, watcher, "told"))[3:] == [(target, "noproc")]


def test_a_break_is_noconnection_on_both_sides_and_once(stage: ClusterStage) -> None:
    one, two, third = stage.start(0, Member), stage.start(1, Member), stage.start(2, Member)
    stage.call(0, one, "monitor", two)
    stage.call(1, two, "monitor", one)
    stage.call(1, two, "link", one)
    stage.call(2, third, "monitor", one)
    waiting = stage.ask(0, two, ("silent",), 100.0)
    stage.cut(0, 1)
    stage.after(stage.patience_s - 1)
    assert not waiting and not downs(stage.call(0, one, "told"))
    stage.after(2)
    assert isinstance(waiting[0].outcome[1], ActorDown) and "noconnection" in str(waiting[0].outcome[1])
    for slot, me, other in ((0, one, two), (1, two, one)):
        log = stage.call(slot, me, "told")
        assert downs(log) == [(other, "noconnection")]
        assert [(e.pid, e.reason.kind) for e in log if isinstance(e, ProcessExit)] == [(other, "noconnection")]
    assert stage.call(2, third, "told") == []
    assert not stage.shards[0].send(two, "lost")
    stage.mend()
    stage.after(1)
    assert stage.call(0, two, "add", 1) == 1, "the same process, over a new link"
    stage.shards[1].exit(two, "killed")
    stage.after(1)
    assert len(stage.call(0, one, "told")) == 2, "the monitor was over with the link"


def test_nothing_of_a_link_before_comes_over_the_next(stage: ClusterStage) -> None:
    sender, sink = stage.start(0, Member), stage.start(1, Member)
    stage.shards[0].send(sink, "before")
    stage.settle()
    wires = [end for pair in stage._wires for end in pair if end.owner is stage.shards[0] and end.open]
    stage.shards[0].spawn(late_words, sink)
    stage.shards[0].run_until_idle()
    held, stage.under_way = list(stage.under_way), type(stage.under_way)()
    assert held
    for end in wires:
        stage.shards[0].links.closed(end)
    stage.settle()
    assert stage.call(0, sink, "told") == ["before"]
    stage.under_way.extend(held)
    stage.settle()
    assert stage.call(0, sink, "told") == ["before"] and sender


async def late_words(me: Any, to: Any) -> None:
    me.send(to, "late")


def test_of_many_claims_one_wins(stage: ClusterStage) -> None:
    for nth, at in enumerate((0, 1, 2)):
        name = homed(stage, at, nth)
        agents = [stage.start(slot, Member) for slot in range(3)]
        asked = [stage.ask(slot, agents[slot], ("take", name))[0].outcome for slot in range(3)]
        assert sorted(value or "taken" for value, _ in asked) == ["mine", "taken", "taken"]
        assert all(error is None or isinstance(error, NameTaken) for _, error in asked)
        winner = agents[next(n for n, (value, _) in enumerate(asked) if value)]
        assert holders(stage, name) == [winner] * 3
        stage.shards[slot_of(winner)].exit(winner, "shutdown")
        stage.settle()
        assert holders(stage, name) == [winner] * 3, "one that traps exits lives on"
        stage.shards[slot_of(winner)].exit(winner, "killed")
        stage.settle()
        assert holders(stage, name) == [None] * 3


def test_names_of_a_lost_shard_answer_in_its_next_incarnation(stage: ClusterStage) -> None:
    names = [f"held {n}" for n in range(300)]
    firsts = [stage.start(1, Member, name) for name in names]
    for name in names:
        stage.call(0, name, "add", 7)
    kept = stage.shards[1].saved_states()
    before = stage.kill(1)
    assert len(kept) == 300
    with pytest.raises(ActorDown):
        stage.call(0, names[0], "add", 1)
    with pytest.raises(NameTaken):
        stage.call(0, stage.start(0, Member), "take", next(n for n in names if home(stage, n) != 1))
    stage.begin(1, kept)
    stage.after(0.2)
    seconds = [stage.start(1, Member, name) for name in names]
    for first, second, name in zip(firsts, seconds, names, strict=True):
        assert first != second and holders(stage, name) == [second] * 3
        assert stage.call(2, name, "add", 1) == 8, "with its state"
    before.close()


def test_a_home_that_was_begun_again_grants_nothing_twice(stage: ClusterStage) -> None:
    name = homed(stage, 1)
    holder = stage.start(2, Member, name)
    stage.kill(1).close()
    stage.begin(1)
    stage.cut(1, 2)
    stage.after(0.2)
    other = stage.start(0, Member)
    asked = stage.ask(0, other, ("take", homed(stage, 1, 1)), 60.0)
    stage.after(3)
    assert not asked, "it waits for what shard 2 holds"
    assert holders(stage, name)[0] == holder, "and looking up goes on"
    stage.mend()
    stage.after(0.2)
    assert asked[0].outcome == ("mine", None)
    with pytest.raises(NameTaken):
        stage.call(0, other, "take", name)
    assert holders(stage, name) == [holder] * 3


def test_a_home_goes_on_without_a_shard_that_the_ledger_knows_to_be_gone(stage: ClusterStage) -> None:
    name = homed(stage, 1)
    stage.start(2, Member, name)
    stage.kill(2).close()
    stage.kill(1).close()
    stage.begin(1)
    stage.after(1)
    other = stage.start(0, Member)
    asked = stage.ask(0, other, ("take", name, 60.0), 60.0)
    assert not asked
    stage.shards[1].global_names.absent(2)
    stage.after(0.2)
    assert asked[0].outcome == ("mine", None) and holders(stage, name) == [other] * 2


def test_a_claim_that_nobody_grants_ends_in_time(stage: ClusterStage) -> None:
    one = stage.start(0, Member)
    stage.cut(0, 1)
    stage.after(stage.patience_s + 1)
    with pytest.raises(CallTimeout, match="nobody has granted"):
        stage.call(0, one, "take", homed(stage, 1), 2.0)
    stage.mend()
    stage.after(1)
    other = stage.start(2, Member)
    assert stage.call(2, other, "take", homed(stage, 1)) == "mine", "what was given up is free"


def test_a_partition_heals_without_two_winners(stage: ClusterStage) -> None:
    mine = {slot: stage.start(slot, Member) for slot in range(3)}
    stage.cut(0, 1)
    stage.cut(0, 2)
    stage.after(stage.patience_s + 1)
    names = [homed(stage, at, nth) for at in range(3) for nth in range(4)]
    asked = [stage.ask(slot, mine[slot], ("take", name, 60.0), 60.0) for name in names for slot in (0, 2)]
    stage.after(20)
    stage.mend()
    stage.after(30)
    for name, pair in zip(names, zip(asked[::2], asked[1::2], strict=True), strict=True):
        won = [each[0].outcome[0] for each in pair]
        assert won.count("mine") == 1, name
        assert holders(stage, name) == [mine[0] if won[0] else mine[2]] * 3


def test_of_two_holders_of_a_name_the_token_of_the_later_is_greater(stage: ClusterStage) -> None:
    tokens: list[str] = []
    name = homed(stage, 1)
    stage.kill(2).close()
    stage.begin(2)  # a shard whose own token is greater than those of the others
    stage.after(0.2)

    def taken_by(slot: int) -> Any:
        pid = stage.start(slot, Member)
        assert stage.call(slot, pid, "take", name) == "mine"
        tokens.append(stage.call(slot, pid, "token", name))
        return pid

    for slot in (2, 0, 1):
        stage.shards[slot].exit(taken_by(slot), "killed")
        stage.settle()
    last = taken_by(0)
    stage.kill(1).close()  # the home
    stage.begin(1)
    stage.after(0.2)
    assert stage.call(0, last, "token", name) == tokens[-1], "it stays its holder's, with its token"
    stage.shards[0].exit(last, "killed")
    stage.settle()
    other = taken_by(2)
    assert tokens == sorted(set(tokens)) and len(tokens) == 5
    assert FencingToken.parse(tokens[-1][:26]) == stage.shards[1].me.token
    with pytest.raises(NoSuchActor):
        stage.call(0, stage.start(0, Member), "token", name)
    assert stage.shards[2].info(other) is not None


@pytest.mark.parametrize(
    ("tokens", "has"), [([], False), ([[0, 4]], False), ([[0, 4], [0, 5]], True), ([[1, 1]], True)]
)
def test_a_copy_of_the_ledger_counts_once_it_has_our_own_beginning(tokens: list[list[int]], has: bool) -> None:
    assert has_begun(FencingToken(0, 5), {"attempts": [{"token": token} for token in tokens]}) is has


def test_an_incarnation_that_another_has_followed_is_refused() -> None:
    stage = ClusterStage(2)
    old = stage.shards[1]
    stage.cut(0, 1)
    stage.after(stage.patience_s + 1)
    new = stage.begin(1)
    stage.mend()
    stage.settle()
    assert stage.shards[0].links.address_of(1) == new.core.address
    stage.shards[1] = old
    stage.settle()
    here, there = WireEnd(stage, stage.shards[0]), WireEnd(stage, old)
    here.other, there.other = there, here
    old.links.accepted(there, 0.0)
    stage.shards[0].links.dialed(here, 1, 0.0)
    stage.settle()
    assert stage.shards[0].links.address_of(1) == new.core.address and not here.open
    new.close()
    stage.close()


def test_strangers_get_nothing(stage: ClusterStage) -> None:
    links = stage.shards[2].links
    for said in (
        b"\xff" * 64,
        encode_frame(["items", b"cos\nsystem\n(S'true'\ntR."]),
        encode_frame(["shard", {"slot": 0}, b""]),
        encode_frame(["shard", links._hello(next(iter(links._slots.values()))), b""]),
        encode_frame(["proof", b""]),
        encode_frame(["shard", {**links._hello(next(iter(links._slots.values()))), "slot": 0, "python": "2.7"}, b""]),
    ):
        end = WireEnd(stage, stage.shards[2])
        links.accepted(end, stage.shards[2].now_s())
        links.received(end, said, stage.shards[2].now_s())
        assert not end.open, said
    end = WireEnd(stage, stage.shards[2])
    links.accepted(end, stage.shards[2].now_s())
    hello = {**links._hello(next(iter(links._slots.values()))), "slot": 0, "token": [9, 9]}
    links.received(end, encode_frame(["shard", hello, b""]), stage.shards[2].now_s())
    assert end.open
    links.received(end, encode_frame(["proof", b"x" * 32]), stage.shards[2].now_s())
    assert not end.open and stage.shards[2].links.address_of(0) == stage.shards[0].core.address
    silent = WireEnd(stage, stage.shards[2])
    links.accepted(silent, stage.shards[2].now_s())
    stage.after(stage.patience_s + 1)
    assert not silent.open


def test_groups_are_of_all_hosts_and_lose_who_is_gone(stage: ClusterStage) -> None:
    members = [stage.start(slot, Member) for slot in range(3)]
    for slot, pid in enumerate(members):
        stage.call(slot, pid, "join", "tea")
    assert all(sorted(map(str, shard.members("tea"))) == sorted(map(str, members)) for shard in stage.shards.values())
    stage.cut(0, 2)
    stage.after(stage.patience_s + 1)
    assert set(stage.shards[0].members("tea")) == set(members[:2])
    assert set(stage.shards[1].members("tea")) == set(members)
    stage.mend()
    stage.after(0.2)
    assert set(stage.shards[0].members("tea")) == set(members)
    stage.kill(1).close()
    assert set(stage.shards[0].members("tea")) == {members[0], members[2]}


def test_a_full_link_refuses_messages_and_loses_none(stage: ClusterStage) -> None:
    sink = stage.start(1, Sinkhole)
    ends = [end for pair in stage._wires for end in pair if end.owner is stage.shards[0]]
    for end in ends:
        end.is_full = True
    sent = [stage.shards[0].send(sink, n) for n in range(100_010)]
    assert sent == [True] * 100_000 + [False] * 10
    for end in ends:
        end.is_full = False
    stage.settle()
    assert stage.call(0, sink, "count") == 100_000


class Sinkhole(GenServer):
    """Takes much."""

    mailbox_limit = 1_000_000

    def init(self) -> None:
        self.seen = 0

    def handle_info(self, message: Any) -> None:
        assert message == self.seen
        self.seen += 1

    def handle_call(self, request: Any, caller: Any) -> int:
        return self.seen


class Names(ProcessSupervisor):
    """What a shard of a set begins with."""

    def init(self, *args: Any) -> Any:
        from actorgrid.supervisors.process import SupervisorFlags

        return SupervisorFlags(intensity=5), [ProcessSpec(name, Member, arguments=(name,)) for name in args]


def test_a_supervisors_children_have_their_names_again_wherever_it_is_begun(stage: ClusterStage) -> None:
    stage.start(1, Names, "one", "two")
    assert stage.call(0, "one", "add", 1) == 1
    with pytest.raises(ActorDown):
        stage.call(0, "one", "crash")
    stage.settle()
    assert stage.call(0, "one", "add", 1) == 1, "its supervisor began it again"
    stage.kill(1, told=False).close()
    stage.begin(1)
    stage.start(1, Names, "one", "two")
    stage.after(stage.patience_s + 0.5)
    assert stage.call(2, "two", "add", 4) == 4


@pytest.mark.parametrize("seed", range(12))
def test_whatever_breaks_no_name_has_two_holders_and_all_agree_in_the_end(seed: int) -> None:
    rng = random.Random(seed)
    stage = ClusterStage(3, patience_s=2.0)
    names = [f"n{n}" for n in range(6)]
    agents = {slot: [stage.start(slot, Member) for _ in range(2)] for slot in range(3)}
    outside: dict[str, tuple[Any, str]] = {}  # what something that is written to has seen: the holder and its token
    for _ in range(60):
        slot = rng.randrange(3)
        match rng.randrange(6):
            case 0:
                stage.cut(*rng.sample(range(3), 2))
            case 1:
                stage.mend()
            case 2:
                # The ledger begins the next when the one before is gone.
                stage.kill(slot, told=rng.random() < 0.5).close()
                stage.begin(slot)
                agents[slot] = [stage.start(slot, Member) for _ in range(2)]
            case 3:
                victim = rng.choice(agents[slot])
                stage.shards[slot].exit(victim, "killed")
                stage.settle()
                agents[slot] = [stage.start(slot, Member) if pid == victim else pid for pid in agents[slot]]
            case _:
                stage.ask(slot, rng.choice(agents[slot]), ("take", rng.choice(names), rng.uniform(0.5, 9)), 10.0)
        stage.after(rng.uniform(0, 3))
        for name in names:
            held = [s.me.slot for s in stage.shards.values() if name in s.global_names.held()]
            assert len(held) <= 1, (seed, name, held)
            for slot in held:
                found = stage.shards[slot].global_names
                pid, token = found.holder_here(name), str(found.token_of(name))
                before, fence = outside.get(name, (pid, token))
                assert token >= fence if pid == before else token > fence, (seed, name, "a later holder is fenced out")
                outside[name] = pid, token
    stage.mend()
    stage.after(30)
    for name in names:
        said = holders(stage, name)
        held = [shard.global_names.holder_here(name) for shard in stage.shards.values()]
        assert len(set(said)) == 1 and [pid for pid in held if pid] == ([said[0]] if said[0] else []), (seed, name)
        if said[0] is not None:
            assert stage.call(0, name, "echo", 3) == 3
    stage.close()


def test_a_name_that_two_turn_out_to_hold_is_the_first_ones() -> None:
    """The ledger does not let it come to that; if it did, one of them ends."""
    sent: list[Any] = []
    home = GlobalNames(
        0, 3, FencingToken(0, 1), lambda slot, signal: sent.append((slot, signal)), lambda *_: None, lambda *_: None
    )
    stage = ClusterStage(3)
    one, two = stage.start(1, Member), stage.start(2, Member)
    name = homed(stage, 0)
    home.link_up(1)
    home.link_up(2)
    home.take(1, ("name_report", {name: one}))
    home.take(2, ("name_report", {name: two}))
    assert (2, ("name_lost", name, two)) in sent and home.whereis(name) == one
    stage.call(2, two, "take", name)
    stage.shards[2].take_items(0, stage.shards[0].core.address, [("name_lost", name, two)])
    stage.settle()
    assert stage.shards[2].info(two) is None
    stage.close()
