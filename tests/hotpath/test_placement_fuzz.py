"""Long random histories against a plain model: no share has two owners, and every thousandth is accounted for."""

from __future__ import annotations

import gc
import random
import sys
from typing import Any

import psutil
import pytest

import actorgrid.hotpath
from actorgrid.errors import ActorGridError, AdoptRefused, UnknownNode, UnknownPlacement
from actorgrid.hotpath.records import POLICIES, TypicalTask

NAMES = [f"n{number}" for number in range(150)]
MODELS = ("A", "B")


class Model:
    """What there is and who has it, as plainly as can be: sums over everything held, each time."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[int, int, int, int]] = {}  # cpu, memory, gpus, MiB of each
        self.held: dict[Any, tuple[list[tuple[str, tuple[int, ...]]], int, int, int, int]] = {}

    def used(self, name: str) -> tuple[int, int, list[int], list[int]]:
        cpu = memory = 0
        gpus = self.nodes[name][2]
        milli, mib = [0] * gpus, [0] * gpus
        for shares, cpu_milli, memory_mib, gpu_milli, gpu_memory in self.held.values():
            for node, indexes in shares:
                if node == name:
                    cpu += cpu_milli
                    memory += memory_mib
                    for index in indexes:
                        milli[index] += gpu_milli
                        mib[index] += gpu_memory
        return cpu, memory, milli, mib

    def check_node(self, name: str) -> None:
        cpu, memory, milli, mib = self.used(name)
        has_cpu, has_memory, _, has_mib = self.nodes[name]
        assert cpu <= has_cpu and memory <= has_memory
        assert all(each <= 1000 for each in milli) and all(each <= has_mib for each in mib)

    def forget(self, name: str) -> set[Any]:
        del self.nodes[name]
        touched = set()
        for id, (shares, *amounts) in list(self.held.items()):
            left = [share for share in shares if share[0] != name]
            if len(left) < len(shares):
                touched.add(id)
                if left:
                    self.held[id] = (left, *amounts)  # type: ignore[assignment]
                else:
                    del self.held[id]
        return touched


class Fuzz:
    """One engine, one model, the same steps."""

    def __init__(self, seed: int, policy: str) -> None:
        self.dice = random.Random(seed)
        self.engine = actorgrid.hotpath.PlacementEngine(policy)
        self.model = Model()
        self.next_id = 0
        self.counts = {"placed": 0, "refused": 0}
        self.steps = [self.place] * 8 + [self.release] * 6 + [self.adopt, self.adopt_wrongly, self.nonsense]
        self.rare = [self.add, self.add, self.add, self.remove, self.drain, self.resize, self.new_mix, self.compare]

    def run(self, steps: int) -> None:
        for _ in range(20):
            self.add()
        for number in range(steps):
            self.dice.choice(self.rare if number % 50 == 0 else self.steps)()
        self.compare()
        for id in list(self.model.held):
            self.engine.release(id)
        assert self.engine.allocated_gpu_milli == 0
        for node in self.engine.nodes():
            assert (node.cpu_milli_free, node.memory_mib_free) == (node.cpu_milli, node.memory_mib)
            assert all((gpu.milli_free, gpu.memory_mib_free) == (1000, gpu.memory_mib) for gpu in node.gpus)

    # -- steps

    def add(self) -> None:
        name = self.dice.choice(NAMES)
        if name in self.model.nodes:
            return
        cpu, memory, gpus = self.dice.choice(((64_000, 4096, 8), (16_000, 1024, 2), (8000, 8192, 0), (500, 50, 16)))
        groups = self.dice.choice((None, tuple(index // 4 for index in range(gpus))))
        self.engine.add_node(
            name,
            cpu_milli=cpu,
            memory_mib=memory,
            gpu_count=gpus,
            gpu_model=self.dice.choice(MODELS),
            gpu_memory_mib=80,
            rack=self.dice.choice(("r1", "r2", None)),
            nvlink=groups,
        )
        self.model.nodes[name] = (cpu, memory, gpus, 80)

    def remove(self) -> None:
        if len(self.model.nodes) > 15:
            name = self.dice.choice(list(self.model.nodes))
            assert set(self.engine.remove_node(name)) == self.model.forget(name)

    def drain(self) -> None:
        self.engine.drain(self.dice.choice(list(self.model.nodes)), self.dice.random() < 0.2)

    def resize(self) -> None:
        name = self.dice.choice(list(self.model.nodes))
        cpu, memory, _, _ = self.model.used(name)
        _, _, gpus, mib = self.model.nodes[name]
        wanted = self.dice.randrange(70_000), self.dice.randrange(5000)
        try:
            self.engine.resize_node(name, cpu_milli=wanted[0], memory_mib=wanted[1])
        except ActorGridError:
            assert wanted[0] < cpu or wanted[1] < memory
        else:
            assert wanted[0] >= cpu and wanted[1] >= memory
            self.model.nodes[name] = (*wanted, gpus, mib)

    def new_mix(self) -> None:
        shapes = [(self.dice.choice((500, 4000)), self.dice.choice((1, 2)), self.dice.choice((250, 500, 1000)))]
        self.engine.set_typical_tasks([TypicalTask(*shape, self.dice.random() + 0.1) for shape in shapes])

    def place(self) -> None:
        dice = self.dice
        amounts = {
            "cpu_milli": dice.choice((0, 100, 1000, 4000, dice.randrange(2000))),
            "memory_mib": dice.choice((0, 64, 256)),
            "gpu_milli": dice.choice((1000, 1000, 500, 250, 333)),
            "gpu_memory_mib": dice.choice((0, 0, 20, 80)),
        }
        more: dict[str, Any] = {"gpu_count": dice.choice((0, 1, 1, 1, 2, 4, 8))}
        if dice.random() < 0.2:
            more["gang"] = dice.choice((2, 3, 16))
        if dice.random() < 0.1:
            more["exclude"] = dice.sample(NAMES, 30)
        if dice.random() < 0.1:
            more["prefer_racks"] = ("r2",)
        if dice.random() < 0.1:
            more["gpu_models"] = (dice.choice(MODELS),)
        if dice.random() < 0.05:
            more["within"] = [(name, (0, 1, 2)) for name in dice.sample(NAMES, 30)]
        self.next_id += 1
        placed = self.engine.place(id=f"p{self.next_id}", **amounts, **more)
        self.counts["refused" if placed is None else "placed"] += 1
        if placed is None:
            return
        assert len(placed.shares) == more.get("gang", 1)
        for name, indexes in placed.shares:
            assert len(set(indexes)) == more["gpu_count"]
            assert name not in more.get("exclude", ())
        self.hold(placed.id, placed.shares, amounts if more["gpu_count"] else {**amounts, "gpu_memory_mib": 0})

    def hold(self, id: Any, shares: Any, amounts: dict[str, int]) -> None:
        self.model.held[id] = (list(shares), *amounts.values())  # type: ignore[assignment]
        for name in {name for name, _ in shares}:
            self.model.check_node(name)

    def release(self) -> None:
        if self.model.held:
            id = self.dice.choice(list(self.model.held))
            self.engine.release(id)
            del self.model.held[id]
            with pytest.raises(UnknownPlacement):
                self.engine.release(id)

    def adopt(self) -> None:
        name = self.dice.choice(list(self.model.nodes))
        gpus = self.model.nodes[name][2]
        shares = [(name, tuple(self.dice.sample(range(gpus), min(gpus, 2))))]
        amounts = {"cpu_milli": 300, "memory_mib": 16, "gpu_milli": 250, "gpu_memory_mib": 10}
        self.next_id += 1
        try:
            self.engine.adopt(self.next_id, shares, **amounts)
        except AdoptRefused:
            return
        self.hold(self.next_id, shares, amounts)

    def adopt_wrongly(self) -> None:
        before = self.engine.allocated_gpu_milli
        for id, shares in (
            ("new", [(self.dice.choice(list(self.model.nodes)), (99,))]),
            (next(iter(self.model.held), "new"), [("nowhere", ())]),
        ):
            with pytest.raises((AdoptRefused, UnknownNode)):
                self.engine.adopt(id, shares, gpu_milli=1)
        assert self.engine.allocated_gpu_milli == before

    def nonsense(self) -> None:
        before = self.engine.allocated_gpu_milli
        for wrong in ({"cpu_milli": -1}, {"gpu_milli": 0, "gpu_count": 1}, {"memory_mib": float("nan")}):
            with pytest.raises(ActorGridError):
                self.engine.place(**wrong)
        assert self.engine.allocated_gpu_milli == before

    def compare(self) -> None:
        assert self.engine.placements().keys() == self.model.held.keys()
        total = 0
        for node in self.engine.nodes():
            cpu, memory, milli, mib = self.model.used(node.name)
            self.model.check_node(node.name)
            assert (node.cpu_milli - node.cpu_milli_free, node.memory_mib - node.memory_mib_free) == (cpu, memory)
            assert [1000 - gpu.milli_free for gpu in node.gpus] == milli
            assert [gpu.memory_mib - gpu.memory_mib_free for gpu in node.gpus] == mib
            total += sum(milli)
        assert self.engine.allocated_gpu_milli == total
        assert self.engine.capacity_gpu_milli == 1000 * sum(gpus for _, _, gpus, _ in self.model.nodes.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_no_share_has_two_owners_and_nothing_is_lost(policy: str) -> None:
    fuzz = Fuzz(1, policy)
    fuzz.run(2000 if actorgrid.hotpath.COMPILED else 300)
    assert fuzz.counts["placed"] > 50 and fuzz.counts["refused"] > 50


def test_the_same_seed_gives_the_same_decisions() -> None:
    histories = []
    for _ in range(2):
        fuzz = Fuzz(7, "completion")
        fuzz.run(400)
        histories.append((fuzz.counts, sorted(fuzz.model.held.items(), key=str)))
    assert histories[0] == histories[1]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_over_millions_of_steps(seed: int) -> None:
    for policy in POLICIES:
        Fuzz(seed, policy).run(10_000)


def churn(operations: int) -> int:
    """Place and release, one and gangs in turn; gives by how many bytes the process grew after a warm-up."""
    engine = actorgrid.hotpath.PlacementEngine()
    for number in range(8):
        engine.add_node(f"n{number}", cpu_milli=64_000, memory_mib=4096, gpu_count=8, gpu_model="A")
    process = psutil.Process()
    before = 0
    for number in range(operations // 2):
        if number == operations // 20:
            gc.collect()
            before = process.memory_info().rss
        if number % 16:
            held = engine.place(cpu_milli=number % 400, gpu_count=1, gpu_milli=250)
        else:
            # With all of a gang's ways to take shares: built for it, lent by the nodes, given back, and only counted.
            held = engine.place(cpu_milli=100, gpu_count=2, gang=3)
            engine.release(held.id)
            assert engine.place(gpu_count=1, gang=65) is None
            if number % 512 == 0:
                assert engine.explain(gpu_count=1, gang=65)["members_that_fit"] == 64
            held = engine.place(cpu_milli=100, gpu_count=number // 16 % 2, gang=3)
        engine.release(held.id)
    gc.collect()
    assert engine.allocated_gpu_milli == 0
    return int(process.memory_info().rss - before)


@pytest.mark.parametrize("gpu_count", [0, 1, 2])
def test_the_shares_of_a_gang_are_counted_as_often_as_they_are_held(gpu_count: int) -> None:
    engine = actorgrid.hotpath.PlacementEngine()
    for name in ("alpha", "beta"):
        engine.add_node(name, cpu_milli=64_000, memory_mib=4096, gpu_count=8, gpu_model="A")
    counted = []
    for _ in range(3):
        placed = engine.place(cpu_milli=16_000, gpu_count=gpu_count, gang=8)
        assert sorted(name for name, _ in placed.shares) == ["alpha"] * 4 + ["beta"] * 4
        assert engine.place(cpu_milli=1, gpu_count=gpu_count, gang=2) is None
        engine.release(placed.id)
        assert engine.place(cpu_milli=16_000, gpu_count=gpu_count, gang=9) is None
        assert engine.explain(cpu_milli=16_000, gpu_count=gpu_count, gang=9)["members_that_fit"] == 8
        counted.append([sys.getrefcount(share) for share in placed.shares])
        del placed
    assert counted == [counted[0]] * 3


def test_a_gang_keeps_its_shares_when_its_node_is_gone() -> None:
    engine = actorgrid.hotpath.PlacementEngine()
    engine.add_node("alpha", cpu_milli=64_000, memory_mib=4096, gpu_count=8, gpu_model="A")
    placed = engine.place(gpu_count=1, gang=8)
    assert engine.remove_node("alpha") == (placed.id,)
    gc.collect()
    assert sorted(placed.shares) == [("alpha", (index,)) for index in range(8)]


def test_operations_leave_nothing_behind() -> None:
    assert churn(200_000 if actorgrid.hotpath.COMPILED else 2000) < 2**20


@pytest.mark.soak
def test_ten_million_operations_leave_nothing_behind() -> None:
    assert churn(10_000_000) < 2**20
