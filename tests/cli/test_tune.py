"""tune: what it shows of findings, and what it asks for."""

from __future__ import annotations

from typing import Any

from .conftest import Door, Invoke

FINDING: dict[str, Any] = {
    "name": "sessions-lapse",
    "host": "gpu1",
    "what": "sessions are closed because their clients were not heard in time",
    "evidence": "6 in 10 min, after 10 s each",
    "setting": "sessions.expire_s",
    "now": 10.0,
    "to": 30.0,
    "live": True,
    "effect": "clients that pause keep their workers",
}
NONE = {**FINDING, "name": "gpus-idle", "setting": "", "now": None, "to": None, "live": False}
CHANGE = {
    "name": "sessions-lapse",
    "setting": "sessions.expire_s",
    "before": 10.0,
    "after": 30.0,
    "at": 1.0,
    "by": "me",
}


def test_a_finding_says_what_by_which_figures_and_what_to_change(call: Invoke, door: Door) -> None:
    answer = {"findings": [FINDING, NONE], "applied": [CHANGE], "unheard": ["gpu2"], "problems": []}
    door.on("GET /api/tuning", answer)
    result = call("tune")
    assert "sessions-lapse on gpu1: sessions are closed" in result.stdout
    assert "setting  sessions.expire_s: 10.0 -> 30.0" in result.stdout and "found    6 in 10 min" in result.stdout
    assert "actorgrid tune --apply sessions-lapse" in result.stdout
    assert result.stdout.count("--apply") == 1 and "applied: sessions-lapse" in result.stdout
    assert "gpu2 did not answer" in result.stderr


def test_nothing_is_changed_unless_it_is_asked_for(call: Invoke, door: Door) -> None:
    door.on("GET /api/tuning", {"findings": [], "applied": [], "unheard": [], "problems": []})
    door.on("POST /api/tuning/apply", {"changed": [CHANGE], "kept": {}})
    door.on("POST /api/tuning/undo", {"changed": [], "kept": {"sessions-lapse": "it is 20 by now"}})
    assert "nothing is slow" in call("tune").stdout
    assert "sessions.expire_s = 30.0 (was 10.0)" in call("tune", "--apply", "sessions-lapse").stdout
    assert "nothing changed: it is 20 by now" in call("tune", "--undo").stdout
    asked = [(request, body) for request, _, body in door.asked if request.startswith("POST")]
    assert asked == [
        ("POST /api/tuning/apply", {"names": ["sessions-lapse"]}),
        ("POST /api/tuning/undo", {"names": []}),
    ]
    assert call("tune", "--apply", "--undo").exit_code == 2
