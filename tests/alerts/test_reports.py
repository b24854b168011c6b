"""What other hosts answer of their alerts: they may be of another version, or hostile."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.alerts.core import FIRING, Alert, AlertBook
from actorgrid.actors.alerts.rules import RULES
from actorgrid.actors.alerts.watch import AlertWatch
from actorgrid.actors.gateway.routes.alerts import _problem, _views


def test_what_is_no_alert_hides_none_that_is_one() -> None:
    watch = AlertWatch.__new__(AlertWatch)
    watch._book = AlertBook("h2")
    good = watch.view(Alert(RULES[0], "h3", FIRING, 1.0, 1.0, 2.0), 3.0)
    bad = [{}, 7, None, {**good, "since": "x"}, {**good, "alert": 1}, {**good, "firing_since": []}]
    assert _views({"alerts": [*bad, good]}, "alerts") == [good]


@pytest.mark.parametrize("report", [None, 3, [], {}, {"alerts": 1, "problem": 2}, {"alerts": {"a": 1}, "problem": {}}])
def test_what_is_no_report_says_nothing(report: Any) -> None:
    assert _views(report, "alerts") == [] and _problem(report) == ""
