"""What a trial of a sweep reports, and whether it is to go on: ``actorgrid.report(step=, metric=)``.

Reports are in the shared state of the user, one key for each trial, so that trials on all hosts see each other's; the
trial asks the rule itself. Bound: the last 1,000 reports of a trial, for a day.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from actorgrid import task_context
from actorgrid.dag.early_stopping import is_metric, of_plain
from actorgrid.errors import ActorGridError, BadRequest, StoppedEarly

from .http import segment

if TYPE_CHECKING:
    from .state import SharedState

REPORTS_MAX = 1_000
KEPT_S = 86_400.0
_own: dict[str, list[tuple[int, float]]] = {}
_state: SharedState | None = None


def report(*, step: int, metric: float) -> None:
    """Say how far a trial is, and how good. In a step of ``dag.sweep(..., stop=...)`` this raises StoppedEarly where
    the sweep's rule says that it is not worth going on; elsewhere it does nothing. Let it through: the step then ends
    well, and gives a ``StoppedTrial``. Raises BadRequest for what is no number.
    """
    if not isinstance(step, int) or isinstance(step, bool) or step < 0 or not is_metric(metric):
        raise BadRequest("a report is a step from 0 on and a number", asked=f"step={step!r}, metric={metric!r}"[:200])
    running = task_context.running
    if running is None or running.sweep is None:
        return
    sweep = running.sweep
    folder, key = f"sweeps/{sweep['id']}/", f"sweeps/{sweep['id']}/{sweep['trial']}"
    if key not in _own:
        _own.clear()  # one trial at a time runs here
    own = _own.setdefault(key, [])
    if own and step <= own[-1][0]:
        own.clear()  # it began anew
    own.append((step, float(metric) if sweep["mode"] == "min" else -float(metric)))
    del own[:-REPORTS_MAX]
    try:
        state = _state_of(running.task[0])
        state.put(key, [list(each) for each in own], ttl_s=KEPT_S)
        others = [_reports(entry["value"]) for entry in state.entries(folder) if entry["key"] != key]
    except ActorGridError as error:
        print(f"the report of step {step} was not told: {error}", file=sys.stderr)
        return
    if of_plain(sweep["rule"]).stops(own, [each for each in others if each]):
        raise StoppedEarly(
            f"the trial was ended at step {step}: others did better", found=f"metric {metric}", step=step, metric=metric
        )


def _state_of(job_id: str) -> SharedState:
    """The shared state of the user whose job this is: others neither see nor write it."""
    global _state
    if _state is None:
        from .client import connect

        client = connect()
        _state = client.state.in_namespace(client.http.get(f"/api/jobs/{segment(job_id)}")["user_id"])
    return _state


def _reports(value: Any) -> list[tuple[int, float]]:
    """What another trial has said, as far as it is what trials say."""
    if not isinstance(value, list):
        return []
    return [
        (each[0], each[1])
        for each in value[-REPORTS_MAX:]
        if isinstance(each, list) and len(each) == 2 and isinstance(each[0], int) and is_metric(each[1])
    ]
