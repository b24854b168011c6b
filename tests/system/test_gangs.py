"""Gangs that really meet: members on one host and on several, ended together and tried again together."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
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
