"""Heads of a host's audit log, held by the cluster: what is changed on that host is found on another. Real agents."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import until
from tests.system.cluster_host import ClusterHost

pytestmark = pytest.mark.system


def held_of(host: ClusterHost, host_id: str) -> Any:
    """The head of that host's log, as *host* knows what the cluster holds; ``None``: none."""
    return next((each for each in host.cli_json("audit", "heads")["heads"] if each["host_id"] == host_id), None)


def test_a_log_that_is_changed_on_its_host_is_found_by_what_the_others_hold(
    make_host: Callable[..., ClusterHost], tmp_path: Path
) -> None:
    a, b = make_host("a", 1), make_host("b", 1)
    a.found()
    b.join(a, a.token()["token"])
    for number in range(5):
        a.cli("quota", "set", f"ann{number}@lab", "--gpus", "1")
    export, heads = tmp_path / "log", tmp_path / "heads"
    key = a.cli_json("audit", "key")["key"]
    name = key.partition("+")[0].rpartition("/")[2]
    until(lambda: (held_of(b, name) or {"size": 0})["size"] >= 5, "the cluster holds a head of a's log")
    size = held_of(b, name)["size"]
    b.cli("audit", "heads", str(heads), "--all")
    assert a.cli_json("audit", "export", str(export))["records"] >= size
    assert b.cli_json("audit", "verify", str(export), "--heads", str(heads), "--key", key)["signed"] >= size

    lines = export.read_bytes().splitlines(keepends=True)
    for what, forged in {
        "changed": [*lines[:2], lines[2].replace(b"ann", b"bob"), *lines[3:]],
        "left out": [*lines[:3], *lines[4:]],
        "moved": [*lines[:2], lines[3], lines[2], *lines[4:]],
        "cut": lines[: size - 1],
    }.items():
        path = tmp_path / what.replace(" ", "-")
        path.write_bytes(b"".join(forged))
        failed = b.cli("audit", "verify", str(path), "--heads", str(heads), "--key", key, "--json", check=False)
        assert failed.returncode and "AuditBroken" in failed.stdout + failed.stderr, what

    # Whoever is root there puts another log in its place, key and all: the cluster has the old one's head.
    held = held_of(b, name)
    a.stop()
    shutil.rmtree(a.data_dir / "audit")
    a.start()
    a.cli("quota", "set", "eve@lab", "--gpus", "1")
    until(lambda: held_of(b, name)["log"] == 2, "the cluster knows that another log began")
    assert held_of(b, name)["ended"][-1]["root"] == held["root"] or held_of(b, name)["ended"][-1]["size"] > held["size"]
