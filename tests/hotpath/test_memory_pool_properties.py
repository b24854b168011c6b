"""Any calls in any order: bytes are conserved, contents stay, and the two pools give the same answers."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actorgrid.errors import ActorGridError, OutOfDeviceMemory
from tests.hotpath.memory_device import POOLS, Device

UNITS = 96
SIZES = st.integers(1, 30 * 64) | st.integers(-1, 100 * 64)


class Pools(RuleBasedStateMachine):
    """Every implementation does the same; what one raises, all raise."""

    def __init__(self) -> None:
        super().__init__()
        self.devices = [Device(POOLS[name](UNITS * 64, 64)) for name in sorted(POOLS)]
        self.blocks: list[tuple[Any, ...]] = []  # one handle of each pool
        self.plans: tuple[Any, ...] = ()
        self.moves: list[tuple[Any, ...]] = []

    def each(self, *calls: Any) -> tuple[Any, ...] | None:
        """What each call gave, or None when all raised the same."""
        results, errors = [], []
        for call in calls:
            try:
                results.append(call())
            except ActorGridError as error:
                errors.append((type(error), str(error)))
        assert not (results and errors)
        assert len(set(errors)) <= 1
        return tuple(results) if results else None

    def live(self) -> list[tuple[Any, ...]]:
        return [blocks for blocks in self.blocks if blocks[0].live]

    @rule(size=SIZES)
    def allocate(self, size: int) -> None:
        got = self.each(*(lambda device=device: device.allocate(size) for device in self.devices))
        if got:
            self.blocks.append(got)

    @rule(sizes=st.lists(SIZES, max_size=6))
    def allocate_many(self, sizes: list[int]) -> None:
        got = self.each(*(lambda device=device: device.pool.allocate_many(sizes) for device in self.devices))
        if got:
            assert len({tuple(batch.offsets()) for batch in got}) == 1
            for blocks in zip(*got, strict=True):
                for device, block in zip(self.devices, blocks, strict=True):
                    device.fill(block)
                self.blocks.append(blocks)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.blocks:
            blocks = data.draw(st.sampled_from(self.blocks))
            pairs = list(zip(self.devices, blocks, strict=True))
            self.each(*(lambda device=device, block=block: device.free(block) for device, block in pairs))

    @rule(data=st.data())
    def free_many(self, data: st.DataObject) -> None:
        if self.blocks:
            chosen = data.draw(st.lists(st.sampled_from(self.blocks), max_size=5))
            lists = [[blocks[at] for blocks in chosen] for at in range(len(self.devices))]
            pairs = list(zip(self.devices, lists, strict=True))
            if self.each(*(lambda device=device, them=them: device.pool.free_many(them) for device, them in pairs)):
                for device, them in pairs:
                    for block in them:
                        del device.live[block]

    @rule(want=st.none() | SIZES, most=st.none() | st.integers(0, 40 * 64), overlap=st.booleans())
    def defragment(self, want: int | None, most: int | None, overlap: bool) -> None:
        plans = self.each(
            *(lambda device=device: device.pool.defragment(want, most, overlap) for device in self.devices)
        )
        if plans:
            self.plans = plans
            assert len({(plan.planned_bytes, plan.hole_bytes, plan.want_bytes) for plan in plans}) == 1

    @rule()
    def next_move(self) -> None:
        moves = tuple(next(plan, None) for plan in self.plans)
        if moves and moves[0] is not None:
            assert len({repr(move) for move in moves}) == 1
            self.moves.append(moves)
        else:
            assert set(moves) <= {None}

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        if self.moves:
            moves = self.moves[data.draw(st.integers(0, len(self.moves) - 1))]  # nothing else may keep a move
            for device, move in zip(self.devices, moves, strict=True):
                pending = move.block.live and move.block.offset == move.source != move.destination
                if pending and any(segment.offset == move.destination for segment in held(device)):
                    device.copy(move)
            calls = zip(self.devices, moves, strict=True)
            self.each(*(lambda device=device, move=move: device.pool.commit(move) for device, move in calls))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.moves:
            moves = self.moves[data.draw(st.integers(0, len(self.moves) - 1))]  # nothing else may keep a move
            calls = zip(self.devices, moves, strict=True)
            self.each(*(lambda device=device, move=move: device.pool.cancel(move) for device, move in calls))

    @rule()
    def drop(self) -> None:
        self.moves.clear()

    @rule()
    def close(self) -> None:
        for plan in self.plans:
            plan.close()

    @invariant()
    def nothing_is_lost(self) -> None:
        for device in self.devices:
            device.check()

    @invariant()
    def the_pools_agree(self) -> None:
        first, *others = self.devices
        for other in others:
            assert other.pool.segments() == first.pool.segments()
            assert other.pool.stats() == first.pool.stats()

    def teardown(self) -> None:
        self.moves.clear()
        self.plans = ()
        for device in self.devices:
            assert device.pool.stats().held == 0
            device.pool.free_many(list(device.live))
            assert device.pool.stats().used == 0
            assert device.pool.stats().largest_free == UNITS * 64


def held(device: Device) -> list[Any]:
    return [segment for segment in device.pool.segments() if segment.state == "held"]


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_both_pools_give_the_same_offsets_and_the_same_moves() -> None:
    """At the size of a device, with sizes of many orders, where bins and windows matter."""
    for seed in range(3):
        transcripts = []
        for name in sorted(POOLS):
            dice = random.Random(seed)
            pool = POOLS[name](2**32)
            live: list[Any] = []
            told: list[Any] = []
            for _ in range(4000):
                n = int(256 * 2 ** (20 * dice.random() ** 5))
                try:
                    live.append(pool.allocate(n))
                    told.append(live[-1].offset)
                except OutOfDeviceMemory as error:
                    told.append(str(error))
                    if n <= pool.stats().free:
                        for move in pool.defragment(n, allow_overlap=dice.random() < 0.2):
                            told.append(repr(move))
                            if dice.random() < 0.95:
                                pool.commit(move)
                        move = None
                if live and dice.random() < 0.3:
                    pool.free(live.pop(dice.randrange(len(live))))
                if dice.random() < 0.02:
                    batch = pool.allocate_many([300, 5000, 70])
                    told += batch.offsets()
                    pool.free_many([*batch, *(live.pop() for _ in range(min(len(live), 3)))])
            told += [pool.segments(), pool.stats()]
            transcripts.append(told)
        assert all(one == transcripts[0] for one in transcripts)
        assert len(transcripts[0]) > 4000


def test_wrong_calls_in_between_change_nothing() -> None:
    for name in sorted(POOLS):
        dice = random.Random(20)
        device = Device(POOLS[name](UNITS * 64, 64))
        gone: list[Any] = []
        for _ in range(500):
            before = device.pool.segments(), device.pool.stats()
            wrong: list[tuple[Any, Any]] = [
                (device.pool.allocate, dice.choice([0, -5, 2**80, float("nan"), None])),
                (device.pool.free, dice.choice([*gone, None, 4])),
                (device.pool.free_many, [*device.live, *gone, None]),
                (device.pool.allocate_many, [64] * (UNITS + 1)),
            ]
            for call, argument in wrong:
                with pytest.raises(ActorGridError):
                    call(argument)
            assert (device.pool.segments(), device.pool.stats()) == before
            if device.live and dice.random() < 0.5:
                gone = [dice.choice(list(device.live)), *gone[:3]]
                device.free(gone[0])
            elif device.pool.stats().largest_free >= 640:
                device.allocate(dice.randrange(1, 640))
        device.check()
