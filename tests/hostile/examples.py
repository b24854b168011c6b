"""A ledger with something of every kind in it, and well-formed commands of every kind that do something there."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.command import VERSION
from actorgrid.actors.ledger.state import Ledger
from tests.consensus.rig import AT, host_record, job_record

Plain = dict[str, Any]
RAFT = {"raft": "10.0.0.1:7402", "calls": "10.0.0.1:7401"}
MODEL_KEY: Plain = {"models": ["tiny"], "requests_per_minute": 60, "tokens_per_minute": 0, "tokens_per_month": 10**6}
SECRET: Plain = {
    "name": "hf",
    "user_id": "ann@lab",
    "shared": False,
    "boxes": {"authority 1": "ab" * 40},
    "set_at": AT,
    "set_by": "ann@lab",
}
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

    do(commands.NewTerm(1, at=AT))
    do(commands.FoundCluster("c1", "h1", RAFT, "f1", at=AT))
    do(commands.AddMember("h2", RAFT, "f2", at=AT))
    do(commands.AddMember("h3", RAFT, "f3", at=AT))
    for host_id in ("h1", "h2", "h3"):
        do(commands.ChangeMember(host_id, at=AT, ledger_version=VERSION))
    for host_id in ("h1", "h2"):
        do(commands.RegisterHost(host_record(host_id, gpus=4), at=AT))
    do(commands.SubmitJobs([job_record(name) for name in ("waits", "placed", "runs", "ends")], at=AT))
    do(commands.SubmitJobs([gang("gang"), gang("gang2")], at=AT))
    for job_id in ("placed", "runs", "ends"):
        gpu = 3 if job_id == "ends" else 0
        token = do(commands.GrantAttempt(job_id, 1, "h1", 1, [gpu], 1, at=AT))["token"]
        if job_id != "placed":
            do(commands.StartAttempt(f"{job_id}.1", token, at=AT))
        if job_id == "ends":
            do(commands.EndAttempt("ends.1", token, "succeeded", at=AT))
    places = [{"host": host, "incarnation": 1, "gpu_indexes": [1]} for host in ("h1", "h2")]
    do(commands.GrantGang("gang", 1, places, (9000, 9100), 1, at=AT))
    do(
        commands.GrantLease(
            "lease1", "s1", "h1", 1, [2], {"gpu_count": 1, "gpu_milli": 100}, pool="p", env={}, term=1, at=AT
        )
    )
    do(commands.AcquireLock("deploy", "o1", 10, at=AT))
    do(commands.AcquireLock("deploy", "o2", 10, at=AT, wait=True))
    do(commands.SetQuota("ann", {"gpu_milli": 1000}, "me", at=AT))
    do(commands.SetSetting("a.b", 1, "me", at=AT))
    do(commands.CreateJoinToken(TOKEN, at=AT))
    do(commands.CreateApiKey(KEY, at=AT))
    do(commands.BeginRecovery("h1", 1, "node_restart", "dry_run", "lost", {"quiet_s": 60}, 6, 1, at=AT))
    do(commands.PublishBundle(bundle(1, "signing"), at=AT))
    do(commands.ReportTrust("h1", "pem", "f1", 1, AT, 1, [1], at=AT))
    do(commands.RequestCertificate("h2", "00", ["10.0.0.1"], at=AT))
    do(commands.PutSchedule(schedule("nightly"), at=AT))
    do(commands.PutSchedule({**schedule("often"), "overlap": "queue"}, at=AT))
    do(commands.RunSchedule("often", at=AT))
    do(commands.PutService(service("chat"), at=AT))
    seen = ledger.services["chat"]["changed"]
    (replica,) = do(commands.AdvanceService("chat", 1, seen, 1, [ledger.services["chat"]["revision"]], [], [], at=AT))[
        "started"
    ]
    do(commands.GrantAttempt(replica, 1, "h1", 1, [], 1, at=AT))
    for graph_id in ("graph", "graph2"):
        do(commands.SubmitGraph(graph(graph_id), at=AT))
    jobs = [release("graph", 0), release("graph", 1)]
    do(commands.AdvanceGraph("graph", 1, jobs, [{"step": 2, "state": "skipped"}], [], [], at=AT))
    token = do(commands.GrantAttempt("graph.0-1", 1, "h1", 1, [], 1, at=AT))["token"]
    results = [{"ok": True, "offset": 0, "size": 9, "took_s": 0.5, "word": True}]
    do(commands.EndAttempt("graph.0-1.1", token, "succeeded", results=results, at=AT))
    do(commands.EndGraph("graph2", 1, "failed", {"code": "StepFailed"}, at=AT))
    do(commands.SubmitJobs([job_record("failed")], at=AT))
    do(commands.CancelJob("failed", "me", at=AT))
    do(
        commands.SubmitJobs(
            [job_record("told", notify=["ops", "mail:ann@example.org"], notify_on=["cancelled"])], at=AT
        )
    )
    do(commands.CancelJob("told", "me", at=AT))
    return ledger


def schedule(name: str) -> Plain:
    job = {"kind": "command", "command": ["true"], "resources": {"gpu_count": 0, "gpu_milli": 0, "cpu_milli": 100}}
    policies = {"overlap": "replace", "missed": "run_all", "missed_max": 3, "paused": False}
    trigger = {"kind": "every", "every_s": 10}
    return {"name": name, "user_id": "ann", "trigger": trigger, "job": job, "made_by": "ann", **policies}


def service(name: str) -> Plain:
    job = {"kind": "command", "command": ["serve", "{port}"], "resources": {"gpu_count": 0, "cpu_milli": 100}}
    serving = {"protocol": "openai", "model": "", "ready_path": "", "ready_body": "", "live_path": "/health"}
    scale = {"min": 0, "max": 3, "concurrency": 8, "idle_s": 900, "drain_s": 120, "strategy": "auto"}
    more = {"serving": {**serving, "start_timeout_s": 300, "preset": ""}, "scale": scale, "made_by": "ann"}
    return {"name": name, "user_id": "ann", "job": job, **more}


def graph(graph_id: str) -> Plain:
    facts = {"files": ["ab" * 32], "steps": 4, "strategy": "time_optimized", "on_failure": "continue"}
    return {"job_id": graph_id, "user_id": "ann", "graph": facts}


def release(graph_id: str, step: int) -> Plain:
    steps = {"graph_id": graph_id, "steps": [[step, 1, 0, 40]], "inputs": [], "order": step}
    return job_record(f"{graph_id}.{step}-1", resources={"gpu_count": 0, "gpu_milli": 0}, step_of=steps)


def _next_action(ledger: Ledger) -> int:
    return (ledger.recoveries.get("h2") or {"number": 0})["number"] + 1


def examples(ledger: Ledger) -> list[Plain]:
    """The commands."""
    token = ledger.allocations["runs.1"]["token"] if "runs.1" in ledger.allocations else [1, 1]
    gang_token = ledger.allocations["gang.1-0"]["token"] if "gang.1-0" in ledger.allocations else [1, 1]
    term, number = ledger.term, ledger.index + 1
    places = [{"host": host, "incarnation": 1, "gpu_indexes": [3]} for host in ("h1", "h2")]
    request = (ledger.trust.get("h2") or {}).get("request") or {"id": 1}
    planned = ledger.schedules.get("often") or {"revision": 1, "due_after": 0}
    told = list(ledger.notices)[:2]
    fence, last = planned["revision"], planned["due_after"]
    served = ledger.services.get("chat") or {"changed": 1, "revision": "0" * 12}
    replica = ledger.allocations.get("chat-1.1") or {"token": [1, 1]}
    other = {**service("chat"), "job": {**service("chat")["job"], "command": ["other"]}}
    made: list[commands.Command] = [
        commands.PutService(service(f"v{number}"), at=AT),
        commands.PutService(other, True, 10, 60, at=AT),
        commands.ScaleService("chat", 1, 4, "ann", at=AT),
        commands.ReportReplica("chat-1.1", replica["token"], "ready", 20_000, "m", "", at=AT),
        commands.AdvanceService(
            "chat", term, served["changed"], 2, [served["revision"]], ["chat-1"], ["chat-1"], problem="none", at=AT
        ),
        commands.RollBackService("chat", "ann", at=AT),
        commands.RemoveService("chat", "ann", at=AT),
        commands.PutSchedule(schedule(f"s{number}"), at=AT),
        commands.PutSchedule({**schedule("nightly"), "missed_max": 5}, True, at=AT),
        commands.RunSchedule("often", "ann", at=AT),
        commands.FireSchedule("often", term, fence, last, last + 20, [last + 10, last + 20], 1, True, at=AT),
        commands.PauseSchedule("nightly", True, "ann", at=AT),
        commands.RemoveSchedule("nightly", "ann", at=AT),
        commands.CancelSteps("graph", [1, 3], "ann", at=AT),
        commands.RetrySteps("graph2", [0], "ann", at=AT),
        commands.SettleNotices([{"notice_id": notice, "failure": "no answer", "tries": 3} for notice in told], at=AT),
        commands.SettleNotices([{"notice_id": "j.1.0", "failure": "", "tries": 1}], at=AT),
        commands.ClearNotices("told", "ann", at=AT),
        commands.NewTerm(term + 1, at=AT, epoch=1),
        commands.RegisterHost(host_record("h1", 1, gpus=4), at=AT),
        commands.RegisterHost(host_record("h9", 1, gpus=1, state="up", rack="r1"), at=AT),
        commands.ConfirmHost("h1", 1, None, at=AT),
        commands.AllowAbsence("h1", 1, 10.0, at=AT),
        commands.LoseHost(
            "h1", 1, (ledger.hosts.get("h1") or {}).get("seen_index", 0), AT, [("runs.1", token)], term, at=AT
        ),
        commands.DrainHost("h2", True, "me", at=AT),
        commands.MeasureHost("h1", 1, {"fdatasync_ms": 1.0, "at": AT}, at=AT),
        commands.SubmitJobs([job_record(f"j{number}", env={"A": "b"}, depends_on=["waits"])], at=AT),
        commands.SubmitJobs([gang(f"g{number}")], at=AT),
        commands.GrantAttempt("waits", 1, "h1", 1, [3], term, at=AT, placement_latency_us=1.0),
        commands.GrantGang("gang2", 1, places, (9000, 9100), term, at=AT, placement_latency_us=1.0),
        commands.StartAttempt("placed.1", ledger.allocations.get("placed.1", {"token": [1, 1]})["token"], at=AT),
        commands.StartAttempt("gang.1-0", gang_token, at=AT),
        commands.EndAttempt("runs.1", token, "failed", at=AT, exit_code=1, error={"code": "TaskFailed"}, retry_at=AT),
        commands.EndAttempt("gang.1-1", gang_token, "lost", at=AT),
        commands.TakeSuccess("runs.1", token, at=AT, exit_code=0),
        commands.PreemptAttempt("runs.1", token, 5.0, "waits", term, at=AT),
        commands.CancelJob("waits", "me", at=AT),
        commands.FailJob("waits", {"code": "TaskFailed", "message": "no"}, at=AT),
        commands.GrantLease(
            f"l{number}",
            "s1",
            "h1",
            1,
            [3],
            {"gpu_count": 1, "gpu_milli": 10},
            pool="p",
            env={"A": "b"},
            term=term,
            at=AT,
        ),
        commands.ReleaseLease("lease1", at=AT),
        commands.AcquireLock("deploy", "o3", 10, at=AT, wait=True),
        commands.RenewLock("deploy", "o1", at=AT),
        commands.ReleaseLock("deploy", "o2", at=AT),
        commands.BreakLock("deploy", "o1", "me", at=AT),
        commands.ExpireLock("deploy", "o1", 0, term, at=AT),
        commands.SetSetting("a.c", {"x": [1, 2]}, "me", at=AT),
        commands.FoundCluster("c2", "h5", RAFT, "f5", at=AT),
        commands.AddMember(f"m{number}", RAFT, "f9", at=AT, rack="r1"),
        commands.ChangeMember("h3", at=AT, addresses=RAFT, fingerprint="f4", votes=True, ledger_version=VERSION),
        commands.ChangeMember("h1", at=AT, site="east"),
        commands.RemoveMember("h3", "me", at=AT, force=True),
        commands.BeginRecovery(
            "h2", _next_action(ledger), "process_restart", "supervisor", "silent", {"silent_s": 6.0}, 1, term, at=AT
        ),
        commands.EndRecovery("h1", 1, "done", "restarted", term, at=AT),
        commands.SetMaintenance("h1", AT + 60.0, "new fans", "me", at=AT),
        commands.PublishBundle(bundle(2, "signing", "waiting"), at=AT),
        commands.ReportTrust("h2", "pem", "f2", 1, AT, 1, [1], at=AT),
        commands.RequestCertificate("h1", "00", ["10.0.0.1"], at=AT),
        commands.IssueCertificate("h2", request["id"], "pem", "f22", at=AT),
        commands.SealAuthority("h1", 2, "f1", "00", at=AT),
        commands.CreateJoinToken({**TOKEN, "id": f"t{number}"}, at=AT),
        commands.RevokeJoinToken("t1", at=AT),
        commands.RedeemJoinToken("t1", f"n{number}", RAFT, f"f{number}", at=AT, rack="r"),
        commands.CreateApiKey({**KEY, "id": f"k{number}"}, at=AT),
        commands.RevokeApiKey("k1", "me", at=AT),
        commands.SetQuota("bob", {"gpu_milli": 5}, "me", at=AT),
        # Later kinds come last: the recording of the version before goes by the places of the others.
        commands.EditJob("waits", 70, max_execution_time_s=9.0, by="me", at=AT),
        commands.RotateGossipKey(ledger.gossip_key.number + 1, term, "ab" * 32, at=AT),
        commands.MarkUnreachable("h1", 1, AT, ["h2", "h3"], term, at=AT),
        commands.RetireOrigins("gone", 3, [[1, 7, 5], [2, 9, 1]], len(ledger.retirements) + 1, 0, "h1", at=AT),
        commands.SubmitGraph(graph(f"graph{number}"), at=AT),
        commands.AdvanceGraph("graph", term, [release("graph", 3)], [], ["graph.1-1"], [], at=AT),
        commands.AdvanceGraph("graph", term, [], [], [], [], cached=[[3, "graph2", 0]]),
        commands.EndGraph("graph", term, "succeeded", at=AT),
        commands.RetryGraph("graph2", "me", at=AT),
        commands.RetryJob("failed", "me", at=AT),
        commands.CheckpointAttempt("runs.1", token, "ab" * 32, number, 100, at=AT),
        commands.EditJob("waits", resources={"cpu_milli": 500}, edits=0, labels={"team": "x", "old": None}, at=AT),
        commands.CreateApiKey(
            {**KEY, "id": f"r{number}", "tenant": "lab", "name": f"n{number}", "last": "abcd"}, at=AT
        ),
        commands.CreateApiKey(
            {**KEY, "id": f"m{number}", "tenant": "lab", "roles": ["user"], "serving": MODEL_KEY}, at=AT
        ),
        commands.PutTenant(f"t{number}", 1000, {"gpu": 1000}, {"gpu:H100": 2000, "jobs_waiting": 9}, True, "me", at=AT),
        commands.RemoveTenant(f"t{number}", "me", at=AT),
        commands.SetSecret(SECRET, at=AT),
        commands.ResealSecret("lab", "hf", AT, {"authority 2": "cd" * 40}, at=AT),
        commands.RemoveSecret("lab", "hf", at=AT),
        commands.ReportAuditHead("h1", 0, "ab" * 32, "note", "key", at=AT),
        commands.ReportAuditHead("h1", number, "cd" * 32, "note", "key", at=AT, anew=True),
    ]
    return [command.to_plain() for command in made]
