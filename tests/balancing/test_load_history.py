"""The history of a load: bounded, never wild, and a trend that is followed for a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actorgrid.balancing.load_history import DAMPING_S, SAMPLES_MAX, LoadHistory


def test_the_first_sample_is_the_level() -> None:
    history = LoadHistory()
    assert history.predict(5.0) == 0.0
    history.record(1.0, 7.0)
    assert history.predict(1.0) == history.predict(100.0) == 7.0


def test_a_load_that_grows_is_expected_to_grow_on_but_not_for_ever() -> None:
    history = LoadHistory()
    for second in range(60):
        history.record(float(second), 2.0 * second)
    now = history.predict(59.0)
    assert abs(now - 118.0) < 12.0
    assert now + 1.0 < history.predict(60.0) < now + 2.1
    assert history.predict(10_000.0) <= now + 2.1 * DAMPING_S


def test_a_prediction_is_nearer_than_the_last_sample_where_the_load_moves() -> None:
    history, errors, naive = LoadHistory(), 0.0, 0.0
    for second in range(0, 200, 2):
        load = abs(second % 80 - 40.0)
        if second:
            errors += abs(history.predict(float(second)) - load)
            naive += abs(history.samples[-1].load - load)
        history.record(float(second), load)
    assert errors < naive


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=200), st.floats(0, 1e7))
def test_predictions_are_finite_and_not_negative_whatever_came(samples: list[tuple[float, float]], at: float) -> None:
    history = LoadHistory()
    for when, load in samples:
        history.record(when, load)
    assert 0.0 <= history.predict(at) < 1e12
    assert len(history.samples) <= SAMPLES_MAX
    assert [sample.at for sample in history.samples] == sorted({sample.at for sample in history.samples})
