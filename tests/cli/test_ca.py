"""``ca``: what is shown of the authority, and a rotation that is waited for."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from actorgrid.cli import ca
from actorgrid.client.pinned import PinnedAuthority

from .conftest import Door, Invoke

DAY_S = 86_400.0
HOSTS = {"hosts": [{"node_id": "h1", "hostname": "alpha"}, {"node_id": "h2", "hostname": "beta"}]}


def trust(step: str = "", waits_for: tuple[str, ...] = (), due: bool = False) -> dict[str, Any]:
    now = time.time() + 5
    authority = {"generation": 1, "state": "signing", "fingerprint": "ab" * 32, "holders": ["h1"]}
    return {
        "cluster_id": "lab-1",
        "version": 1,
        "fingerprint": "ab" * 32,
        "rotation_due": due,
        "authorities": [{**authority, "valid_until": now + 100 * DAY_S}],
        "rotation": {"next": step, "waits_for": list(waits_for)},
        "hosts": [
            {"node_id": "h1", "node": 1, "generation": 1, "valid_until": now + 3 * DAY_S, "keys": [1], "asks": False},
            {"node_id": "h2", "node": 2, "generation": None, "valid_until": None, "keys": [], "asks": False},
        ],
    }


def test_show_says_who_has_the_key_and_when_certificates_end(call: Invoke, door: Door) -> None:
    door.on("GET /api/hosts", HOSTS)
    door.on("GET /api/ca", trust(due=True))
    shown = call("ca", "show").stdout
    assert "key          alpha" in shown and "actorgrid ca rotate" in shown
    rows = [line.split() for line in shown.splitlines()[-2:]]
    assert rows[0] == ["alpha", "1", "1", "in", "3d0h", "yes"] and rows[1] == ["beta", "2", "-", "-", "no"]
    door.on("GET /api/ca", trust("switch", ("h2",)))
    assert "waits for beta" in call("ca", "show").stdout
    assert json.loads(call("ca", "show", "--json").stdout)["rotation"]["waits_for"] == ["h2"]


def test_rotate_waits_for_the_end_unless_it_is_told_not_to(
    call: Invoke, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ca, "LOOK_S", 0.0)
    steps = [trust("switch", ("h2",)), trust("retire"), trust()]
    door.on("POST /api/ca/rotate", {"generation": 2, "fingerprint": "cd"})
    door.on("GET /api/ca", lambda _query, _body: steps.pop(0))
    assert call("ca", "rotate").stdout == "generation 2 signs: cd\n"
    assert steps == []
    assert "is introduced" in call("ca", "rotate", "--detach").stdout
    assert call("ca", "rotate", "--cancel").stdout == "generation 2 is called off\n"
    assert door.asked[-1][2] == {"call_off": True}


def test_renew_asks_the_host(call: Invoke, door: Door) -> None:
    door.on("POST /api/ca/renew", {"valid_until": 1.0})
    assert "asked for" in call("ca", "renew", "--new-key").stdout
    assert door.asked[-1][2] == {"new_key": True}


def test_the_authoritys_certificate_is_printed_as_the_first_host_that_answers_presents_it(
    call: Invoke, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def certificates(self: PinnedAuthority, host: str, port: int, timeout_s: float = 0.0) -> list[bytes]:
        asked.append((self.text, host, port))
        if host == "10.0.0.1":
            raise ConnectionRefusedError("nobody there")
        return [b"der"]

    monkeypatch.setattr(PinnedAuthority, "certificates", certificates)
    members = [{"url": "https://10.0.0.1:7404"}, {"url": None}, {"url": "https://10.0.0.2:7404"}]
    door.on("GET /api/members", {"members": members, "ca_fingerprint": "ab" * 32})
    told = call("ca", "certificate").stdout
    assert told.startswith("-----BEGIN CERTIFICATE-----") and told.endswith("-----END CERTIFICATE-----\n")
    assert asked == [("ab" * 32, "10.0.0.1", 7404), ("ab" * 32, "10.0.0.2", 7404)]
    door.on("GET /api/members", {"members": members[:1], "ca_fingerprint": "ab" * 32})
    assert "shows its authority" in call("ca", "certificate").output
    door.on("GET /api/members", {"members": [], "ca_fingerprint": None})
    assert "this host is alone" in call("ca", "certificate").output
