"""The cluster's authority over HTTP."""

from __future__ import annotations

from typing import Any


def test_the_authority_is_shown_rotated_and_certificates_renewed(town: Any) -> None:
    shown = town.http("GET", "/api/ca")
    assert shown.status == 200 and shown.json["authorities"][0]["holders"] == ["h1"]
    assert town.http("POST", "/api/ca/rotate", json={}).json == {"generation": 2, "fingerprint": "f2"}
    assert town.http("POST", "/api/ca/rotate", json={"call_off": True}).json["generation"] == 3
    assert town.http("POST", "/api/ca/renew", json={"new_key": True}).json == {"valid_until": 2.0}


def test_a_host_that_is_alone_has_no_authority(town: Any) -> None:
    town.host.enrolment = None
    refused = town.http("GET", "/api/ca")
    assert refused.error["code"] == "WrongState" and "--listen" in refused.error["hint"]
