"""``up`` on a machine: what it keeps for the next start, and what it refuses before it writes anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.gpu.vendors.nvidia import traces_of_nvidia

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def start(data_dir: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ACTORGRID_")}
    return subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "up", "--json", "--data-dir", str(data_dir), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, **variables},
    )


@contextmanager
def up(data_dir: Path, *options: str, **variables: str) -> Iterator[dict[str, Any]]:
    """Its ready line, with the devices it has; stopped in order at the end."""
    process = start(data_dir, *options, **variables)
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        assert ready.get("event") == "ready", ready
        yield {
            **ready,
            "gpus": [gpu["model"] for gpu in shown(data_dir, "gpus")],
            "hosts": {host["hostname"] for host in shown(data_dir, "hosts")},
        }
    finally:
        process.terminate()
        process.communicate(timeout=60)


def shown(data_dir: Path, what: str) -> list[dict[str, Any]]:
    asked = [sys.executable, "-m", "actorgrid", what, "--json", "--data-dir", str(data_dir)]
    rows: list[dict[str, Any]] = json.loads(subprocess.run(asked, capture_output=True, timeout=60, check=True).stdout)[
        what
    ]
    return rows


def refused(data_dir: Path, *options: str) -> dict[str, Any]:
    process = start(data_dir, *options)
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    error: dict[str, Any] = json.loads(said)["error"]
    return error


def test_a_host_comes_back_as_it_was_told_to_be(tmp_path: Path) -> None:
    first = ("--port", "0", "--gpus", "3xA100-40GB", "--set", "cluster.host_name=box")
    with up(tmp_path / "d", *first) as ready:
        assert ready["gpus"] == ["A100"] * 3 and "taken_over" not in ready
    with up(tmp_path / "d") as ready:
        assert (ready["gpus"], ready["hosts"]) == (["A100"] * 3, {"box"})
        assert set(ready["taken_over"]) == {"--port 0", "--gpus 3xA100-40GB", "--set cluster.host_name=box"}
        assert ready["different"] == []
    with up(tmp_path / "d", ACTORGRID_GPUS__SOURCE="none") as ready:
        assert ready["gpus"] == []
        assert ready["different"][0].startswith('gpus.source is "none" (ACTORGRID_GPUS__SOURCE)')
    with up(tmp_path / "d", "--forget", "--port", "0", "--gpus", "1") as ready:
        assert ready["gpus"] == ["H100"] and "box" not in ready["hosts"]


def test_an_address_that_is_not_here_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    # 192.0.2.0/24 and 198.51.100.0/24 are for documents; a machine may have an address of one, not of both like these.
    error = refused(tmp_path / "d", "--listen", "198.51.100.77", "--port", "25010")
    assert error["code"] == "InvalidSetting" and "198.51.100.77" in error["message"]
    assert "127.0.0.1" in error["found"] and "--listen" in error["hint"]
    assert not (tmp_path / "d").exists()
    with up(tmp_path / "d", "--port", "0", "--gpus", "none"):
        pass  # the directory is as good as new


@pytest.mark.skipif(traces_of_nvidia()[0], reason="this machine has an NVIDIA driver")
def test_nvidia_without_a_driver_is_refused_with_what_was_found(tmp_path: Path) -> None:
    error = refused(tmp_path / "d", "--gpus", "nvidia", "--port", "0")
    assert error["code"] == "InvalidSetting" and error["found"].startswith("no_library")
    assert "--gpus none" in error["hint"] and not (tmp_path / "d").exists()


def test_a_damaged_file_of_earlier_starts_is_named_and_can_be_left_behind(tmp_path: Path) -> None:
    data_dir = tmp_path / "d"
    data_dir.mkdir()
    (data_dir / "start.json").write_text("{")
    error = refused(data_dir, "--port", "0")
    assert error["code"] == "MalformedConfig" and "--forget" in error["hint"]
    with up(data_dir, "--forget", "--port", "0", "--gpus", "none"):
        assert json.loads((data_dir / "start.json").read_text())["flags"].keys() == {"cluster.base_port", "gpus.source"}


def test_json_tells_programs_what_a_start_tells_people(tmp_path: Path) -> None:
    with up(tmp_path / "d", "--port", "0") as first:
        assert any("a new host, alone" in note and "--join" in note for note in first["notes"])
    with up(tmp_path / "d") as again:
        assert again["taken_over"] == ["--port 0"]
        assert not any("a new host" in note for note in again["notes"])
