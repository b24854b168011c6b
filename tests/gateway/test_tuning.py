"""Settings are changed for findings when asked, and changed back, where nobody else has changed them since."""

from __future__ import annotations

from typing import Any

from .conftest import Town


def test_what_is_applied_is_remembered_and_undone(town: Town) -> None:
    assert [each["name"] for each in town.http("GET", "/api/tuning").json["findings"]] == [
        "sessions-lapse",
        "gpus-idle",
        "placement-slow",
    ]
    done = town.http("POST", "/api/tuning/apply", json={}).json
    assert [(each["setting"], each["before"], each["after"]) for each in done["changed"]] == [
        ("sessions.expire_s", 10.0, 30.0)
    ]
    assert "no setting helps" in done["kept"]["gpus-idle"] and "next start" in done["kept"]["placement-slow"]
    shown = town.http("GET", "/api/tuning").json["applied"]
    assert [(each["name"], each["before"]) for each in shown] == [("sessions-lapse", 10.0)]


def test_a_finding_that_is_not_there_changes_nothing(town: Town) -> None:
    reply = town.http("POST", "/api/tuning/apply", json={"names": ["queue-full"]})
    assert reply.status == 404 and "sessions-lapse" in str(reply.json)
    assert town.http("POST", "/api/tuning/undo", json={"names": ["sessions-lapse"]}).status == 404


def test_what_is_undone_is_as_it_was_and_what_somebody_changed_since_stays(town: Town) -> None:
    town.http("POST", "/api/tuning/apply", json={"names": ["sessions-lapse"]})
    town.http("POST", "/api/tuning/apply", json={"names": ["sessions-lapse"]})  # what it was at first is kept
    undone: Any = town.http("POST", "/api/tuning/undo", json={}).json
    assert [(each["before"], each["after"]) for each in undone["changed"]] == [(30.0, 10.0)]
    assert town.http("GET", "/api/tuning").json["applied"] == []
    town.http("POST", "/api/tuning/apply", json={"names": ["sessions-lapse"]})
    town.http("PUT", "/api/config/sessions.expire_s", json={"value": 15.0})
    undone = town.http("POST", "/api/tuning/undo", json={}).json
    assert undone["changed"] == [] and "sessions.expire_s is 15.0 by now" in undone["kept"]["sessions-lapse"]
