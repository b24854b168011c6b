"""The limit of a wait counts the time in which there was a processor, and looking takes half of the time at most."""

from __future__ import annotations

import pytest

from tests import patience


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What the clock and the kernel say: ``now`` and ``stalled``, in seconds."""
    said = {"now": 100.0, "stalled": 50.0}
    monkeypatch.setattr(patience.time, "monotonic", lambda: said["now"])
    monkeypatch.setattr(patience, "stalled_s", lambda: said["stalled"])
    return said


def test_time_without_a_processor_does_not_count_but_for_a_quarter(clock: dict[str, float]) -> None:
    waited = patience.Patience(10.0)
    clock["now"] += 10.5
    assert waited.is_over
    clock["stalled"] += 4.0
    assert not waited.is_over
    clock["now"] += 29.0
    clock["stalled"] += 29.0
    assert not waited.is_over
    clock["now"] += 1.0
    clock["stalled"] += 1.0
    assert waited.is_over, "a quarter of 40.5 s"


def test_looks_are_soon_at_first_then_seldom_and_never_most_of_the_time(clock: dict[str, float]) -> None:
    waited = patience.Patience(60.0)
    assert waited.pause_s == patience.SHORT_PAUSE_S
    clock["now"] += 0.04
    assert waited.pause_s == pytest.approx(0.04), "as long as the look took"
    clock["now"] += 30.0
    assert waited.pause_s == patience.LONG_PAUSE_S


def test_where_no_kernel_tells_the_time_that_goes_by_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(patience, "_PRESSURE", patience.Path(str(tmp_path), "none"))
    assert patience.stalled_s() == 0.0
