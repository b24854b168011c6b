"""What is larger than a frame between hosts is committed by three real hosts of which one is away."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from actorgrid import errors
from tests.processes import until
from tests.system.cluster_host import ClusterHost


def test_jobs_larger_than_a_frame_are_accepted_while_a_voter_is_away(make_host: Callable[..., ClusterHost]) -> None:
    hosts = [make_host("a", 0).found(), make_host("b", 0), make_host("c", 0)]
    token = hosts[0].token("--uses", "2")["token"]
    for host in hosts[1:]:
        host.join(hosts[0], token)
    until(lambda: hosts[2].roles() == {1: "leader", 2: "voter", 3: "voter"}, "three that vote")
    hosts[2].kill()
    client = hosts[1].client()

    # 3 MB in one submission: no frame between hosts holds it.
    env = {f"V{number}": "x" * 100_000 for number in range(5)}
    jobs: list[dict[str, Any]] = [{"command": ["true"], "env": env, "cpus": 0.1} for _ in range(6)]
    accepted = client.http.post("/api/jobs/batch", {"jobs": jobs})["jobs"]
    for job in accepted:
        assert client.job(job["job_id"], wait_s=60)["state"] == "succeeded"
    status = json.loads(hosts[0].cli("status", "--json", check=False).stdout)
    assert "commits_stalled" not in {each["name"] for each in status["findings"]}

    with pytest.raises(errors.CommandTooLarge, match="BIG"):
        client.submit_job(command=["true"], env={"BIG": "x" * 3_000_000})
    hosts[2].start()
    until(lambda: [hosts[2].job(job["job_id"])["state"] for job in accepted] == ["succeeded"] * 6, "it has all of them")
