"""Work that leaves its devices idle: when its time is over, and what counts as busy."""

from __future__ import annotations

from actorgrid.actors.gpu.idle_tracker import IDLE_BELOW_PERCENT, IdleTerms, IdleTracker, IdleWork

ONE = IdleTerms("a.1", ("g0",), 30.0)
TWO = IdleTerms("b.1", ("g0", "g1"), 10.0)


def test_work_that_was_idle_for_its_whole_limit_is_over() -> None:
    tracker = IdleTracker()
    assert [tracker.take([ONE], {"g0": 0.0}, now) for now in (100.0, 110.0, 129.9)] == [[], [], []]
    assert tracker.take([ONE], {"g0": 0.0}, 130.0) == [IdleWork("a.1", 30.0)]


def test_one_busy_sample_begins_the_time_anew() -> None:
    tracker = IdleTracker()
    tracker.take([ONE], {"g0": 0.0}, 0.0)
    tracker.take([ONE], {"g0": IDLE_BELOW_PERCENT}, 29.0)
    assert tracker.take([ONE], {"g0": 0.0}, 31.0) == []
    assert tracker.take([ONE], {"g0": IDLE_BELOW_PERCENT - 0.1}, 61.0) == [IdleWork("a.1", 30.0)]


def test_all_devices_have_to_be_idle_and_what_is_unknown_is_not() -> None:
    tracker = IdleTracker()
    for unsure in ({"g0": 0.0, "g1": 80.0}, {"g0": 0.0, "g1": None}, {"g0": 0.0}):
        assert tracker.take([TWO], unsure, 0.0) == [] == tracker.take([TWO], unsure, 1_000.0)
    both = {"g0": 0.0, "g1": 0.0}
    assert tracker.take([TWO], both, 1_001.0) == [] and len(tracker.take([TWO], both, 1_011.0)) == 1


def test_what_is_gone_is_forgotten() -> None:
    tracker = IdleTracker()
    tracker.take([ONE], {"g0": 0.0}, 0.0)
    tracker.take([], {"g0": 0.0}, 20.0)
    assert tracker.take([ONE], {"g0": 0.0}, 31.0) == []
