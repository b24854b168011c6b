"""Gangs that really meet: members on one host and on several, ended together and tried again together."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.errors import BadRequest, RequestTooLarge
from tests.processes import until
from tests.system.agent import Agent

MEET = """
import json, os, socket, sys
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
mine = {name: os.environ[name] for name in os.environ if name.startswith(("ACTORGRID_", "PET_"))}
mine |= {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES")}
if rank == 0:
    with socket.create_server(where) as server:
        met = [mine]
        others = [server.accept()[0].makefile("rw") for _ in range(size - 1)]
        met += [json.loads(each.readline()) for each in others]
        for each in others:
            print("all here", file=each, flush=True)
    print(json.dumps(sorted(met, key=lambda each: int(each["RANK"]))))
else:
    import time
    while True:
        try:
            with socket.create_connection(where) as line:
                file = line.makefile("rw")
                print(json.dumps(mine), file=file, flush=True)
                print(file.readline().strip())
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
"""
HERE = [sys.executable, "-c", MEET]


def met(client: Any, job_id: str) -> list[dict[str, str]]:
    """What the members told rank 0 of their environments."""
    found: list[dict[str, str]] = json.loads(b"".join(client.logs(job_id)))
    return found


def test_two_members_on_one_host_meet_and_know_who_they_are(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent().start()
    client = agent.client()
    done = client.run(HERE, gpus=2, gang=2, cpus=0.1, env={"RANK": "7", "PET_NPROC_PER_NODE": "5"}, check=True)
    first, second = met(client, done.job_id)
    assert [each["RANK"] for each in (first, second)] == ["0", "1"]
    assert [each["ACTORGRID_LOCAL_RANK"] for each in (first, second)] == ["0", "1"]
    assert {each["LOCAL_RANK"] for each in (first, second)} == {"0"}
    assert (first["PET_NNODES"], first["PET_NPROC_PER_NODE"], second["PET_NODE_RANK"]) == ("2", "5", "1")
    assert first["ACTORGRID_HOSTS"] == "127.0.0.1 slots=2"
    seen = [each["ACTORGRID_DEVICES"].split(",") for each in (first, second)]
    assert len({uuid for uuids in seen for uuid in uuids}) == 4, "each has its own devices"
    assert b"".join(client.logs(done.job_id, rank=1)) == b"all here\n"
    attempt = client.job(done.job_id)["attempts"][-1]
    assert [member["state"] for member in attempt["members"]] == ["succeeded", "succeeded"]
    assert 29_500 <= attempt["rendezvous"]["port"] <= 29_999


def test_a_gang_that_cannot_fit_is_refused_or_waits_and_holds_nothing(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent().start()
    client = agent.client()
    with pytest.raises(RequestTooLarge, match="no room for a gang") as caught:
        client.submit_job(command=["true"], gpus=2, gang=3, cpus=0.1)
    assert "--gang 2" in caught.value.hint
    with pytest.raises(RequestTooLarge, match="a host for each"):
        client.submit_job(command=["true"], gpus=1, gang=2, spread=True, cpus=0.1)
    with pytest.raises(BadRequest, match="no gang"):
        client.submit(int, gang=2)
    blocker = client.submit_job(command=["sleep", "600"], gpus=1, cpus=0.1)["job_id"]
    until(lambda: client.job(blocker)["state"] == "running", "the blocker runs")
    gang = client.submit_job(command=["true"], gpus=2, gang=2, cpus=0.1)["job_id"]

    def told() -> dict[str, Any] | None:
        why: dict[str, Any] = agent.cli_json("why", gang)
        return why if "gang of 2" in why["headline"] else None

    why = until(told, "why it waits is known")
    assert "1 of them fits now" in why["headline"]
    assert "has room for 1" in " ".join(why["reasons"])
    assert [row["allocated_milli"] for row in client.gpus()].count(1000) == 1, "it holds nothing"
    client.cancel(blocker)
    assert client.wait(gang)["state"] == "succeeded"


def test_all_output_of_a_gang_is_shown_with_ranks(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent().start()
    command = ["sh", "-c", "echo one $RANK; printf 'no end'; echo odd >&2; [ $RANK = 0 ]"]
    ran = agent.cli("run", "--gpus", "0.1", "--cpus", "0.1", "--gang", "2", "--", *command, check=False)
    assert ran.returncode == 1, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["[0] no end", "[0] one 0", "[1] no end", "[1] one 1"]
    assert "rank 1: the command left with status 1" in ran.stderr
    [job] = agent.cli_json("ps", "--all")["jobs"]
    assert agent.cli("logs", job["job_id"], "--rank", "1").stdout == "one 1\nno end"
    assert agent.cli("logs", job["job_id"]).stdout == "one 0\nno end"
    every = agent.cli("logs", job["job_id"], "--all-ranks", "--stdout").stdout
    assert every == "[0] one 0\n[0] no end\n[1] one 1\n[1] no end\n"
    assert agent.cli("logs", job["job_id"], "--rank", "2", check=False).returncode
    assert "2 x 0.1" in agent.cli("ps", "--all").stdout


def test_a_function_runs_once_for_each_rank_and_gives_the_value_of_rank_0(make_agent: Callable[..., Agent]) -> None:
    client = make_agent().start().client()
    here = lambda: __import__("os").environ["RANK"] + " of " + __import__("os").environ["WORLD_SIZE"]  # noqa: E731
    assert client.submit(here, durable=True, gang=3, cpus=0.1).result(60) == "0 of 3"
