"""Paths between two hosts, measured and chosen: real agents over loopback."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorgrid.client.find import locate
from actorgrid.client.http import AdminHttp
from tests.processes import until
from tests.system.cluster_host import ClusterHost

pytestmark = pytest.mark.system
MIB = 2**20


@pytest.fixture
def hosts(make_host: Callable[..., ClusterHost]) -> Iterator[tuple[ClusterHost, ClusterHost]]:
    first, second = make_host("one", 1), make_host("two", 1)
    first.settings.append("transports.rdma=true")
    first.found()
    second.join(first, str(first.token()["token"]))
    until(lambda: len(first.hosts()) == 2, "the cluster has two hosts")
    yield first, second


def paths(http: AdminHttp) -> dict[str, dict[str, Any]]:
    (peer,) = http.get("/api/paths")["peers"]
    return {"used": peer["used"], **{each["path"]: each for each in peer["paths"]}}


def make(size: int) -> np.ndarray[Any, Any]:
    import select

    select.poll().poll(300)  # takes a while: the next one goes to the other host
    return np.zeros(size, np.uint8)


def test_paths_are_measured_shown_and_chosen(hosts: tuple[ClusterHost, ClusterHost]) -> None:
    first, _ = hosts
    with closing(AdminHttp(*locate(first.data_dir))) as http:
        look(first, http)


def look(first: ClusterHost, http: AdminHttp) -> None:
    # RDMA is on here, and no pair is up: large objects come over several connections all the same.
    with first.client() as client:
        values = [client.submit(make, 16 * MIB, gpus=1) for _ in range(2)]
        for value in values:
            assert value.result(100).nbytes == 16 * MIB
    pieces = http.get("/api/inspect/links")["inspect"]["status"]["pieces"]
    assert pieces["brought"] == 1 and pieces["brought_bytes"] >= 16 * MIB
    assert paths(http)["tls_streams"]["transfers"] == 1

    found = first.cli_json("bench", "net", "1", "2", "--large", "16", "--trips", "20")
    measured = {each["path"]: each for each in found["paths"]}
    assert set(measured) == {"tls", "tls_streams", "rdma"}
    for kind in ("tls", "tls_streams"):
        each = measured[kind]
        assert each["bytes"] == 16 * MIB and each["trips"] == 20 and not each["unavailable"]
        assert 0 < each["round_trip_us"] <= each["round_trip_p99_us"] and each["mb_per_s"] > 0
        cost = each["cost"]
        assert cost["cpu_s_per_gb_here"] > 0 and cost["cpu_s_per_gb_there"] > 0 and cost["same_machine"]
        assert cost["cores_here"] == cost["cores_there"] == len(os.sched_getaffinity(0))
        possible = cost["cores_here"] / (cost["cpu_s_per_gb_here"] + cost["cpu_s_per_gb_there"])
        assert cost["cpu_bound_mb_per_s"] == pytest.approx(possible * 1e3, rel=0.05)
    assert found["several_of_one"]["ratio"] > 0 < found["several_of_one"]["ratio_possible"]
    assert measured["rdma"]["unavailable"], "no device here"

    # Asked of any door; what one host reads is measured there.
    back = first.cli_json("bench", "net", "2", "1", "--path", "tls", "--large", "4")
    assert [each["bytes"] for each in back["paths"]] == [4 * MIB]

    shown = paths(http)
    assert shown["tls"]["mb_per_s"] > 0 and shown["tls_streams"]["transfers"] == 2
    assert not shown["rdma"]["available"] and shown["rdma"]["reason"]
    assert first.cli_json("hosts")["paths"]["peers"][0]["used"] == shown["used"]

    with pytest.raises(AssertionError, match="itself"):
        first.cli_json("bench", "net", "1", "1")


def test_a_large_working_directory_comes_over_several_connections(
    hosts: tuple[ClusterHost, ClusterHost], tmp_path: Path
) -> None:
    first, second = hosts
    (tmp_path / "data").write_bytes(os.urandom(12 * MIB))
    command = ("--gang", "2", "--gpus", "1", "--working-dir", str(tmp_path), "sh", "-c", "wc -c < data")
    assert first.ended(*command)["state"] == "succeeded"
    with closing(AdminHttp(*locate(second.data_dir))) as http:
        pieces = http.get("/api/inspect/links")["inspect"]["status"]["pieces"]
    assert pieces["brought"] == 1 and pieces["brought_bytes"] >= 12 * MIB and not pieces["failed"]
