"""A ledger with something of every kind in it, and well-formed commands of every kind that do something there."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.command_checks import VERSION
from actorgrid.actors.ledger.state import Ledger
from tests.consensus.rig import AT, host_record, job_record

Plain = dict[str, Any]
RAFT = {"raft": "10.0.0.1:7402", "calls": "10.0.0.1:7401"}
KEY: Plain = {
    "id": "k1",
    "sha256": "ab" * 32,
    "user_id": "ann",
    "roles": ["user"],
    "made_by": "me",
    "made_at": AT,
    "expires_at": AT + 1e6,
    "revoked_at": None,
}
TOKEN: Plain = {
    "id": "t1",
    "cluster_id": "c1",
    "authority": "aa",
    "verify_key": "bb",
    "made_by": "me",
    "made_at": AT,
    "expires_at": AT + 1e6,
    "uses_max": 5,
    "roles": ["voter"],
    "used_by": [],
    "revoked_at": None,
}


def bundle(version: int, *states: str) -> Plain:
    authorities = [
        {"generation": number, "state": state, "certificate": "pem", "endorsements": {}}
        for number, state in enumerate(states, 1)
    ]
    return {"format": 1, "cluster_id": "c1", "version": version, "authorities": authorities}


def gang(job_id: str) -> Plain:
    return job_record(job_id, resources={"gang": 2, "cpu_milli": 100, "gpu_milli": 100})


def furnished(ledger: Ledger | None = None) -> Ledger:
    """The ledger, or *ledger* made it."""
    ledger = Ledger() if ledger is None else ledger

    def do(command: Plain) -> Plain:
        outcome = ledger.apply(ledger.index + 1, command, "s", ledger.index + 1)
        assert outcome.error is None, outcome.error
        assert outcome.result is not None
        return outcome.result

    do(commands.new_term(1, AT))
    do(commands.found_cluster("c1", "h1", RAFT, "f1", AT))
    do(commands.add_member("h2", RAFT, "f2", AT))
    do(commands.add_member("h3", RAFT, "f3", AT))
    for host_id in ("h1", "h2", "h3"):
        do(commands.change_member(host_id, AT, ledger_version=VERSION))
    for host_id in ("h1", "h2"):
        do(commands.register_host(host_record(host_id, gpus=4), AT))
    do(commands.submit_jobs([job_record(name) for name in ("waits", "placed", "runs", "ends")], AT))
    do(commands.submit_jobs([gang("gang"), gang("gang2")], AT))
    for job_id in ("placed", "runs", "ends"):
        gpu = 3 if job_id == "ends" else 0
        token = do(commands.grant_attempt(job_id, 1, "h1", 1, [gpu], 1, AT))["token"]
        if job_id != "placed":
            do(commands.start_attempt(f"{job_id}.1", token, AT))
        if job_id == "ends":
            do(commands.end_attempt("ends.1", token, "succeeded", AT))
    places = [{"host": host, "incarnation": 1, "gpu_indexes": [1]} for host in ("h1", "h2")]
    do(commands.grant_gang("gang", 1, places, (9000, 9100), 1, AT))
    do(commands.grant_lease("lease1", "s1", "h1", 1, [2], {"gpu_count": 1, "gpu_milli": 100}, "p", {}, 1, AT))
    do(commands.acquire_lock("deploy", "o1", 10, AT))
    do(commands.acquire_lock("deploy", "o2", 10, AT, wait=True))
    do(commands.set_quota("ann", {"gpu_milli": 1000}, "me", AT))
    do(commands.set_setting("a.b", 1, "me", AT))
    do(commands.create_join_token(TOKEN, AT))
    do(commands.create_api_key(KEY, AT))
    do(commands.publish_bundle(bundle(1, "signing"), AT))
    do(commands.report_trust("h1", "pem", "f1", 1, AT, 1, [1], AT))
    do(commands.request_certificate("h2", "00", ["10.0.0.1"], AT))
    return ledger


def examples(ledger: Ledger) -> list[Plain]:
    """The commands."""
    token = ledger.allocations["runs.1"]["token"] if "runs.1" in ledger.allocations else [1, 1]
    gang_token = ledger.allocations["gang.1-0"]["token"] if "gang.1-0" in ledger.allocations else [1, 1]
    term, number = ledger.term, ledger.index + 1
    places = [{"host": host, "incarnation": 1, "gpu_indexes": [3]} for host in ("h1", "h2")]
    request = (ledger.trust.get("h2") or {}).get("request") or {"id": 1}
    return [
        commands.new_term(term + 1, AT, 1),
        commands.register_host(host_record("h1", 1, gpus=4), AT),
        commands.register_host(host_record("h9", 1, gpus=1, state="up", rack="r1"), AT),
        commands.confirm_host("h1", 1, None, AT),
        commands.allow_absence("h1", 1, 10.0, AT),
        commands.lose_host(
            "h1", 1, (ledger.hosts.get("h1") or {}).get("seen_index", 0), AT, [("runs.1", token)], term, AT
        ),
        commands.drain_host("h2", True, "me", AT),
        commands.measure_host("h1", 1, {"fdatasync_ms": 1.0, "at": AT}, AT),
        commands.submit_jobs([job_record(f"j{number}", env={"A": "b"}, depends_on=["waits"])], AT),
        commands.submit_jobs([gang(f"g{number}")], AT),
        commands.grant_attempt("waits", 1, "h1", 1, [3], term, AT, 1.0),
        commands.grant_gang("gang2", 1, places, (9000, 9100), term, AT, 1.0),
        commands.start_attempt("placed.1", ledger.allocations.get("placed.1", {"token": [1, 1]})["token"], AT),
        commands.start_attempt("gang.1-0", gang_token, AT),
        commands.end_attempt("runs.1", token, "failed", AT, exit_code=1, error={"code": "TaskFailed"}, retry_at=AT),
        commands.end_attempt("gang.1-1", gang_token, "lost", AT),
        commands.take_success("runs.1", token, AT, exit_code=0),
        commands.preempt_attempt("runs.1", token, 5.0, "waits", term, AT),
        commands.cancel_job("waits", "me", AT),
        commands.fail_job("waits", {"code": "TaskFailed", "message": "no"}, AT),
        commands.grant_lease(
            f"l{number}", "s1", "h1", 1, [3], {"gpu_count": 1, "gpu_milli": 10}, "p", {"A": "b"}, term, AT
        ),
        commands.release_lease("lease1", AT),
        commands.acquire_lock("deploy", "o3", 10, AT, wait=True),
        commands.renew_lock("deploy", "o1", AT),
        commands.release_lock("deploy", "o2", AT),
        commands.break_lock("deploy", "o1", "me", AT),
        commands.expire_lock("deploy", "o1", 0, term, AT),
        commands.set_setting("a.c", {"x": [1, 2]}, "me", AT),
        commands.found_cluster("c2", "h5", RAFT, "f5", AT),
        commands.add_member(f"m{number}", RAFT, "f9", AT, rack="r1"),
        commands.change_member("h3", AT, addresses=RAFT, fingerprint="f4", votes=True, ledger_version=VERSION),
        commands.remove_member("h3", "me", AT, force=True),
        commands.publish_bundle(bundle(2, "signing", "waiting"), AT),
        commands.report_trust("h2", "pem", "f2", 1, AT, 1, [1], AT),
        commands.request_certificate("h1", "00", ["10.0.0.1"], AT),
        commands.issue_certificate("h2", request["id"], "pem", "f22", AT),
        commands.seal_authority("h1", 2, "f1", "00", AT),
        commands.create_join_token({**TOKEN, "id": f"t{number}"}, AT),
        commands.revoke_join_token("t1", AT),
        commands.redeem_join_token("t1", f"n{number}", RAFT, f"f{number}", AT, rack="r"),
        commands.create_api_key({**KEY, "id": f"k{number}"}, AT),
        commands.revoke_api_key("k1", "me", AT),
        commands.set_quota("bob", {"gpu_milli": 5}, "me", AT),
    ]
