"""Writes KIND.tar.xz, a data directory as the version before left it, and KIND.json, what is in it.

It is run *with* the version before, here that of commit 4f70b8a:

    git archive 4f70b8a | tar -x -C TREE
    env -i PATH=/usr/bin:/bin PYTHONSAFEPATH=1 PYTHONPATH=TREE PYTHON tests/system/version_before/make.py KIND FOLDER

KIND is ``alone`` or ``founded``: that host began a cluster, so it has an authority, keys and tokens as well. Its end is
a power cut: every process of it is killed while a job runs, jobs wait and locks are held. Its jobs are commands that
every machine has, and it holds no name or path of the machine that made it.
"""

from __future__ import annotations

import json
import operator
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from time import time
from typing import Any

import psutil

import actorgrid
from actorgrid.client.find import locate
from actorgrid.client.http import AdminHttp
from tests.processes import is_alive, until

WORK = Path("/tmp/actorgrid-version-before")
PORT = 17_400
SETTINGS = ("performance.ledger_snapshot_every=40", "cluster.host_name=before")
NOT_KEPT = ("agent.lock", "agent.json", "agent.log", "reserve")
TEN_YEARS = "3650d"
DAY_S = 86_400.0


def agent(data_dir: Path, kind: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    where = ["--data-dir", str(data_dir), "--port", str(PORT), "--gpus", "2xH100-80GB"]
    if kind == "founded":
        where += ["--listen", "127.0.0.1"]
    flags = [part for setting in SETTINGS for part in ("--set", setting)]
    program = [sys.executable, "-m", "actorgrid", "up", "--json", *where, *flags]
    process = subprocess.Popen(program, stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def cut_power(process: subprocess.Popen[bytes]) -> None:
    """Kill every process of the host, work included, before any of them can write that another is gone."""
    root = psutil.Process(process.pid)
    tree = [root, *root.children(recursive=True)]
    for each in tree:
        each.suspend()
    tree = [root, *root.children(recursive=True)]
    for each in tree:
        each.kill()
    process.wait()
    until(lambda: not any(is_alive(each.pid) for each in tree), "nothing of the host lives")


class Maker:
    """A host of the version before, and what is done on it."""

    def __init__(self, data_dir: Path, kind: str) -> None:
        self.data_dir = data_dir
        self.process, self.ready = agent(data_dir, kind)
        self.client = actorgrid.connect(data_dir=data_dir)
        self.http = AdminHttp(*locate(data_dir))

    def cli(self, *arguments: str, **environment: str) -> Any:
        program = [sys.executable, "-m", "actorgrid", *arguments]
        env = {**os.environ, "ACTORGRID_DATA_DIR": str(self.data_dir), **environment}
        done = subprocess.run(program, stdout=subprocess.PIPE, env=env, cwd="/", check=True)
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    def submit(self, name: str, *options: str, **environment: str) -> str:
        """A job by its name; what follows ``--`` in *options* is its command."""
        made = self.cli("run", "--detach", "--json", "--name", name, "--cwd", "/", *options, **environment)
        return str(made["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/api/jobs/{job_id}")
        return found

    def ended(self, name: str, *options: str) -> str:
        job_id = self.submit(name, *options)
        until(lambda: self.job(job_id)["state"] in ("succeeded", "failed", "cancelled", "lost"), name)
        return job_id


def fill(host: Maker, mark: Path) -> dict[str, Any]:
    """Do a little of everything; returns what has to be found again."""
    state = host.client.state
    state.put("model", {"name": "llama", "layers": [1, 2]})
    state.put("either", "left", type="mv_register")
    state.increment("served", 41)
    state.decrement("served", 1)
    state.increment("grown", 3, type="g_counter")
    for item in ("a", "b", "c"):
        state.add_to_set("hosts", item)
    state.remove_from_set("hosts", "b")
    state.put_field("settings", "rate", 0.5)
    state.enable("open")

    host.cli("config", "set", "scheduling.queue_max", "54321")
    host.cli("config", "set", "work.max_isolation_s", "2")
    host.cli("quota", "set", "--gpus", "1", "--waiting", "7", "ann")
    host.cli("quota", "set", "--memory", "64GiB", "*")

    jobs = {
        "good": host.ended("good", "--gpus", "0.5", "--", "/bin/sh", "-c", "echo said; echo complained >&2"),
        "bad": host.ended("bad", "--retries", "1", "--", "/bin/sh", "-c", "exit 3"),
        "slow": host.ended("slow", "--timeout", "0.2", "--", "/bin/sleep", "300"),
        "gang": host.ended("gang", "--gang", "2", "--gpus", "1", "--", "/bin/sh", "-c", "echo rank $RANK"),
    }
    function = host.client.submit(operator.add, 40, 2, durable=True)
    assert function.result(60) == 42
    jobs["function"] = function.job_id
    # Both GPUs are taken by work that ends at once where nobody keeps it; what comes behind it waits.
    keeps = f"test -e {mark} && exec sleep 300; echo again"
    jobs["running"] = host.submit("running", "--gpus", "2", "--retries", "1", "--", "/bin/sh", "-c", keeps)
    until(lambda: host.job(jobs["running"])["state"] == "running", "the job that the power cut meets")
    jobs["waiting"] = host.submit("waiting", "--gpus", "1", "--max-isolation", "1", "--", "/bin/echo", "waited")
    small = ("--gpus", "0.25", "--gpu-memory", "4GiB", "--priority", "70")
    jobs["shares"] = host.submit("shares", *small, "--", "/bin/true")
    jobs["members"] = host.submit("members", "--gang", "2", "--gpus", "1", "--", "/bin/true")
    behind = ("--after", jobs["waiting"], "--env", "KEY=value")
    jobs["after"] = host.submit("after", *behind, "--", "/bin/sh", "-c", "echo $KEY")
    jobs["never"] = host.submit("never", "--gpus", "1", "--", "/bin/true")
    host.cli("cancel", jobs["never"])
    jobs["anns"] = host.submit("anns", "--gpus", "1", "--", "/bin/true", LOGNAME="ann")

    def take(name: str, owner: str, slots: int = 1, wait_s: float = 0.0) -> dict[str, Any]:
        body = {"owner": owner, "ttl_s": DAY_S, "slots": slots, "wait_s": wait_s, "stay": True, "user_id": "ann"}
        answer: dict[str, Any] = host.http.post(f"/api/locks/{name}/acquire", body)
        return answer

    first = take("nightly", "owner-1")
    host.http.post("/api/locks/nightly/release", {"owner": "owner-1", "token": first["token"]})
    held = take("nightly", "owner-2")
    line = take("nightly", "owner-3")
    seats = [take("licences", f"seat-{number}", slots=2) for number in range(2)]
    assert held["held"] and not line["held"] and all(seat["held"] for seat in seats)
    return {
        "jobs": {name: {"job_id": job_id, **kept(host.job(job_id))} for name, job_id in jobs.items()},
        "state": {entry["key"]: [entry["type"], entry["value"]] for entry in state.list()},
        "locks": {"nightly": held["token"], "licences": [seat["token"] for seat in seats], "released": first["token"]},
        "quotas": host.cli("quota", "--json"),
        "settings": {"scheduling.queue_max": 54321},
        "host_id": json.loads((host.data_dir / "host.json").read_text())["host_id"],
    }


def let_in(host: Maker) -> dict[str, Any]:
    """What lets others into a cluster."""
    key = host.cli("key", "create", "--json", "--user", "ann", "--ttl", TEN_YEARS)
    revoked = host.cli("key", "create", "--json", "--user", "bob", "--ttl", TEN_YEARS)
    host.cli("key", "revoke", revoked["id"])
    token = host.cli("token", "create", "--json", "--ttl", "30d")
    return {"cluster_id": host.ready["cluster_id"], "key": key, "revoked": revoked, "token": token, "made_at": time()}


def kept(job: dict[str, Any]) -> dict[str, Any]:
    """Of a job's record, what every later version has to say as well."""
    same = ("name", "user_id", "kind", "command", "priority", "env", "resources", "depends_on", "ordinal", "state")
    return {name: job[name] for name in same} | {"attempts": len(job["attempts"]), "error": job["error"]}


def main(kind: str, folder: Path) -> None:
    WORK.mkdir(mode=0o700)
    mark = WORK / "kept"
    mark.touch()
    host = Maker(WORK / "data", kind)
    try:
        expected = fill(host, mark)
        if kind == "founded":
            expected |= let_in(host)
    finally:
        cut_power(host.process)
    expected["verify"] = host.cli("ledger", "verify", "--json", "--data-dir", str(host.data_dir))
    (folder / f"{kind}.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    with tarfile.open(folder / f"{kind}.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(host.data_dir.rglob("*")):
            if path.name not in NOT_KEPT:
                archive.add(path, path.relative_to(host.data_dir), recursive=False, filter=of_nobody)
    shutil.rmtree(WORK)
    # Clients of a host that is gone have nothing to give back.
    sys.stdout.flush()
    os._exit(0)


def of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
