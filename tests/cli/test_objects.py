"""objects: sessions, values one by one, and the room that is left."""

from __future__ import annotations

import json
from typing import Any

from .conftest import Door, Invoke

HOST: dict[str, Any] = {
    "host": "h-1",
    "hostname": "box",
    "store": "5" * 16,
    "memory_bytes_max": 8 * 2**30,
    "disk_bytes_max": 64 * 2**30,
    "figures": {"objects_memory_bytes": 2**30, "objects_disk_bytes": 0},
    "sessions": [
        {
            "user": "ann",
            "session": "h-1.abc",
            "pid": 77,
            "home": "h-1",
            "count": 1,
            "bytes": 2**30,
            "memory_bytes": 2**30,
            "disk_bytes": 0,
            "processes": 3,
            "objects": [
                {"id": "55555555-7", "bytes": 2**30, "where": "memory", "state": "ready", "references": 2, "readers": 1}
            ],
        }
    ],
}


def test_sessions_are_listed_with_what_they_keep(call: Invoke, door: Door) -> None:
    door.on("GET /api/objects", {"hosts": [HOST]})
    lines = call("objects").stdout.splitlines()
    assert lines[1].split() == ["box", "ann", "77", "1", "1", "GiB", "1", "GiB", "0", "B", "3", "h-1.abc"]
    assert lines[-1] == "box: 1 GiB of 8 GiB in memory, 0 B of 64 GiB on the disk"
    assert json.loads(call("objects", "--json").stdout) == {"hosts": [HOST]}


def test_values_are_listed_one_by_one(call: Invoke, door: Door) -> None:
    door.on("GET /api/objects", {"hosts": [HOST]})
    line = call("objects", "--each").stdout.splitlines()[1]
    assert line.split() == ["55555555-7", "box", "1", "GiB", "memory", "ready", "2", "1", "ann", "77"]


def test_an_empty_cluster_says_so(call: Invoke, door: Door) -> None:
    door.on("GET /api/objects", {"hosts": []})
    assert "no session" in call("objects").stdout
    assert "nothing lies" in call("objects", "--each").stdout
