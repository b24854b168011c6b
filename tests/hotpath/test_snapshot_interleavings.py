"""Snapshots of the placement engine beside the thread that places: whole, in every order of their steps.

The compiled engine copies under the interpreter's lock. The one in plain Python has no lock: it counts a turn at the
beginning and at the end of each change, and a snapshot is of one even count. Both are played as a model, with what
memory allows; and the plain engine itself runs between two threads that are stopped at every step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

from actorgrid.hotpath.reference.message_ring import Step
from actorgrid.hotpath.reference.placement import PlacementEngine
from tests.hotpath.interleavings import Outcome, explore

Steps = Generator[Step, Any, Any]
TURNS, FIRST, SECOND = "turns", "first member", "second member"
LOOKS_MAX = 3


def changing(of_turns: tuple[bool, bool] = (True, True)) -> Callable[[], Steps]:
    """Who places two gangs of two. Attributes are stored with release, as the free-threaded interpreter does."""

    def program() -> Steps:
        turns = 0
        for gang in (1, 2):
            for at, place in ((0, FIRST), (1, SECOND)):
                if at == 0 and of_turns[0]:
                    turns += 1
                    yield "release", TURNS, turns
                yield "release", place, gang
            if of_turns[1]:
                turns += 1
                yield "release", TURNS, turns
        return "placed"

    return program


def looking() -> Steps:
    """Who takes a snapshot; ``None`` where it is to look again for too long."""
    for _ in range(LOOKS_MAX):
        turns = yield "load", TURNS
        if turns % 2:
            continue
        found = (yield "load", FIRST), (yield "load", SECOND)
        if turns == (yield "load", TURNS):
            return found
    return None


def torn(found: Outcome) -> list[Any]:
    assert found.stuck == []
    seen = [result[1][0] for result in found.results]
    assert (0, 0) in seen and (2, 2) in seen, "it looks before, and after"
    return [each for each in seen if each is not None and each[0] != each[1]]


def test_a_snapshot_without_a_lock_is_whole_in_every_order() -> None:
    assert torn(explore((changing(), looking))) == []


def test_without_the_count_at_the_beginning_or_at_the_end_one_is_torn() -> None:
    """The planted faults."""
    assert torn(explore((changing((False, True)), looking)))
    assert torn(explore((changing((True, False)), looking)))


def test_a_version_and_then_a_flag_is_not_enough() -> None:
    """As it was once: the change ends between the look at the version and that at the flag."""

    def places() -> Steps:
        yield "release", "changing", 1
        for place in (FIRST, SECOND):
            yield "release", place, 1
        yield "release", "version", 1
        yield "release", "changing", 0
        return "placed"

    def looks() -> Steps:
        version = yield "load", "version"
        found = (yield "load", FIRST), (yield "load", SECOND)
        same = version == (yield "load", "version")
        return found if same and not (yield "load", "changing") else None

    seen = [result[1][0] for result in explore((places, looks)).results]
    assert (1, 0) in seen or (0, 1) in seen


def under_lock(steps: Callable[[], Steps]) -> Callable[[], Steps]:
    """One call of the compiled engine: the interpreter's lock is held from its beginning to its end."""

    def program() -> Steps:
        yield "lock", "interpreter"
        found = yield from steps()
        yield "unlock", "interpreter"
        return found

    return program


def copying() -> Steps:
    return (yield "load", FIRST), (yield "load", SECOND)


def storing() -> Steps:
    for place in (FIRST, SECOND):
        yield "store", place, 2
    return "placed"


def test_a_copy_under_the_interpreters_lock_is_whole_in_every_order() -> None:
    assert torn(explore((under_lock(storing), under_lock(copying)))) == []


def test_without_the_lock_on_either_side_it_is_torn() -> None:
    """The planted fault."""
    assert torn(explore((storing, under_lock(copying))))
    assert torn(explore((under_lock(storing), copying)))


class Turns:
    """Two threads of which one runs at a time, and that change over after so many steps of each."""

    def __init__(self, until: dict[str, int]) -> None:
        self.left = until
        self.turn = "places"
        self.over: set[str] = set()
        self._changed = threading.Condition()

    def step(self) -> None:
        """A step of this thread: it waits until it is its turn, and hands over where it has done its part."""
        me = threading.current_thread().name
        if me not in self.left:
            return
        with self._changed:
            assert self._changed.wait_for(lambda: self.turn == me, 60)
            self.left[me] -= 1
            if self.left[me] == 0:
                self._hand_over(me)
                assert self._changed.wait_for(lambda: self.turn == me, 60)

    def end(self) -> None:
        """This thread is done."""
        with self._changed:
            self.over.add(threading.current_thread().name)
            self._hand_over(threading.current_thread().name)

    def _hand_over(self, me: str) -> None:
        other = "looks" if me == "places" else "places"
        if other not in self.over:
            self.turn = other
            self._changed.notify_all()


LOOKED_AT = ("_versions", "_turns", "_slots", "_allocated_milli", "_capacity_milli", "_changing", "_by_name")


class SteppedEngine(PlacementEngine):
    """The plain engine, each change of an attribute of which is a step, and each look at one that a snapshot is of."""

    turns: Turns | None = None

    def __getattribute__(self, name: str) -> Any:
        if name in LOOKED_AT and (turns := SteppedEngine.turns) is not None:
            turns.step()
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") and (turns := SteppedEngine.turns) is not None:
            turns.step()
        super().__setattr__(name, value)


def looked_at(places_first: int, then_looks: int) -> tuple[int, int, bool]:
    """One snapshot beside one gang of two: what it shows as used of devices, and in all; whether the gang was placed
    before the snapshot's second part began."""
    engine = SteppedEngine("best_fit")
    for name in ("a", "b"):
        engine.add_node(name, cpu_milli=4000, memory_mib=4096, gpu_count=1, gpu_model="H100", gpu_memory_mib=1000)
    turns = Turns({"places": places_first, "looks": then_looks})
    found: list[Any] = []

    def places() -> None:
        try:
            found.append(engine.place(gpu_count=1, gang=2))
        finally:
            turns.end()

    def looks() -> None:
        try:
            found.append(engine.snapshot())
        finally:
            turns.end()

    SteppedEngine.turns = turns
    threads = [threading.Thread(target=each, name=each.__name__) for each in (places, looks)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        SteppedEngine.turns = None
    snapshot = next(each for each in found if hasattr(each, "nodes"))
    used = sum(1000 - gpu.milli_free for node in snapshot.nodes for gpu in node.gpus)
    return used, snapshot.allocated_gpu_milli, turns.left["places"] > 0


def test_the_plain_engine_is_whole_wherever_its_threads_are_stopped() -> None:
    """Placing is stopped after every one of its steps, and looking after every one of its own."""
    seen = set()
    for places_first in range(1, 60):
        for then_looks in range(1, 12):
            used, in_all, is_over = looked_at(places_first, then_looks)
            assert used == in_all and used in (0, 2000), (places_first, then_looks)
            seen.add(used)
        if is_over:
            break
    assert is_over, "placing was stopped after its last step, too"
    assert seen == {0, 2000}
