"""What works without an agent: settings from files, doctor, and what up refuses."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from actorgrid.cli.checks import check_data_dir, check_port, find_library, sync_time_s
from actorgrid.cli.up import banner, flags, gpus_line, source
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import InvalidSetting

from .conftest import Invoke


def test_without_an_agent_config_shows_what_the_next_one_would_read(alone: Invoke, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("work:\n  kill_grace_s: 2\n")
    result = alone("config", "list", "--changed", "--config", str(tmp_path))
    assert result.stdout.splitlines()[1].split() == ["work.kill_grace_s", "2.0", "cluster.yaml:2", "live"]
    assert alone("config", "get", "work.kill_grace_s", "--config", str(tmp_path)).stdout == "2.0\n"
    assert "no agent runs" in alone("config", "list").stderr
    document = json.loads(alone("config", "list", "--json").stdout)
    assert document["running"] is False and len(document["settings"]) > 30


def test_config_guesses_a_misspelt_setting(alone: Invoke) -> None:
    result = alone("config", "get", "work.kill_grace")
    assert result.exit_code == 2 and "did you mean work.kill_grace_s?" in result.stderr


def test_a_wrong_file_is_refused_with_its_line(alone: Invoke, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("work:\n  kil_grace_s: 2\n")
    result = alone("up", "--config", str(tmp_path))
    assert result.exit_code == 2
    assert "cluster.yaml, line 2" in result.stderr and "did you mean work.kill_grace_s?" in result.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--port", "x"], "--port: cluster.base_port"),
        (["--port", "70000"], "less than or equal to 65531"),
        (["--gpus", "lots"], "--gpus: gpus.source"),
        (["--set", "cluster.bind=0.0.0.0"], "TLS"),
        (["--set", "cluster.base_prt=1"], "did you mean cluster.base_port?"),
        (["--set", "nonsense"], "KEY=VALUE"),
        (["--port", "1", "--set", "cluster.base_port=2"], "given twice"),
        (["--config", "/nonexistent"], "there is no directory"),
    ],
)
def test_up_refuses_wrong_settings_before_it_starts_anything(
    alone: Invoke, tmp_path: Path, options: list[str], says: str
) -> None:
    result = alone("up", *options)
    assert result.exit_code == 2 and says in result.stderr
    assert not (tmp_path / "data").exists()
    error = json.loads(alone("up", "--json", *options).stdout)["error"]
    assert says in error["message"] + error["hint"]


def test_gpus_of_up_are_shorthand_for_simulated_ones() -> None:
    assert [source(spec) for spec in ("0", "8", "4xA100-40GB", "auto", "nvidia", "simulated:2xB200-192GB")] == [
        "none",
        "simulated:8xH100-80GB",
        "simulated:4xA100-40GB",
        "auto",
        "nvidia",
        "simulated:2xB200-192GB",
    ]


def test_flags_keep_the_name_they_were_given_by() -> None:
    assert flags("7500", "8", ("work.on_stop=leave",)) == (
        {"cluster.base_port": "7500", "gpus.source": "simulated:8xH100-80GB", "work.on_stop": "leave"},
        {"cluster.base_port": "--port", "gpus.source": "--gpus", "work.on_stop": "--set work.on_stop"},
    )
    with pytest.raises(InvalidSetting):
        flags(None, None, ("=3",))


def test_the_banner_says_that_gpus_are_simulated() -> None:
    devices = [{"model": "H100", "source": "simulated"}] * 8
    text = banner({"url": "http://127.0.0.1:1", "gpus": devices}, Path("/d"), Path("/d"))
    assert "8 x H100 (simulated); placement is real, the devices are not" in text
    assert "http://127.0.0.1:1" in text and "actorgrid status --data-dir /d" in text
    assert "apart" not in text
    counts = {"files": {"kernel": 1}, "cpu": {"none": 1}, "pids": {"kernel": 1}}
    told = banner({"url": "http://127.0.0.1:1", "gpus": devices, "isolation": counts}, Path("/d"), None)
    assert "  apart     kernel: files, pids; none: cpu\n" in told
    mixed = [{"model": "A", "source": "probed"}, {"model": "B", "source": "declared"}]
    assert gpus_line(mixed) == "1 x A, 1 x B (declared)"
    assert (gpus_line([]), gpus_line(None)) == ("none", "see actorgrid gpus")


def test_doctor_is_content_with_a_fresh_machine(alone: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORGRID_CLUSTER__BASE_PORT", "0")
    result = alone("doctor")
    assert result.exit_code == 0, result.stdout
    assert "nothing is wrong" in result.stdout and "actorgrid up starts one" in result.stdout
    assert "settings the next agent would read:" in result.stdout and "work runs as uid" in result.stdout
    document = json.loads(alone("doctor", "--json").stdout)
    assert document["ok"] is True and document["running"] is False
    origins = {entry["key"]: entry["origin"] for entry in document["settings"]}
    assert origins["cluster.base_port"] == "ACTORGRID_CLUSTER__BASE_PORT"
    assert {"python", "hot path", "agent", "configuration", "data dir", "disk", "fsync", "port", "gpus", "cgroup"} <= {
        finding["name"] for finding in document["findings"]
    }


def test_doctor_finds_a_wrong_configuration(alone: Invoke, tmp_path: Path) -> None:
    config = tmp_path / "data" / "config"
    config.mkdir(parents=True)
    (tmp_path / "data").chmod(0o700)
    (config / "security.yaml").write_text("work:\n")
    result = alone("doctor", "--json")
    assert result.exit_code == 1
    wrong = [finding for finding in json.loads(result.stdout)["findings"] if finding["level"] == "problem"]
    problem = next(finding for finding in wrong if finding["name"] == "configuration")
    assert "security.yaml, line 1" in problem["text"] and problem["fix"] == "move it to cluster.yaml"


def test_doctor_finds_an_agent_that_is_gone(alone: Invoke, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "agent.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": 2**22 - 1}))
    findings = json.loads(alone("doctor", "--json").stdout)["findings"]
    agent = next(finding for finding in findings if finding["name"] == "agent")
    assert "is gone" in agent["text"] and "actorgrid up" in agent["fix"]


def test_a_data_directory_others_may_read_is_a_problem_with_its_fix(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    token = tmp_path / "admin.token"
    token.write_text("t")
    token.chmod(0o644)
    found = {finding.name: finding for finding in check_data_dir(HostPaths(tmp_path), 0)}
    assert found["data dir"].fix == f"chmod 700 {tmp_path}"
    assert found["token"].fix == f"chmod 600 {token}"


def test_a_file_for_a_data_directory_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert [finding.level for finding in check_data_dir(HostPaths(path), 0)] == ["problem"]


def test_a_full_disk_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    found = {finding.name: finding for finding in check_data_dir(HostPaths(tmp_path), 2**60)}
    assert found["disk"].level == "problem" and "make room" in found["disk"].fix


def test_a_taken_port_is_a_problem_that_names_its_holder() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (finding,) = check_port("127.0.0.1", taken.getsockname()[1])
    assert finding.level == "problem" and f"held by process {os.getpid()}" in finding.text
    assert [finding.level for finding in check_port("127.0.0.1", 0)] == ["ok"]


def test_syncing_leaves_nothing_behind(tmp_path: Path) -> None:
    assert sync_time_s(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_library_is_looked_for_where_the_loader_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_library("libsurely_not_there.so.1") is None
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert find_library("libnvidia-ml.so.1") == str(library)
    monkeypatch.setenv("ACTORGRID_NVML_LIBRARY", str(tmp_path / "elsewhere.so"))
    assert find_library("libnvidia-ml.so.1") is None
