"""What will be free where and when: one contract for the compiled kernel and its twin, and what a question costs."""

from __future__ import annotations

import gc
import math
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorgrid.hotpath
from actorgrid.hotpath import PlacementEngine
from actorgrid.hotpath.capacity import ENDS_MAX, GangNeeds
from actorgrid.hotpath.reference.forecast import Forecast as Reference

KINDS: dict[str, Any] = {"reference": Reference}
if actorgrid.hotpath.COMPILED:
    KINDS["compiled"] = actorgrid.hotpath.Forecast
INF = math.inf


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def nodes(count: int, gpus: int = 4, *, cpu_milli: int = 8000, models: tuple[str, ...] = ("H100",)) -> list[Any]:
    engine = PlacementEngine("first_fit")
    for number in range(count):
        engine.add_node(
            f"n{number}",
            cpu_milli=cpu_milli,
            memory_mib=1000,
            gpu_count=gpus,
            gpu_model=models[number % len(models)],
            gpu_memory_mib=100,
        )
    return engine.nodes()


def ask(**arguments: Any) -> GangNeeds:
    return GangNeeds(arguments)


WHOLE = tuple(range(4))
FOUR = ask(gpu_count=4)
ONE = ask(gpu_count=1)


def test_what_fits_now_starts_now_on_the_devices_with_least_left(kind: Any) -> None:
    forecast = kind(nodes(2))
    half = ask(gpu_count=1, gpu_milli=500)
    forecast.begin("a", half, (("n1", (2,)),), 0.0, 10.0, 1)
    assert forecast.earliest("b", half, 0.0, 5.0) == (0.0, (("n0", (0,)),), frozenset())
    forecast.begin("c", FOUR, (("n0", WHOLE),), 0.0, 10.0, 2)
    assert forecast.earliest("b", half, 0.0, 5.0) == (0.0, (("n1", (2,)),), frozenset())


def test_members_that_keep_apart_wait_for_a_node_each(kind: Any) -> None:
    forecast = kind(nodes(2))
    forecast.begin("a", FOUR, (("n0", WHOLE),), 0.0, 10.0, 1)
    together = forecast.earliest("g", ask(gpu_count=1, gang=2), 1.0, 5.0)
    assert together[0] == 1.0
    start, shares, _ = forecast.earliest("g", GangNeeds({"gpu_count": 1, "gang": 2}, apart=True), 1.0, 5.0)
    assert (start, sorted(name for name, _ in shares)) == (10.0, ["n0", "n1"])


def test_a_gang_starts_when_the_last_it_needs_has_ended(kind: Any) -> None:
    forecast = kind(nodes(2))
    forecast.begin("a", FOUR, (("n0", WHOLE),), 0.0, 10.0, 1)
    forecast.begin("b", ONE, (("n1", (3,)),), 0.0, 30.0, 2)
    gang = ask(gpu_count=4, gang=2)
    assert forecast.earliest("g", gang, 1.0, 5.0) == (30.0, (("n0", WHOLE), ("n1", WHOLE)), frozenset())
    assert forecast.earliest("g", gang, 1.0, 5.0, 29.9) is None, "not by then"
    forecast.end("b")
    assert forecast.earliest("g", gang, 1.0, 5.0)[0] == 10.0


def test_one_fits_before_a_reservation_or_after_it_but_not_into_it(kind: Any) -> None:
    forecast = kind(nodes(1))
    forecast.reserve("r", FOUR, (("n0", WHOLE),), 20.0, 10.0)
    assert forecast.earliest("a", FOUR, 0.0, 20.0)[0] == 0.0
    assert forecast.earliest("a", FOUR, 0.0, 20.5)[0] == 30.0
    assert forecast.earliest("a", FOUR, 0.0, 20.5, alone=True)[0] == 0.0
    assert forecast.earliest("r", FOUR, 0.0, 20.5)[0] == 0.0, "its own is not in its way"
    forecast.drop("r")
    assert forecast.earliest("a", FOUR, 0.0, 20.5)[0] == 0.0


def test_between_two_reservations_there_is_room_for_what_is_short_enough(kind: Any) -> None:
    forecast = kind(nodes(1))
    forecast.reserve("first", FOUR, (("n0", WHOLE),), 0.0, 10.0)
    forecast.reserve("second", ask(gpu_count=2), (("n0", (0, 1)),), 25.0, 10.0)
    assert forecast.earliest("a", FOUR, 0.0, 15.0)[0] == 10.0
    assert forecast.earliest("a", FOUR, 0.0, 16.0)[0] == 35.0
    assert forecast.earliest("a", ask(gpu_count=2), 0.0, 16.0) == (10.0, (("n0", (2, 3)),), frozenset())


def test_without_known_ends_it_says_whose_are_awaited(kind: Any) -> None:
    forecast = kind(nodes(2))
    forecast.begin("young", FOUR, (("n0", WHOLE),), 5.0, INF, 2)
    forecast.begin("old", FOUR, (("n1", WHOLE),), 1.0, INF, 1)
    assert forecast.earliest("a", FOUR, 6.0, 1.0) == (INF, (("n1", WHOLE),), frozenset({"old"}))
    assert forecast.earliest("a", FOUR, 6.0, 1.0, 1e9) is None
    forecast.stop_at("young", 8.0)
    assert forecast.earliest("a", FOUR, 6.0, 1.0) == (8.0, (("n0", WHOLE),), frozenset())
    forecast.stop_at("young", None)
    assert forecast.earliest("a", FOUR, 6.0, 1.0)[2] == {"old"}


def test_who_outlives_its_estimate_is_given_twice_as_long_again_and_again(kind: Any) -> None:
    forecast = kind(nodes(1))
    forecast.begin("a", FOUR, (("n0", WHOLE),), 0.0, 10.0, 1)
    assert forecast.earliest("b", FOUR, 9.0, 1.0)[0] == 10.0
    assert forecast.earliest("b", FOUR, 10.0, 1.0)[0] == 20.0
    assert forecast.earliest("b", FOUR, 25.0, 1.0)[0] == 40.0
    forecast.stop_at("a", 26.0)
    assert forecast.earliest("b", FOUR, 25.0, 1.0)[0] == 26.0
    assert forecast.earliest("b", FOUR, 27.0, 1.0)[0] == 27.0, "it should be gone any moment"


def test_only_wanted_models_allowed_places_and_nodes_that_are_not_drained_count(kind: Any) -> None:
    engine = PlacementEngine("first_fit")
    for name, model in (("x", "A100"), ("y", "H100"), ("z", "H100")):
        engine.add_node(name, cpu_milli=1000, memory_mib=10, gpu_count=2, gpu_model=model, gpu_memory_mib=100)
    engine.drain("y")
    forecast = kind(engine.nodes())
    assert forecast.earliest("a", ask(gpu_count=1, gpu_models=("H100",)), 0.0, 1.0)[1] == (("z", (0,)),)
    assert forecast.earliest("a", ask(gpu_count=1, within=(("z", (1,)), ("gone", (0,)))), 0.0, 1.0)[1] == (("z", (1,)),)
    assert forecast.earliest("a", ask(gpu_count=1), 0.0, 1.0)[1] == (("x", (0,)),), "no place is remembered"
    assert forecast.earliest("a", ask(cpu_milli=600, gang=2), 0.0, 1.0)[1] == (("x", ()), ("z", ()))
    assert forecast.earliest("a", ask(gpu_count=1, gpu_models=("TPU",)), 0.0, 1.0) is None
    assert forecast.earliest("a", ask(gpu_count=1, gpu_memory_mib=101), 0.0, 1.0) is None


def test_what_binding_reservations_leave_until_an_end_is_open_to_others(kind: Any) -> None:
    forecast = kind(nodes(3))
    forecast.begin("run", ask(gpu_count=2), (("n0", (0, 1)),), 0.0, 10.0, 1)
    forecast.reserve("r", ask(gpu_count=3), (("n0", (0, 1, 2)),), 10.0, 5.0)
    forecast.reserve("late", FOUR, (("n1", WHOLE),), 50.0, 5.0)
    assert forecast.closed("a", None, 20.0) == ("n0",)
    assert forecast.closed("a", None, 60.0) == ("n0", "n1")
    assert forecast.closed("r", None, 60.0) == ("n1",)
    assert forecast.closed("a", ["late"], 60.0) == ("n1",)
    assert forecast.beside("a", ONE, ("n0",), None, 0.0, 20.0) == (("n0", (3,)),)
    assert forecast.beside("a", ask(gpu_count=2), ("n0", "gone"), None, 0.0, 20.0) == ()
    assert forecast.beside("a", ask(gpu_count=2), ("n0",), [], 0.0, 20.0) == (("n0", (2, 3)),)


def test_a_place_kept_without_a_time_is_closed_at_once(kind: Any) -> None:
    forecast = kind(nodes(1))
    forecast.begin("endless", ask(gpu_count=3), (("n0", (0, 1, 2)),), 0.0, INF, 1)
    _, shares, awaited = forecast.earliest("g", FOUR, 0.0, 10.0)
    forecast.reserve("g", FOUR, shares, INF, 10.0, awaited)
    assert forecast.closed("a", None, 0.1) == ("n0",)
    assert forecast.beside("a", ONE, ("n0",), None, 0.0, 0.1) == ()
    assert forecast.earliest("a", ONE, 0.0, 0.1) is None


def test_a_broken_promise_of_the_caller_is_an_error_that_changes_nothing(kind: Any) -> None:
    forecast = kind(nodes(1))
    forecast.begin("a", ONE, (("n0", (0,)),), 0.0, 10.0, 1)
    with pytest.raises(AssertionError):
        forecast.begin("a", ONE, (("n0", (1,)),), 0.0, 10.0, 1)
    forecast.reserve("r", ONE, (("n0", (0,)),), 10.0, 10.0)
    with pytest.raises(AssertionError):
        forecast.reserve("r", ONE, (("n0", (1,)),), 0.0, 10.0)
    for unknown in (lambda: forecast.end("x"), lambda: forecast.drop("x"), lambda: forecast.stop_at("x", 1.0)):
        with pytest.raises(KeyError):
            unknown()
    with pytest.raises(IndexError):
        forecast.begin("b", ONE, (("n0", (4,)),), 0.0, 10.0, 1)
    assert forecast.earliest("c", ask(gpu_count=3), 0.0, 5.0) == (0.0, (("n0", (1, 2, 3)),), frozenset())


def test_after_everything_has_ended_it_is_as_at_the_beginning(kind: Any) -> None:
    forecast = kind(nodes(3))
    dice = random.Random(1)
    for turn in range(300):
        shares = tuple((f"n{number}", (dice.randrange(4),)) for number in range(3))
        forecast.begin(
            f"j{turn}", ask(gpu_count=1, gpu_milli=3, cpu_milli=2), shares, 0.0, dice.choice([1.0, INF]), turn
        )
        forecast.reserve(f"r{turn}", ONE, shares, dice.choice([5.0, INF]), dice.choice([1.0, INF]))
        if turn % 3 == 0:
            forecast.stop_at(f"j{turn}", 3.0)
    for turn in dice.sample(range(300), 300):
        forecast.end(f"j{turn}")
        forecast.drop(f"r{turn}")
    found = forecast.earliest("g", ask(gpu_count=4, cpu_milli=8000, memory_mib=1000, gang=3), 9.0, INF)
    assert found == (9.0, tuple((f"n{number}", WHOLE) for number in range(3)), frozenset())


@pytest.mark.skipif(not actorgrid.hotpath.COMPILED, reason="the kernels were not compiled")
def test_what_the_kernel_takes_of_memory_it_gives_back() -> None:
    views = nodes(50)

    def fill() -> None:
        forecast = KINDS["compiled"](views)
        for number in range(1000):
            forecast.begin(f"j{number}", ONE, ((f"n{number % 50}", (number % 4,)),), 0.0, 10.0 + number, number)
            forecast.reserve(f"r{number}", ONE, ((f"n{number % 50}", (number % 4,)),), 10.0 + number, 1.0)
            if number % 3:
                forecast.end(f"j{number}")
                forecast.drop(f"r{number}")
        forecast.earliest("g", ask(gpu_count=4, gang=50), 0.0, 1.0)

    tracemalloc.start()
    try:
        fill()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(5):
            fill()
        gc.collect()
        assert tracemalloc.get_traced_memory()[1] > before + 50_000, "the kernel's memory is counted too"
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
    finally:
        tracemalloc.stop()


# -- what a question costs


def test_a_question_looks_at_a_node_again_only_when_something_changes_there(kind: Any) -> None:
    """500 nodes with a reservation each, 500 ends before there is room: not 500 times 500 looks."""
    count = 500
    forecast = kind(nodes(count))
    for number in range(count):
        name = f"n{number}"
        forecast.begin(f"j{number}", FOUR, ((name, WHOLE),), 0.0, 10.0 + number, number)
        forecast.reserve(f"r{number}", FOUR, ((name, WHOLE),), 10.0 + number, 1000.0)
    before = forecast.counted
    assert forecast.earliest("a", FOUR, 0.0, 10.0)[0] == 1010.0
    assert count < forecast.counted - before < 4 * count


def test_a_question_with_a_limit_looks_no_further_than_that(kind: Any) -> None:
    count = 500
    forecast = kind(nodes(count))
    for number in range(count):
        forecast.begin(f"j{number}", FOUR, ((f"n{number}", WHOLE),), 0.0, 10.0 + number, number)
    before = forecast.counted
    gang = ask(gpu_count=4, gang=count)
    assert forecast.earliest("g", gang, 0.0, 10.0, 14.5) is None
    assert forecast.counted - before == count + 5
    before = forecast.counted
    assert forecast.earliest("g", gang, 0.0, 10.0, -1.0) is None
    assert forecast.counted == before


def test_a_full_node_is_looked_at_once_whatever_is_reserved_there(kind: Any) -> None:
    forecast = kind(nodes(1))
    forecast.begin("j", FOUR, (("n0", WHOLE),), 0.0, 10.0, 1)
    for number in range(100):
        forecast.reserve(f"r{number}", ONE, (("n0", (number % 4,)),), 10.0 + number, 1.0)
    before = forecast.counted
    assert forecast.beside("a", ONE, ("n0",), None, 0.0, INF) == ()
    assert forecast.counted - before == 1


def test_no_more_ends_are_looked_at_than_there_may_be(kind: Any) -> None:
    forecast = kind(nodes(1, cpu_milli=ENDS_MAX + 10))
    for number in range(ENDS_MAX + 10):
        forecast.begin(f"j{number}", ask(cpu_milli=1), (("n0", ()),), 0.0, 10.0 + number, number)
    assert forecast.earliest("a", ask(cpu_milli=ENDS_MAX), 0.0, 1.0)[0] == 9.0 + ENDS_MAX
    assert forecast.earliest("a", ask(cpu_milli=ENDS_MAX + 1), 0.0, 1.0) is None


# -- the kernel and its twin

AMOUNTS = st.fixed_dictionaries(
    {
        "cpu_milli": st.sampled_from([0, 0, 1000, 5000]),
        "memory_mib": st.sampled_from([0, 0, 100, 600]),
        "gpu_count": st.sampled_from([0, 1, 1, 2, 4]),
        "gpu_milli": st.sampled_from([1000, 1000, 500, 300]),
        "gpu_memory_mib": st.sampled_from([0, 0, 30, 60]),
        "gpu_models": st.sampled_from([(), (), ("H100",), ("A100", "H100")]),
        "gpu_topology": st.sampled_from(["", "", "nvlink", "pxb", "node"]),
        "gang": st.sampled_from([1, 1, 2, 3]),
        "within": st.sampled_from([(), (), (("n0", (0, 1)), ("n2", (3,)))]),
    }
)
TIMES = st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0, 25.0, INF])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "start", "reserve", "reserve", "end", "drop", "stop", "let off", "ask"]),
        AMOUNTS,
        TIMES,
        TIMES,
        st.integers(0, 5),
    ),
    max_size=40,
)


@pytest.mark.skipif(not actorgrid.hotpath.COMPILED, reason="the kernels were not compiled")
@settings(max_examples=150, deadline=None)
@given(steps=STEPS, drained=st.booleans())
def test_the_kernel_answers_as_its_twin_does(steps: list[Any], drained: bool) -> None:
    engine = PlacementEngine("first_fit")
    for number in range(4):
        engine.add_node(
            f"n{number}",
            cpu_milli=8000,
            memory_mib=1000,
            gpu_count=4,
            gpu_model=("H100", "A100")[number % 2],
            gpu_memory_mib=100,
            near=(None, ("0155", "1055", "5501", "5510"), ("0111",) * 4, ("0123", "1054", "2503", "3430"))[number],
        )
    if drained:
        engine.drain("n3")
    both = [Reference(engine.nodes()), KINDS["compiled"](engine.nodes())]
    now = 0.0
    running: list[str] = []
    kept: list[str] = []

    def agreed(name: str, *arguments: Any, **more: Any) -> Any:
        answers = [getattr(each, name)(*arguments, **more) for each in both]
        assert answers[0] == answers[1]
        return answers[0]

    for number, (what, amounts, length, other, pick) in enumerate(steps):
        now += (0.0, 0.0, 0.5, 2.0, 7.0, 0.0)[pick]
        wanted = GangNeeds(amounts, apart=pick == 3)
        found = agreed("earliest", f"x{number}", wanted, now, length)
        agreed("earliest", f"x{number}", wanted, now, length, now + other)
        agreed("earliest", f"x{number}", wanted, now, length, alone=True)
        binding = None if pick % 2 else kept[:pick]
        closed = agreed("closed", f"x{number}", binding, now + length)
        agreed("beside", f"x{number}", wanted, closed, binding, now, now + length)
        if kept:
            agreed("earliest", kept[pick % len(kept)], wanted, now, length)
        if what == "start" and found is not None and found[0] == now:
            agreed("begin", f"x{number}", wanted, found[1], now, length, number)
            running.append(f"x{number}")
        elif what == "reserve" and found is not None:
            agreed("reserve", f"x{number}", wanted, found[1], found[0], length, found[2])
            kept.append(f"x{number}")
        elif what == "end" and running:
            agreed("end", running.pop(pick % len(running)))
        elif what == "drop" and kept:
            agreed("drop", kept.pop(pick % len(kept)))
        elif what == "stop" and running and other != INF:
            agreed("stop_at", running[pick % len(running)], now + other)
        elif what == "let off" and running:
            agreed("stop_at", running[pick % len(running)], None)
        assert both[0].counted == both[1].counted
