"""Rules that end trials: the better half goes on, nobody ends for want of others, and a sweep finds its best early."""

from __future__ import annotations

import random

import pytest

from actorgrid.dag.early_stopping import (
    MedianStopping,
    StoppingRule,
    SuccessiveHalving,
    of_plain,
    rule_of,
    to_plain,
)
from actorgrid.errors import BadRequest


def curve(level: float, steps: int) -> list[tuple[int, float]]:
    return [(step, level + 1 / step) for step in range(1, steps + 1)]


def test_what_is_worse_than_the_median_of_others_ends() -> None:
    others = [curve(level, 9) for level in (1.0, 2.0, 3.0)]
    rule = MedianStopping()
    assert rule.stops(curve(5.0, 4), others)
    assert not rule.stops(curve(0.5, 4), others)
    assert not rule.stops(curve(5.0, 4), others[:2]), "too few others"
    assert not rule.stops(curve(5.0, 4), [each[:3] for each in others]), "they have not come so far"
    assert not MedianStopping(first_step=5).stops(curve(5.0, 4), others)


def test_at_a_rung_one_of_three_goes_on() -> None:
    rule = SuccessiveHalving(first_step=2, reduction=3)
    others = [curve(1.0, 2), curve(2.0, 2)]
    assert rule.stops(curve(3.0, 2), others)
    assert rule.stops(curve(1.5, 2), others)
    assert not rule.stops(curve(0.5, 2), others)
    assert not rule.stops(curve(3.0, 2), others[:1]), "not enough have come there"
    assert not rule.stops(curve(3.0, 1), others) and not rule.stops(curve(3.0, 3), others), "between two rungs"
    assert rule.stops(curve(3.0, 6), [curve(1.0, 6), curve(2.0, 7)])
    skipped = [(1, 9.0), (5, 9.0)]  # reports do not come at each step
    assert rule.stops(skipped, [curve(1.0, 5), curve(2.0, 5)])


@pytest.mark.parametrize("rule", [SuccessiveHalving(), MedianStopping(), SuccessiveHalving(2, 2)])
@pytest.mark.parametrize("seed", range(5))
def test_a_sweep_keeps_its_best_and_saves_most_of_the_rest(rule: StoppingRule, seed: int) -> None:
    dice = random.Random(seed)
    levels = [dice.uniform(0, 10) for _ in range(30)]
    steps = 27
    reports: dict[int, list[tuple[int, float]]] = {trial: [] for trial in range(len(levels))}
    going = set(reports)
    while going:
        trial = dice.choice(sorted(going))
        step = len(reports[trial]) + 1
        reports[trial].append((step, levels[trial] + 5 / step))
        others = [each for other, each in reports.items() if other != trial and each]
        if step == steps or of_plain(to_plain(rule)).stops(reports[trial], others):
            going.remove(trial)
    done = [trial for trial, each in reports.items() if len(each) == steps]
    assert levels.index(min(levels)) in done
    assert sum(map(len, reports.values())) < 0.65 * steps * len(levels)


def test_rules_that_are_none_are_refused() -> None:
    for make in (lambda: SuccessiveHalving(first_step=0), lambda: SuccessiveHalving(reduction=1)):
        with pytest.raises(BadRequest):
            make()
    with pytest.raises(BadRequest, match="hyperband"):
        rule_of("hyperband")
