"""The version before and this one in one cluster, as real programs: one upgrades into the other while work goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.actors.ledger.command import VERSION
from actorgrid.errors import ActorGridError
from tests.processes import until
from tests.system.agent import write_when_told
from tests.system.cluster_host import ADDRESS, ClusterHost
from tests.system.programs import PRESENT, install, program_before

MakeHost = Callable[..., ClusterHost]
pytestmark = pytest.mark.timeout(600)  # a dozen starts of agents, half of them without compiled kernels


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the version before."""
    return program_before(tmp_path_factory.mktemp("before"))


Form = Callable[..., list[ClusterHost]]


@pytest.fixture
def form(make_host: MakeHost, before: Path, tmp_path: Path) -> Form:
    """Makes three voters of the version before, each with an installation of its own; the first leads."""

    def three(*settings: str) -> list[ClusterHost]:
        hosts = [make_host(name, 1) for name in "abc"]
        for host in hosts:
            host.program = tmp_path / f"installed-{host.data_dir.name}"
            host.settings = list(settings)
            install(before, host.program)
        hosts[0].found()
        token = hosts[0].token("--uses", "2")["token"]
        for host in hosts[1:]:
            host.join(hosts[0], token)
        until(lambda: hosts[0].roles() == {1: "leader", 2: "voter", 3: "voter"}, "three that vote")
        return hosts

    return three


def upgrade(host: ClusterHost) -> None:
    """What is installed there from now on; running processes stay what they are."""
    assert host.program is not None
    install(PRESENT, host.program)


def key_of(host: ClusterHost) -> tuple[str, str]:
    """A key for clients of any host, and the authority's fingerprint."""
    made = host.cli_json("key", "create")
    return made["key"], made["ca_fingerprint"]


@contextmanager
def connected(hosts: list[ClusterHost], key: str, fingerprint: str) -> Iterator[actorgrid.Client]:
    """A client of this version that goes to whichever host answers."""
    urls = ",".join(f"https://{ADDRESS}:{host.base_port + 4}" for host in hosts)
    with actorgrid.connect(urls, token=key, ca_fingerprint=fingerprint) as client:
        yield client


class Submitter:
    """Someone who submits one job after the other, with a client that knows all hosts."""

    def __init__(self, hosts: list[ClusterHost], key: str, fingerprint: str) -> None:
        self.accepted: list[str] = []
        self.refused: list[ActorGridError] = []
        self._over = threading.Event()
        self._work = threading.Thread(target=self._go_on, args=(hosts, key, fingerprint))

    def _go_on(self, hosts: list[ClusterHost], key: str, fingerprint: str) -> None:
        with connected(hosts, key, fingerprint) as client:
            while not self._over.wait(0.2):
                try:
                    job = client.submit_job(command=["/bin/true"], cpus=0.01, retries=2)
                except ActorGridError as refusal:
                    self.refused.append(refusal)
                    return
                self.accepted.append(job["job_id"])

    def __enter__(self) -> Submitter:
        self._work.start()
        return self

    def __exit__(self, *_exit: object) -> None:
        self._over.set()
        self._work.join()

    def more(self) -> None:
        """Wait until three more are accepted: by the cluster as it is now."""
        had = len(self.accepted)
        until(lambda: len(self.accepted) >= had + 3 or self.refused, "jobs are accepted", 60)
        assert not self.refused, self.refused


def commands(host: ClusterHost) -> list[dict[str, Any]]:
    """What the log of a stopped host still has, in order."""
    lines = host.cli("ledger", "dump", "--json", "--limit", "1000000", "--data-dir", str(host.data_dir)).stdout
    found = [json.loads(line) for line in lines.splitlines()]
    return [record["command"] for record in found if "command" in record]


def told(log: list[dict[str, Any]]) -> list[int]:
    """Where in *log* members said which version they know, that being this one."""
    return [
        at for at, each in enumerate(log) if each["type"] == "change_member" and each.get("ledger_version") == VERSION
    ]


def verify_all(hosts: list[ClusterHost]) -> None:
    """The files of all are whole, and those at the same entry hold the same state."""
    digests: dict[int, set[str]] = {}
    for host in hosts:
        found = host.cli_json("ledger", "verify", "--data-dir", str(host.data_dir))
        assert found["ok"] and not found["no_commands"], found
        digests.setdefault(found["last_index"], set()).add(found["digest"]["root"])
    assert all(len(roots) == 1 for roots in digests.values()), digests


def crashes(host: ClusterHost) -> list[str]:
    """Records of its log that say that a server crashed."""
    return [
        line
        for line in (host.data_dir / "agent.log").read_text().splitlines()
        if '"crash"' in line or "CRITICAL" in line
    ]


def test_a_cluster_is_upgraded_host_by_host_while_work_goes_on(form: Form, tmp_path: Path) -> None:
    three = form()
    a, _b, _c = three
    key, fingerprint = key_of(a)
    works = {name: a.submit("--gpus", "1", "--", "/bin/sh", "-c", write_when_told(tmp_path, name)) for name in "xyz"}
    for name in works:
        until(lambda name=name: (tmp_path / f"{name}.started").exists(), f"{name} runs")
    a.cli("state", "put", "model", "7")
    with Submitter(three, key, fingerprint) as submitter, connected(three, key, fingerprint) as client:
        submitter.more()
        with client.lock("upgrade", ttl_s=60) as lock:
            first = lock.token
            for host in three:
                upgrade(host)
            steps = [
                json.loads(line) for line in a.cli("upgrade", "--rolling", "--json", timeout_s=300).stdout.splitlines()
            ]
            assert [step["event"] for step in steps] == ["restarting", "back"] * 3 + ["done"], steps
            submitter.more()
            lock.check()
        with client.lock("upgrade", ttl_s=60) as later:
            assert later.token > first
        for name in works:
            (tmp_path / f"{name}.go").touch()
        for name, job_id in works.items():
            job = client.wait(job_id, 60)
            assert (job["state"], len(job["attempts"])) == ("succeeded", 1), (name, job)
        submitter.more()
    assert a.cli("state", "get", "model").stdout == "7\n"
    with connected(three, key, fingerprint) as client:
        for job_id in submitter.accepted:
            assert client.wait(job_id, 60)["state"] == "succeeded"
    assert [crashes(host) for host in three] == [[], [], []]
    for host in three:
        assert host.stop() == 0
    verify_all(three)
    log = commands(a)
    new = [at for at, each in enumerate(log) if each["v"] > 1]
    assert new and new[0] > told(log)[2], "what only this version knows came after all had told that they know it"


def leader_of(hosts: list[ClusterHost]) -> int:
    """The number of the host that leads, as the first of *hosts* sees it; 0: none."""
    return next((node for node, role in hosts[0].roles().items() if role == "leader"), 0)


def snapshots(host: ClusterHost) -> int:
    """How far its last snapshot goes."""
    found: int = host.cli_json("ledger", "verify", "--data-dir", str(host.data_dir))["snapshots"][-1]
    return found


def test_each_version_leads_the_other_and_a_snapshot_of_the_new_is_read_by_the_old(form: Form, before: Path) -> None:
    a, b, c = three = form("performance.ledger_snapshot_every=20")
    key, fingerprint = key_of(a)
    a.cli("quota", "set", "--waiting", "1000", "ann")

    # The old one leads a new one: what is new is used by nobody, and nothing that the old one knows is refused.
    b.stop()
    upgrade(b)
    b.start()
    until(lambda: b.roles() == {1: "leader", 2: "voter", 3: "voter"}, "the new one follows")
    with Submitter([b], key, fingerprint) as by_new, Submitter([c], key, fingerprint) as by_old:
        by_new.more()
        by_old.more()
        with b.client().lock("seats", ttl_s=60, slots=2), connected([c], key, fingerprint) as client:
            (seats,) = client.locks("seats")
            assert len(seats["holders"]) == 1

    # Two new ones go on without the old one, further than the log is kept.
    c.stop()
    old_end = c.cli_json("ledger", "verify", "--data-dir", str(c.data_dir))["last_index"]
    upgrade(a)
    a.stop()
    a.start()
    until(lambda: leader_of([a]) in (1, 2), "a new one leads")
    with Submitter([a, b], key, fingerprint) as submitter:
        until(lambda: len(submitter.accepted) > 40 or submitter.refused, "many jobs", 120)
        assert not submitter.refused
        until(lambda: snapshots(a) > old_end + 60 and snapshots(b) > old_end + 60, "snapshots behind its end")

        # The old one comes back: it reads a snapshot of the new one, and follows it.
        c.start()
        until(lambda: set(c.roles().values()) == {"leader", "voter"} and leader_of([c]) in (1, 2), "it follows")
        ended = submitter.accepted[0]
        assert c.job(ended)["job_id"] == ended
        submitter.more()
    assert c.ended("--", "true")["state"] == "succeeded"
    assert c.cli_json("quota")["quotas"][0]["limits"]["jobs_waiting"] == 1000

    # It can lead them, too: its log is the longer one when the other two begin.
    b.stop()
    until(lambda: leader_of([c]) in (1, 3), "two of three have a leader", 60)
    assert c.ended("--", "true")["state"] == "succeeded"
    a.stop()
    b.start()
    until(lambda: leader_of([b]) == 3, "the old one leads", 60)
    a.start()
    with Submitter([b], key, fingerprint) as by_new:
        by_new.more()
    assert a.ended("--gpus", "1", "--", "true")["state"] == "succeeded"
    c.stop()
    assert c.cli_json("ledger", "verify", "--data-dir", str(c.data_dir))["first_index"] > old_end, "it had a snapshot"
    upgrade(c)
    c.start()
    until(lambda: len([role for role in c.roles().values() if role in ("leader", "voter")]) == 3, "all are new")
    with connected(three, key, fingerprint) as client, client.lock("seats", ttl_s=60, slots=2):
        assert client.wait(client.submit_job(command=["/bin/true"])["job_id"], 60)["state"] == "succeeded"
    assert [crashes(host) for host in three] == [[], [], []]
    for host in three:
        assert host.stop() == 0
    verify_all(three)
