"""``doctor`` on a cluster: certificates with no time left, disks and networks as they were measured."""

from __future__ import annotations

import time
from typing import Any

from actorgrid.cli.call import CommandContext
from actorgrid.cli.checks import check_measured, check_trust
from actorgrid.errors import UnknownSetting, WrongState

from .conftest import Door

DAY_S = 86_400.0


def asking(door: Door) -> CommandContext:
    call = CommandContext()
    call.url = door.url
    return call


def trust(left_days: float, due: bool = False) -> dict[str, Any]:
    return {"rotation_due": due, "hosts": [{"node_id": "h1", "valid_until": time.time() + left_days * DAY_S}]}


def test_a_certificate_that_was_not_renewed_is_a_problem(door: Door, monkeypatch: Any) -> None:
    monkeypatch.setenv("ACTORGRID_TOKEN", "token")
    call = asking(door)
    door.on("GET /api/ca", trust(10))
    (found,) = check_trust(call)
    assert (found.level, "h1" in found.text, "ca renew" in found.fix) == ("problem", True, True)
    door.on("GET /api/ca", trust(60))
    assert [each.level for each in check_trust(call)] == ["ok"]
    door.on("GET /api/ca", trust(60, due=True))
    assert [each.fix for each in check_trust(call)] == ["actorgrid ca rotate"]
    door.fail("GET /api/ca", WrongState("this host is alone"))
    assert list(check_trust(call)) == []
    door.fail("GET /api/ca", UnknownSetting("what?"))
    assert [each.level for each in check_trust(call)] == ["problem"]
    call.close()


def test_measured_disks_and_networks_are_shown_and_a_slow_disk_is_noted(door: Door, monkeypatch: Any) -> None:
    monkeypatch.setenv("ACTORGRID_TOKEN", "token")
    call = asking(door)
    fast = {"fdatasync_ms": 2.5, "write_mb_per_s": 300.0, "round_trip_ms": 0.2, "network_mb_per_s": 900.0}
    slow = {"fdatasync_ms": 60.0, "write_mb_per_s": 20.0}
    hosts = [{"hostname": name, "measured": found} for name, found in (("a", fast), ("b", slow), ("c", None))]
    door.on("GET /api/hosts", {"hosts": hosts})
    first, second = check_measured(call)
    assert (first.level, first.text) == ("ok", "a: fdatasync 2.5 ms, writes 300 MB/s; network 0.2 ms, 900 MB/s")
    assert second.level == "note" and "faster one" in second.fix
    call.close()
