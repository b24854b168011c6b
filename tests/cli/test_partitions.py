"""gpus partitions: what it lists, which GPU is meant, what is asked for."""

from __future__ import annotations

from typing import Any

from .conftest import Door, Invoke

GPU: dict[str, Any] = {
    "host": "h1",
    "gpu": "0000:0c:00",
    "model": "MI300X",
    "mode": "CPX/NPS4",
    "parts": [{"uuid": "part-0", "index": 4, "memory_bytes": 24 * 2**30, "jobs": ["abcdefghij"]}],
}
OTHER = {**GPU, "gpu": "0000:14:00", "parts": [{**GPU["parts"][0], "uuid": "part-1", "index": 5}]}


def test_a_gpu_is_meant_by_its_place_or_by_a_part_of_it(call: Invoke, door: Door) -> None:
    door.on("GET /api/partitions", {"gpus": [GPU, OTHER]})
    door.on("GET /api/hosts", {"hosts": [{"node_id": "h1", "hostname": "amd1"}]})
    door.on("POST /api/hosts/h1/partitions", {"host": "h1", "gpu": "0000:0c:00", "mode": "SPX"})
    shown = call("gpus", "partitions", "list").stdout
    assert "amd1" in shown and "CPX/NPS4" in shown and "24 GiB" in shown and "abcdefgh" in shown
    for name in ("0000:0c:00", "part-0", "4"):
        assert "0000:0c:00 is cut by SPX" in call("gpus", "partitions", "set", name, "spx").stdout
    assert door.asked[-1][2] == {"gpu": "0000:0c:00", "change": "compute", "mode": "SPX"}
    call("gpus", "partitions", "set", "part-1", "NPS4")
    assert door.asked[-1][2] == {"gpu": "0000:14:00", "change": "memory", "mode": "NPS4"}
    assert call("gpus", "partitions", "set", "nothing", "SPX").exit_code == 4
    assert call("gpus", "partitions", "set", "part-0", "XXX").exit_code == 2
