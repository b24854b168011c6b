"""A data directory that the version before wrote, cut off in the middle: all of it is found again."""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.errors import WrongToken
from tests.system.cluster_host import ADDRESS, ClusterHost

FOLDER = Path(__file__).parent / "version_before"
AUTHORITY_LIFE_S = 3650 * 86_400.0
SAME = ("name", "user_id", "kind", "command", "priority", "env", "resources", "depends_on", "ordinal")
ENDED = ("good", "bad", "slow", "gang", "function", "never")
"""Jobs that had ended; the others waited, but for one that ran."""


def unpack(kind: str, into: Path) -> dict[str, Any]:
    """The directory as the power cut left it; returns what ``make.py`` noted of it."""
    expected: dict[str, Any] = json.loads((FOLDER / f"{kind}.json").read_text())
    if not expected.get("made_at", 0.0) <= time.time() <= expected.get("made_at", time.time()) + AUTHORITY_LIFE_S:
        pytest.skip("this machine's clock is outside of the life of the directory's authority; the other kind runs")
    into.mkdir(mode=0o700)
    with tarfile.open(FOLDER / f"{kind}.tar.xz") as archive:
        archive.extractall(into, filter="tar")
    return expected


def verified(host: ClusterHost) -> dict[str, Any]:
    """What ``ledger verify`` says, which exits with 0."""
    found: dict[str, Any] = host.cli_json("ledger", "verify", "--data-dir", str(host.data_dir))
    return found


def limits(quotas: dict[str, Any]) -> dict[str, Any]:
    """By user; without those who have none of their own."""
    return {quota["user"]: quota["limits"] for quota in quotas["quotas"] if not quota["default"]}


@pytest.mark.parametrize("kind", ["alone", "founded"])
def test_all_that_the_version_before_kept_is_there_and_goes_on(
    kind: str, make_host: Callable[..., ClusterHost]
) -> None:
    host = make_host("before", 2)
    expected = unpack(kind, host.data_dir)
    before = verified(host)
    # The version before built this state of the log: voters of both versions have to say the same of it.
    assert {name: before[name] for name in expected["verify"]} == expected["verify"]
    host.start()
    client = host.client()
    assert [shown["node_id"] for shown in host.cli_json("hosts")["hosts"]] == [expected["host_id"]]
    if kind == "founded":
        assert host.ready["cluster_id"] == expected["cluster_id"]

    # What had ended is told as it was, with its output.
    jobs = {name: client.job(made["job_id"]) for name, made in expected["jobs"].items()}
    for name, made in expected["jobs"].items():
        assert {field: jobs[name][field] for field in SAME} == {field: made[field] for field in SAME}, name
    for name in ENDED:
        told = [jobs[name]["state"], len(jobs[name]["attempts"]), jobs[name]["error"]]
        assert told == [expected["jobs"][name][field] for field in ("state", "attempts", "error")], name
    ids = {name: job["job_id"] for name, job in jobs.items()}
    assert b"".join(client.logs(ids["good"])) == b"said\n"
    assert b"".join(client.logs(ids["good"], "stderr")) == b"complained\n"
    assert [b"".join(client.logs(ids["gang"], rank=rank)) for rank in (0, 1)] == [b"rank 0\n", b"rank 1\n"]
    assert client.result(ids["function"], 30) == 42

    # What waited runs, and what the power cut met runs again.
    for name in sorted(set(ids) - set(ENDED)):
        assert client.wait(ids[name], 90)["state"] == "succeeded", name
    assert [attempt["state"] for attempt in client.job(ids["running"])["attempts"]] == ["lost", "succeeded"]
    written = {name: b"".join(client.logs(ids[name])) for name in ("running", "waiting", "after")}
    assert written == {"running": b"again\n", "waiting": b"waited\n", "after": b"value\n"}

    # The shared state, quotas, settings.
    held = {entry["key"]: [entry["type"], entry["value"]] for entry in client.state.list()}
    # A host's health is of now.
    of_users = {key: entry for key, entry in expected["state"].items() if not key.startswith("health/")}
    assert {key: entry for key, entry in held.items() if not key.startswith(("health/", "_cluster/"))} == of_users
    assert client.state.increment("served", 1) == expected["state"]["served"][1] + 1
    assert limits(host.cli_json("quota")) == limits(expected["quotas"])
    for name, value in expected["settings"].items():
        assert json.loads(host.cli("config", "get", name).stdout) == value

    # Locks: held by whom they were held, under the same tokens; the next has a higher one.
    locks = {lock["name"]: lock for lock in client.locks()}
    assert [holder["token"] for holder in locks["nightly"]["holders"]] == [expected["locks"]["nightly"]]
    assert [holder["token"] for holder in locks["licences"]["holders"]] == expected["locks"]["licences"]
    assert [waiter["owner"] for waiter in locks["nightly"]["waiters"]] == ["owner-3"]
    token = {"owner": "owner-2", "token": expected["locks"]["nightly"]}
    assert client.http.post("/api/locks/nightly/release", token)["released"]
    (after,) = client.locks("nightly")[0]["holders"]
    assert after["owner"] == "owner-3" and after["token"] > expected["locks"]["nightly"]

    if kind == "founded":
        secured = {"ca_fingerprint": expected["key"]["ca_fingerprint"]}
        url = f"https://{ADDRESS}:{host.base_port + 4}"
        with actorgrid.connect(url, token=expected["key"]["key"], **secured) as ann:
            assert ann.state.get("grown") == 3
        with pytest.raises(WrongToken), actorgrid.connect(url, token=expected["revoked"]["key"], **secured) as bob:
            bob.state.get("grown")
        tokens = {token["id"]: token for token in host.cli_json("token", "list")["tokens"]}
        made = expected["token"]
        assert made["id"] in tokens or time.time() > made["expires_at"], "30 days is the most that one may have"
    assert host.stop() == 0
    assert verified(host)["last_index"] > before["last_index"]
