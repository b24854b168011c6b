"""status, hosts, gpus, state, config, events: what they ask and show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actorgrid.cli.show import share, size, span
from actorgrid.errors import NotReplicated, SettingNotLive

from .conftest import Door, Invoke

SUMMARY: dict[str, Any] = {
    "name": "lab",
    "health": "healthy",
    "ready": True,
    "problems": [],
    "hosts": 1,
    "gpus": 8,
    "gpu_sources": ["simulated"],
    "gpu_models": ["H100"],
    "gpu_allocated_milli": 250,
    "gpu_capacity_milli": 8000,
    "jobs": {"queued": 0, "running": 2, "succeeded": 5},
    "performance": {"scheduling_latency_us": 4.2, "commit_latency_ms": 0.3},
}
GPU: dict[str, Any] = {
    "device_id": "GPU-1",
    "vendor": "nvidia",
    "model": "H100",
    "host": "h-1",
    "index": 0,
    "source": "probed",
    "memory_total_bytes": 80 * 2**30,
    "memory_allocated_bytes": 20 * 2**30,
    "allocated_milli": 250,
    "temperature_celsius": None,
    "power_usage_watts": 310.0,
    "utilization_percent": 55.0,
    "status": "allocated",
    "jobs": ["abcdefghijk"],
}


def test_status_fits_one_screen(call: Invoke, door: Door) -> None:
    door.on("GET /api/cluster", SUMMARY)
    result = call("status")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == f"lab at {door.url}: healthy"
    assert "8 x H100, 0.25 of 8 allocated\n         simulated:" in result.stdout
    assert "2 running, 5 succeeded" in result.stdout and "placement 4 us" in result.stdout
    assert json.loads(call("status", "--json").stdout) == {**SUMMARY, "url": door.url}


def test_status_says_who_holds_shares_of_real_gpus(call: Invoke, door: Door) -> None:
    limits = {"gpu_compute": {"none": 2}, "gpu_memory": {"cooperative": 1, "none": 1}}
    door.on("GET /api/cluster", {**SUMMARY, "gpu_sources": ["probed"], "gpu_limits": limits})
    said = " ".join(call("status").stdout.split())
    assert "limits of shares, compute: counted alone (2); memory: ended when it has more (1), counted alone (1)" in said


def test_status_of_a_host_that_is_not_ready_fails_and_says_where_to_look(call: Invoke, door: Door) -> None:
    door.on("GET /api/cluster", {**SUMMARY, "ready": False, "health": "degraded", "problems": ["gateway is silent"]})
    result = call("status")
    assert result.exit_code == 1
    assert "not ready" in result.stdout and "problem: gateway is silent" in result.stdout
    assert "actorgrid doctor" in result.stdout


def test_gpus_show_a_missing_reading_as_missing(call: Invoke, door: Door) -> None:
    door.on("GET /api/gpus", {"gpus": [GPU]})
    door.on("GET /api/hosts", {"hosts": [{"node_id": "h-1", "hostname": "n1"}]})
    line = call("gpus").stdout.splitlines()[1]
    assert line.split() == [
        "n1",
        "0",
        "H100",
        "allocated",
        "0.25",
        "20/80",
        "GiB",
        "55%",
        "-",
        "310W",
        "abcdefgh",
    ]
    door.on("GET /api/gpus", {"gpus": []})
    assert "no GPUs" in call("gpus").stdout


def test_hosts_are_listed(call: Invoke, door: Door) -> None:
    host = {"hostname": "n1", "health": "healthy", "ip_address": "127.0.0.1", "port": 7400, "gpus": [GPU]}
    host |= {"cpu_milli": 2000, "memory_mib": 4096, "incarnation": 3, "problems": ["a", "b"]}
    host |= {"node": 2, "raft_role": "voter"}
    door.on("GET /api/hosts", {"hosts": [host]})
    assert call("hosts").stdout.splitlines()[1].split() == (
        ["n1", "healthy", "2", "voter", "127.0.0.1:7400", "1", "0/2", "0", "B/4", "GiB", "3", "a", "(and", "1", "more)"]
    )


def test_sites_are_shown_where_hosts_said_theirs(call: Invoke, door: Door) -> None:
    host = {"hostname": "n1", "health": "healthy", "ip_address": "127.0.0.1", "port": 7400, "gpus": [GPU]}
    host |= {"cpu_milli": 2000, "memory_mib": 4096, "incarnation": 3, "node": 2, "raft_role": "voter", "site": "east"}
    door.on("GET /api/hosts", {"hosts": [host, {**host, "hostname": "n2", "site": None}]})
    head, first, second = (line.split() for line in call("hosts").stdout.splitlines())
    assert head[4] == "SITE" and (first[4], second[4]) == ("east", "-")
    sites = {"east": {"hosts": 3, "present": 2, "voters": 1}, "": {"hosts": 1, "present": 1, "voters": 0}}
    door.on("GET /api/cluster", {**SUMMARY, "sites": sites})
    shown = call("status").stdout
    assert "site   east: 2 of 3 hosts, 1 of them voting" in shown
    assert "site   (none said): 1 host, none of them voting" in shown


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["put", "a/b", '{"x": 1}'], {"type": "lww_register", "operation": "put", "value": {"x": 1}}),
        (["put", "a/b", "five"], {"type": "lww_register", "operation": "put", "value": "five"}),
        (["put", "a/b", '"5"', "--type", "mv_register"], {"type": "mv_register", "operation": "put", "value": "5"}),
        (["incr", "a/b"], {"type": "pn_counter", "operation": "increment", "value": 1}),
        (["incr", "a/b", "-3"], {"type": "pn_counter", "operation": "decrement", "value": 3}),
        (["add", "a/b", "x"], {"type": "or_set", "operation": "add", "value": "x"}),
        (["remove", "a/b", "7"], {"type": "or_set", "operation": "remove", "value": 7}),
    ],
)
def test_state_sends_the_mutator(call: Invoke, door: Door, words: list[str], body: dict[str, Any]) -> None:
    door.on("POST /api/state/a/b", {"key": "a/b", "type": body["type"], "value": ["now"]})
    result = call("state", *words)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == '["now"]\n'
    assert door.asked[-1][2] == {**body, "field": None}
    assert json.loads(call("state", *words, "--json").stdout) == {"key": "a/b", "value": ["now"]}


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["put", "k", "1", "--ttl", "5"], {"operation": "put", "value": 1, "ttl_s": 5.0}),
        (["delete", "k"], {"operation": "delete"}),
        (["field", "k", "f", "[1]"], {"type": "or_map", "operation": "put_field", "field": "f", "value": [1]}),
        (["field", "k", "f"], {"type": "or_map", "operation": "remove_field", "field": "f"}),
        (["flag", "k", "on"], {"type": "ew_flag", "operation": "enable"}),
        (["flag", "k", "off"], {"type": "ew_flag", "operation": "disable"}),
        (["compare", "k", "2", "--expected", "1"], {"operation": "compare_and_put", "value": 2, "expected": 1}),
        (["compare", "k", "2"], {"operation": "compare_and_put", "value": 2, "absent": True}),
    ],
)
def test_state_has_a_command_for_each_change(call: Invoke, door: Door, words: list[str], body: dict[str, Any]) -> None:
    door.on("POST /api/state/k", {"key": "k", "type": "lww_register", "value": 1})
    result = call("state", *words)
    assert result.exit_code == 0, result.stderr
    assert body.items() <= door.asked[-1][2].items()
    assert json.loads(call("state", *words, "--json").stdout)["key"] == "k"


def test_a_batch_is_read_from_lines(call: Invoke, door: Door, tmp_path: Path) -> None:
    door.on("POST /api/state-batch", {"entries": [{"key": "a", "type": "x", "value": 1}, {"key": "b", "value": [2]}]})
    file = tmp_path / "batch"
    file.write_text('{"key": "a", "value": 1}\n\n{"key": "b", "operation": "add", "value": 2}\n')
    assert call("state", "batch", str(file)).stdout == "2 changes applied\n"
    asked = door.asked[-1][2]["mutations"]
    assert [(change["key"], change["type"], change["operation"]) for change in asked] == [
        ("a", "lww_register", "put"),
        ("b", "or_set", "add"),
    ]
    assert json.loads(call("state", "batch", str(file), "--json").stdout)["entries"][1] == {"key": "b", "value": [2]}
    file.write_text("nonsense\n")
    result = call("state", "batch", str(file))
    assert result.exit_code == 2 and "line 1 is not JSON" in result.stderr


def test_top_shows_sizes_hosts_and_writers(call: Invoke, door: Door) -> None:
    usage = {
        "keys": 3,
        "bytes": 2048,
        "namespaces": [{"namespace": "default", "keys": 3, "bytes": 2048}],
        "prefixes": [{"prefix": "runs/", "keys": 3, "bytes": 2048}],
        "peers": [{"host_id": "h2", "sent_bytes": 10, "received_bytes": 20, "behind": None, "heard_s": None}],
        "origins": [{"host_id": "h1", "starts": 2, "deltas": 7}],
    }
    door.on("GET /api/state-usage", usage)
    shown = call("state", "top", "--rows", "5").stdout
    assert "3 keys, 2 KiB" in shown and "runs/" in shown
    assert next(line.split() for line in shown.splitlines() if line.startswith("h2")) == [
        "h2",
        "?",
        "-",
        "10",
        "B",
        "20",
        "B",
    ]
    assert next(line.split() for line in shown.splitlines() if line.startswith("h1")) == ["h1", "2", "7"]
    assert json.loads(call("state", "top", "--json").stdout) == usage
    assert door.asked[-1][1] == {"depth": "1", "rows": "10"}


def test_a_dump_is_written_as_it_is_and_loaded_as_a_batch(call: Invoke, door: Door, tmp_path: Path) -> None:
    entry = {"key": "k", "type": "lww_register", "value": "\x1b[1m"}
    door.on("GET /api/state-usage", {"keys": 1})
    door.on("GET /api/state", lambda query, _body: {"entries": [] if "behind" in query else [entry]})
    file = tmp_path / "dump"
    result = call("state", "dump", str(file))
    assert result.exit_code == 0, result.stderr
    assert [json.loads(line) for line in file.read_text().splitlines()][1:] == [entry]
    door.on("POST /api/state-batch", {"entries": [entry]})
    door.on("GET /api/state", {"entries": []})
    result = call("state", "load", str(file))
    assert result.exit_code == 0, result.stderr
    assert "1 added, 0 overwritten, 0 as they were" in result.stdout
    assert door.asked[-1][2]["mutations"][0]["value"] == "\x1b[1m"


def test_a_write_may_ask_for_a_majority_and_says_what_to_make_of_none(call: Invoke, door: Door) -> None:
    door.on("POST /api/state/k", {"key": "k", "type": "lww_register", "value": 1})
    assert call("state", "put", "k", "1", "--durability", "majority", "--within", "3").exit_code == 0
    asked = door.asked[-1][2]
    assert (asked["durability"], asked["within_s"]) == ("majority", 3.0)
    assert call("state", "put", "k", "1", "--within", "0").exit_code == 2
    error = NotReplicated("too few", asked="2 of 3 members", found="1 have it on their disks", hint="it stays")
    door.fail("POST /api/state/k", error)
    result = call("state", "incr", "k", "--durability", "majority")
    assert result.exit_code == NotReplicated.exit_code == 5
    assert "2 of 3 members" in result.stderr and "it stays" in result.stderr


def test_state_reads_texts_plainly(call: Invoke, door: Door) -> None:
    entry = {"key": "k", "type": "lww_register", "value": "plain"}
    door.on("GET /api/state/k", entry)
    door.on("GET /api/state", {"entries": [entry]})
    assert call("state", "get", "k").stdout == "plain\n"
    assert call("state", "list", "k").stdout.splitlines()[1].split() == ["k", "lww_register", "plain"]
    assert door.asked[-1][1] == {"prefix": "k", "limit": "1000"}


def test_events_are_one_line_each(call: Invoke, door: Door) -> None:
    changes = [{"kind": "job", "id": "j", "state": "queued"}]
    event = {"index": 7, "at": 0, "type": "submit_jobs", "changes": changes}
    end = {"reason": "stopping", "hint": "the host is stopping"}
    stream = f"data: {json.dumps(event)}\n\nevent: end\ndata: {json.dumps(end)}\n\n".encode()
    door.on("GET /api/events", stream)
    result = call("events", "--from", "5")
    assert result.stdout.split()[1:] == ["7", "submit_jobs", "job", "j", "queued"]
    assert result.exit_code == 5 and "the host is stopping" in result.stderr
    assert door.asked[-1][1] == {"from": "5"}
    assert json.loads(call("events", "--json").stdout.splitlines()[0]) == event


def test_config_set_sends_the_text_and_shows_what_it_was(call: Invoke, door: Door) -> None:
    door.on("PUT /api/config/work.kill_grace_s", {"key": "work.kill_grace_s", "value": 3.0, "previous": 5.0})
    assert call("config", "set", "work.kill_grace_s", "3").stdout == "work.kill_grace_s = 3.0 (was 5.0)\n"
    assert door.asked[-1][2] == {"value": "3"}


def test_config_set_of_a_setting_that_is_not_live_says_what_to_do(call: Invoke, door: Door) -> None:
    door.fail("PUT /api/config/cluster.name", SettingNotLive("m", hint="write it into cluster.yaml"))
    result = call("config", "set", "cluster.name", "x")
    assert result.exit_code == 2 and "cluster.yaml" in result.stderr


def test_config_of_a_running_agent_is_its_own(call: Invoke, door: Door) -> None:
    row = {"key": "work.kill_grace_s", "value": 3.0, "default": 5.0, "origin": "live", "live": True, "description": "d"}
    door.on("GET /api/config", {"settings": [row, {**row, "key": "cluster.name", "origin": "default"}]})
    assert call("config", "get", "work.kill_grace_s").stdout == "3.0\n"
    lines = call("config", "list", "--changed").stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [["work.kill_grace_s", "3.0", "live", "live"]]
    assert json.loads(call("config", "list", "--json").stdout)["running"] is True


def test_figures_read_well() -> None:
    assert [size(n) for n in (None, 0, 1023, 1536, 80 * 2**30, 3 * 2**40)] == [
        "-",
        "0 B",
        "1023 B",
        "1.5 KiB",
        "80 GiB",
        "3 TiB",
    ]
    assert [span(s) for s in (None, -1, 59, 61, 3700, 90000)] == ["-", "0s", "59s", "1m1s", "1h1m", "1d1h"]
    assert [share(n) for n in (0, 250, 1000, 333, 2000)] == ["0", "0.25", "1", "0.333", "2"]
