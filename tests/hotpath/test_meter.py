from __future__ import annotations

from actorgrid.hotpath import LatencyWindow


def test_an_empty_window_has_no_percentile() -> None:
    assert LatencyWindow().percentile(50) is None


def test_percentiles_are_samples_by_nearest_rank() -> None:
    window = LatencyWindow()
    for sample in range(1, 101):
        window.add(sample)
    assert [window.percentile(percent) for percent in (0, 1, 50, 99, 100)] == [1, 1, 50, 99, 100]


def test_only_the_last_samples_count() -> None:
    window = LatencyWindow(4)
    for sample in (900, 900, 1, 2, 3, 4):
        window.add(sample)
    assert (window.percentile(100), window.count) == (4, 6)
