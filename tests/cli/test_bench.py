"""bench net: the paths of this machine, measured between two real processes."""

from __future__ import annotations

import json
import subprocess
import sys


def test_the_paths_of_this_machine_are_measured() -> None:
    command = [sys.executable, "-m", "actorgrid", "bench", "net", "--trips", "20", "--large", "2", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    paths = {each["path"]: each for each in found["paths"]}
    assert set(paths) == {"unix", "shared_memory"}
    for each in paths.values():
        assert each["unavailable"] or (each["round_trip_us"] > 0 and each["mb_per_s"] > 0)
