"""Gangs over three hosts: they meet over the network's addresses, and whatever ends one member ends them all."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from tests.processes import is_alive, until
from tests.system.agent import closing_all
from tests.system.cluster_host import ClusterHost
from tests.system.test_gangs import MEET, met

HOLD = """
import os, pathlib, sys, time
number, rank = os.environ["ACTORGRID_ATTEMPT_NUMBER"], os.environ["RANK"]
here = pathlib.Path(sys.argv[1])
(here / f"pid.{number}.{rank}.tmp").write_text(str(os.getpid()))
(here / f"pid.{number}.{rank}.tmp").rename(here / f"pid.{number}.{rank}")
while number == "1" and not (here / "go").exists():
    time.sleep(0.05)
"""
SPREAD = {"gpus": 1, "gang": 3, "spread": True, "cpus": 0.1}
Three = list[ClusterHost]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """Three hosts of two GPUs each."""
    folder = tmp_path_factory.mktemp("three")
    hosts = [ClusterHost(folder / name, "simulated:2xH100-80GB") for name in ("first", "second", "third")]
    with closing_all(hosts):
        hosts[0].found()
        token = hosts[0].token("--uses", "2")["token"]
        for host in hosts[1:]:
            host.join(hosts[0], token)
        until(lambda: len(hosts[0].cli_json("gpus")["gpus"]) == 6, "all devices are known")
        yield hosts


def held(folder: Path, attempt: int) -> dict[int, int]:
    """The processes of an attempt's members, by rank, once all three run."""

    def pids() -> dict[int, int] | None:
        found = {rank: folder / f"pid.{attempt}.{rank}" for rank in range(3)}
        return (
            {rank: int(path.read_text()) for rank, path in found.items() if path.exists()}
            if all(path.exists() for path in found.values())
            else None
        )

    by_rank: dict[int, int] = until(pids, f"all members of attempt {attempt} run")
    return by_rank


def test_members_on_all_hosts_run_in_the_directory_that_was_sent_once(three: Three, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("what was sent")
    (tmp_path / "look.py").write_text("import os; print(open('text.txt').read(), os.getcwd(), flush=True)")
    with actorgrid.connect(data_dir=three[2].data_dir, working_dir=tmp_path) as client:
        job = client.run([sys.executable, "look.py"], check=True, **SPREAD).job
        told = [b"".join(client.logs(job["job_id"], rank=rank)).decode().split() for rank in range(3)]
    kept = {path for host in three for path in (host.data_dir / "working_dirs").iterdir() if path.is_dir()}
    assert [words[:3] for words in told] == [["what", "was", "sent"]] * 3
    assert {Path(words[3]) for words in told} == kept and len({path.name for path in kept}) == 1


def test_outputs_of_each_member_are_fetched_through_any_host(three: Three, tmp_path: Path) -> None:
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "write.py").write_text(
        "import os; os.mkdir('out'); print(os.environ['RANK'] * 2_000_000, file=open('out/rank', 'w'))"
    )
    with actorgrid.connect(data_dir=three[2].data_dir, working_dir=tmp_path / "sent") as client:
        job_id = client.run([sys.executable, "write.py"], check=True, outputs=["out"], **SPREAD).job_id
    for rank in range(3):
        (path,) = three[0].client().fetch(job_id, "out/rank", tmp_path / str(rank), rank=rank)
        assert path.read_text() == str(rank) * 2_000_000 + "\n"


def test_members_on_hosts_of_their_own_meet_at_rank_0(three: Three) -> None:
    client = three[1].client()
    job_id = client.submit_job(command=[sys.executable, "-c", MEET], **SPREAD)["job_id"]
    job = client.wait(job_id)
    assert job["state"] == "succeeded", job
    members = job["attempts"][-1]["members"]
    assert len({member["host"] for member in members}) == 3
    told = met(client, job_id)
    assert [each["ACTORGRID_HOST_RANK"] for each in told] == ["0", "1", "2"]
    assert {each["ACTORGRID_LOCAL_SIZE"] for each in told} == {"1"}
    for host in three:
        assert b"".join(host.client().logs(job_id, rank=2)) == b"all here\n"


def test_a_killed_member_ends_all_and_all_are_tried_again(three: Three, tmp_path: Path) -> None:
    client = three[0].client()
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    job_id = client.submit_job(command=command, retries=1, **SPREAD)["job_id"]
    pids = held(tmp_path, 1)
    os.kill(pids[2], signal.SIGKILL)
    job = client.wait(job_id)
    assert job["state"] == "succeeded", job
    first, second = job["attempts"]
    assert (first["state"], first["signal"]) == ("failed", signal.SIGKILL)
    assert first["error"]["message"].startswith("rank 2: ")
    assert [member["state"] for member in first["members"]] == ["cancelled", "cancelled", "failed"]
    assert [member["state"] for member in second["members"]] == ["succeeded"] * 3
    assert min(member["started_at"] for member in second["members"]) >= first["ended_at"], "never two attempts at once"
    assert not any(is_alive(pid) for pid in pids.values())


def test_cancelling_ends_every_member_and_frees_all_rooms(three: Three, tmp_path: Path) -> None:
    client = three[2].client()
    job_id = client.submit_job(command=[sys.executable, "-c", HOLD, str(tmp_path)], **SPREAD)["job_id"]
    pids = held(tmp_path, 1)
    client.cancel(job_id)
    assert client.wait(job_id)["state"] == "cancelled"
    until(lambda: not any(is_alive(pid) for pid in pids.values()), "no member lives")
    until(lambda: not any(row["allocated_milli"] for row in client.gpus()), "all GPUs are free")


def test_a_gang_waits_whole_until_the_last_host_has_room(three: Three, tmp_path: Path) -> None:
    client = three[0].client()
    blocker = client.submit_job(command=["sleep", "600"], gpus=2, cpus=0.1)["job_id"]
    until(lambda: client.job(blocker)["state"] == "running", "the blocker runs")
    job_id = client.submit_job(command=[sys.executable, "-c", HOLD, str(tmp_path)], **SPREAD)["job_id"]

    def told() -> bool:
        why = three[0].cli_json("why", job_id)
        return "2 of them fit now" in why["headline"]

    until(told, "two of three would fit")
    assert sum(row["allocated_milli"] for row in client.gpus()) == 2_000, "the gang holds nothing"
    client.cancel(blocker)
    held(tmp_path, 1)
    client.cancel(job_id)
    assert client.wait(job_id)["state"] == "cancelled"


def test_a_leader_that_is_killed_costs_a_gang_nothing(three: Three, tmp_path: Path) -> None:
    first, second, _ = three
    until(lambda: sorted(second.roles().values()) == ["leader", "voter", "voter"], "all three vote")
    before = next(node for node, role in second.roles().items() if role == "leader")
    leader, other = three[before - 1], first if before != 1 else second
    patient: dict[str, Any] = {**SPREAD, "max_isolation_s": 60}
    job_id = other.client().submit_job(command=[sys.executable, "-c", HOLD, str(tmp_path)], **patient)["job_id"]
    pids = held(tmp_path, 1)
    leader.kill()

    def leads_another() -> bool:
        return any(role == "leader" and node != before for node, role in other.roles().items())

    until(leads_another, "another host leads")
    leader.start()
    (tmp_path / "go").touch()
    job = other.client().wait(job_id)
    assert job["state"] == "succeeded", job
    assert len(job["attempts"]) == 1, job["attempts"][0]["error"]
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_host_that_dies_takes_its_gang_along_and_all_start_again(three: Three, tmp_path: Path) -> None:
    first, _, third = three
    client = first.client()
    dead = first.hosts()[3]["node_id"]
    wanted: dict[str, Any] = {**SPREAD, "gpus": 2, "max_isolation_s": 3}
    job_id = client.submit_job(command=[sys.executable, "-c", HOLD, str(tmp_path)], **wanted)["job_id"]
    pids = held(tmp_path, 1)
    members = client.job(job_id)["attempts"][-1]["members"]
    rank = next(member["rank"] for member in members if member["host"] == dead)
    third.kill()
    until(lambda: not is_alive(pids[rank]), "its shim has ended what nobody looks after any more")
    third.start()
    job = client.wait(job_id)
    assert job["state"] == "succeeded", job
    attempt = job["attempts"][0]
    assert (attempt["state"], attempt["members"][rank]["state"]) == ("lost", "lost")
    assert [member["state"] for member in attempt["members"]].count("cancelled") == 2
    assert not any(is_alive(pid) for pid in pids.values())
