"""When a trial of a sweep is not worth going on: rules that look at what it and the others have reported.

Both are asked by the trial itself at each of its reports, and see what others have reported until then; none waits for
another. So they are decided a little differently each time, as trials run at other speeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

from actorgrid.errors import BadRequest

Reports = Sequence[tuple[int, float]]
"""(step, metric) of one trial, by step."""
STOPPED = "stopped early"
"""What such a step tells its graph."""


@dataclass(frozen=True, slots=True)
class StoppedTrial:
    """What a trial gives that ended early: at which *step*, with which *metric*."""

    step: int
    metric: float


class StoppingRule(Protocol):
    """Whether a trial is to end; smaller metrics are better here."""

    name: ClassVar[str]

    def stops(self, own: Reports, others: Sequence[Reports]) -> bool:
        """Whether the trial with these reports is to end, as the *others* have reported so far."""


@dataclass(frozen=True, slots=True)
class MedianStopping:
    """Ends a trial whose best metric so far is worse than the median of what others had on average up to that step
    (Golovin and others, Google Vizier, KDD 2017, section 3.2.1). Nobody ends before *first_step*, or before
    *others_min* others have come so far."""

    first_step: int = 1
    others_min: int = 3
    name: ClassVar[str] = "median"

    def __post_init__(self) -> None:
        _check(self.first_step >= 0 and self.others_min >= 1, self)

    def stops(self, own: Reports, others: Sequence[Reports]) -> bool:
        """As the class says."""
        step = own[-1][0]
        if step < self.first_step:
            return False
        averages = []
        for reports in others:
            until = [metric for at, metric in reports if at <= step]
            if until and reports[-1][0] >= step:
                averages.append(sum(until) / len(until))
        if len(averages) < self.others_min:
            return False
        return min(metric for _, metric in own) > statistics.median(averages)


@dataclass(frozen=True, slots=True)
class SuccessiveHalving:
    """Asynchronous successive halving (ASHA; Li and others, MLSys 2020), ending trials instead of pausing them: at the
    steps *first_step*, times *reduction*, times *reduction* again, ... a trial goes on if it is among the best part of
    all that have come so far: one of *reduction*."""

    first_step: int = 1
    reduction: int = 3
    name: ClassVar[str] = "asha"

    def __post_init__(self) -> None:
        _check(self.first_step >= 1 and self.reduction >= 2, self)

    def stops(self, own: Reports, others: Sequence[Reports]) -> bool:
        """As the class says."""
        step = own[-1][0]
        rung = self._rung(step)
        if rung is None or (len(own) > 1 and self._rung(own[-2][0]) == rung):
            return False  # between two rungs
        mine = _at(own, rung)
        there = [mine, *(metric for reports in others if (metric := _at(reports, rung)) is not None)]
        assert mine is not None, "it has come there"
        better = sum(metric < mine for metric in there if metric is not None)
        return len(there) >= self.reduction and better >= max(1, len(there) // self.reduction)

    def _rung(self, step: int) -> int | None:
        """The last rung up to a step."""
        if step < self.first_step:
            return None
        rung = self.first_step
        while rung * self.reduction <= step:
            rung *= self.reduction
        return rung


def _at(reports: Reports, rung: int) -> float | None:
    """What a trial first reported at a rung or behind it."""
    return next((metric for step, metric in reports if step >= rung), None)


def _check(right: bool, rule: StoppingRule) -> None:
    if not right:
        raise BadRequest(
            "a rule that ends trials early cannot be like that", asked=str(rule), hint="steps from 1, reduction from 2"
        )


RULES: dict[str, type[MedianStopping] | type[SuccessiveHalving]] = {
    each.name: each for each in (MedianStopping, SuccessiveHalving)
}


def rule_of(text: str | StoppingRule) -> StoppingRule:
    """The rule of that name, as it is by default. Raises BadRequest."""
    if not isinstance(text, str):
        return text
    if text not in RULES:
        raise BadRequest(f"there is no rule {text!r}", asked=f"stop={text!r}", found=f"known: {', '.join(RULES)}")
    return RULES[text]()


def to_plain(rule: StoppingRule) -> dict[str, Any]:
    """The rule as plain values. Raises BadRequest for one that is none of these."""
    if not isinstance(rule, MedianStopping | SuccessiveHalving):
        raise BadRequest("that is no rule", asked=repr(rule)[:100], hint=f"one of {', '.join(RULES)}")
    return {"name": rule.name, **asdict(rule)}


def of_plain(plain: dict[str, Any]) -> StoppingRule:
    """The rule that ``to_plain`` wrote."""
    fields = dict(plain)
    return RULES[fields.pop("name")](**fields)


def is_metric(value: object) -> bool:
    """Whether a value can be compared."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
