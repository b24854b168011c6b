"""Services on real hosts: replicas of a real server, killed, wedged, exchanged for others, and for broken ones."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from actorgrid.client.client import Client
from actorgrid.client.services import ServiceHandle
from actorgrid.errors import UnknownService, WrongState
from tests.processes import until
from tests.system.agent import Agent
from tests.system.cluster_host import ClusterHost, Two

SERVER = str(Path(__file__).parents[1] / "serving" / "small_server.py")
FAST: dict[str, Any] = {"cpus": 0.1, "drain_s": 10.0}


def command(*more: str) -> list[str]:
    return [sys.executable, SERVER, "{port}", *more]


@pytest.fixture
def client(shared_agent: Agent) -> Client:
    return shared_agent.client()


def ask(port: int, path: str = "/", body: object = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=10) as reply:
        return dict(json.loads(reply.read()))


def ready(service: ServiceHandle) -> list[dict[str, Any]]:
    return [each for each in service.look()["replicas"] if each["state"] == "ready"]


def test_replicas_answer_at_their_ports_and_what_dies_or_wedges_is_made_anew(client: Client) -> None:
    service = client.serve("small", command(), replicas=2, **FAST)
    service.wait_ready(60)
    first, second = ready(service)
    pids = {each["job_id"]: ask(each["port"])["pid"] for each in (first, second)}
    assert first["model"] == "small" and len({*pids.values(), first["port"], second["port"]}) == 4
    assert client.job(first["job_id"])["labels"]["service"] == "small"
    os.kill(pids[first["job_id"]], signal.SIGKILL)
    until(lambda: first["job_id"] not in [each["job_id"] for each in service.look()["replicas"]], "it is gone", 30)
    until(lambda: len(ready(service)) == 2, "another answers", 60)
    assert second["job_id"] in [each["job_id"] for each in ready(service)], "the other went on"
    ended = service.look()["ended"][-1]
    assert ended["job_id"] == first["job_id"] and not ended["asked"]
    # Its port is open, and nobody answers there any more.
    ask(second["port"], "/wedge", {})
    until(lambda: second["job_id"] not in [each["job_id"] for each in ready(service)], "it counts as unwell", 60)
    until(lambda: len(ready(service)) == 2, "another has come for it", 90)
    service.remove()  # they finish what they have first

    def is_gone() -> bool:
        try:
            assert service.look()["state"] == "removing"
        except UnknownService:
            return True
        return False

    until(is_gone, "it is removed", 60)
    until(lambda: not client.jobs("running", labels={"service": "small"}), "its replicas end", 30)


def test_a_rollout_exchanges_all_and_a_broken_one_goes_back(client: Client) -> None:
    service = client.serve("rolled", command("--say", "one"), replicas=2, **FAST)
    service.wait_ready(60)
    before = service.look()["revision"]
    with pytest.raises(WrongState, match="rollout"):
        client.serve("rolled", command("--say", "two"), **FAST)
    client.serve("rolled", command("--say", "two"), replicas=2, replace=True, **FAST)
    fewest = 2

    def rolled() -> bool:
        nonlocal fewest
        seen = service.look()
        fewest = min(fewest, seen["ready"])
        return seen["rollout"] is None and len(seen["replicas"]) == 2

    until(rolled, "it is exchanged", 90)
    assert fewest == 2, "never fewer than there are to be"
    assert {ask(each["port"])["say"] for each in ready(service)} == {"two"}
    after = service.look()["revision"]
    assert after != before
    client.serve("rolled", command("--die"), replicas=2, replace=True, **FAST)
    until(lambda: service.look()["rollout"] is None, "it is given up", 90)
    seen = service.look()
    assert seen["revision"] == after and seen["ready"] == 2
    assert seen["revisions"][-1]["outcome"] == "failed" and "status 1" in seen["last_rollout"]
    assert service.rollback()["rollout"]["to"] == before
    until(lambda: {ask(each["port"])["say"] for each in ready(service)} == {"one"}, "the first serves again", 90)
    service.remove()


def test_one_that_never_starts_is_told_by_why_and_tried_ever_more_seldom(shared_agent: Agent, client: Client) -> None:
    service = client.serve("broken", command("--die"), **FAST)
    until(lambda: service.look()["state"] == "failing", "it fails", 60)
    told = service.why()
    assert "end by themselves" in told["headline"] and any("logs" in step for step in told["next_steps"])
    assert "end by themselves" in shared_agent.cli("why", "broken").stdout
    logs = shared_agent.cli("logs", "broken")
    assert "cannot be loaded" in logs.stderr
    service.remove()


def test_the_command_line_serves_shows_scales_and_removes(shared_agent: Agent, tmp_path: Path) -> None:
    cli = shared_agent.cli
    served = cli("serve", "site", "--protocol", "http", "--cpus", "0.1", "--replicas", "1:3", "--", *command())
    assert served.stdout.startswith("site: revision ")
    until(lambda: json.loads(cli("services", "site", "--json").stdout)["state"] == "ready", "it answers", 60)
    assert "site" in cli("services").stdout and "1:3" in cli("services").stdout
    assert "2 replicas" in cli("scale", "site", "2").stdout
    until(lambda: json.loads(cli("services", "site", "--json").stdout)["ready"] == 2, "two answer", 60)
    shown = cli("services", "site").stdout
    assert "site-1" in shown and "ready" in shown and "2 of 2 answer" in shown
    logs = cli("logs", "site")
    assert "==> site-1 <==" in logs.stderr and "serving at" in logs.stdout
    assert "2 of 2 replicas answer" in cli("why", "site").stdout
    wrong = cli("services", "sity", check=False)
    assert wrong.returncode == 4 and "did you mean site" in wrong.stderr
    refused = cli("serve", "site", "--retries", "2", "--", "true", check=False)
    assert refused.returncode == 2 and "goes on" in refused.stderr
    # Only what is said changes: the command stays.
    rolled = json.loads(cli("rollout", "site", "--env", "A=b", "--json").stdout)
    newest = rolled["service"]["revisions"][-1]
    assert newest["job"]["command"] == command() and newest["serving"]["protocol"] == "http"
    assert "serves on" in cli("rollback", "site").stdout
    file = tmp_path / "service.yaml"
    file.write_text(f"name: filed\nprotocol: http\nreplicas: 1\ncpus: 0.1\ncommand: {json.dumps(command())}\n")
    assert "filed: revision" in cli("serve", "--file", str(file)).stdout
    file.write_text("name: filed\nreplica: 1\n")
    wrong = cli("serve", "--file", str(file), check=False)
    assert wrong.returncode == 2 and "did you mean replicas" in wrong.stderr
    assert "removed" in cli("services", "rm", "site", "filed").stdout


def test_a_rollout_of_one_thing_keeps_the_directory_that_was_sent(
    shared_agent: Agent, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "word.txt").write_text("beside")
    program = f'exec {sys.executable} {SERVER} {{port}} --say "$(cat word.txt) $MORE"'
    usual = ("--cpus", "0.1", "--protocol", "http", "--working-dir", str(tmp_path))
    shared_agent.cli("serve", "sent", *usual, "--", "sh", "-c", program)
    service = client.find_service("sent")
    service.wait_ready(60)
    assert ask(ready(service)[0]["port"])["say"] == "beside "
    shared_agent.cli("rollout", "sent", "--env", "MORE=more")
    until(lambda: service.look()["rollout"] is None, "it is exchanged", 90)
    assert service.look()["last_rollout"].endswith("serves")
    assert ask(ready(service)[0]["port"])["say"] == "beside more"
    service.remove(now=True)


def test_a_host_and_the_leader_are_lost_and_a_rollout_goes_on(make_host: Callable[[str, int], ClusterHost]) -> None:
    first = make_host("a", 1).found()
    hosts = [first, *(make_host(name, 1).join(first, first.token()["token"]) for name in ("b", "c"))]
    clients = [host.client() for host in hosts]
    until(lambda: all(host["raft_role"] != "learner" for host in clients[0].hosts()), "all vote")
    # A GPU each: one replica on each host.
    service = clients[0].serve("far", command("--say", "one"), replicas=2, gpus=1, max_isolation_s=3, **FAST)
    service.wait_ready(90)
    assert len({each["host"] for each in ready(service)}) == 2
    by_id = {json.loads((host.data_dir / "host.json").read_text())["host_id"]: host for host in hosts}
    leader = next(host["node_id"] for host in clients[0].hosts() if host["raft_role"] == "leader")
    clients[0].serve("far", command("--say", "two"), replicas=2, gpus=1, max_isolation_s=3, replace=True, **FAST)
    until(lambda: any(each["revision"] != service.look()["revision"] for each in service.look()["replicas"]), "it goes")
    killed = by_id[leader]
    killed.kill()
    left = next(client for client, host in zip(clients, hosts, strict=True) if host is not killed)
    service = left.find_service("far")

    def rolled() -> bool:
        seen = service.look()
        return seen["rollout"] is None and seen["ready"] == 2 and len(seen["replicas"]) == 2

    until(rolled, "the next leader has led it to its end, on the hosts that are left", 180)
    assert {each["host"] for each in ready(service)}.isdisjoint({leader})
    assert {ask(each["port"])["say"] for each in ready(service)} == {"two"}


def chat(url: str, model: str, timeout_s: float = 30.0, key: str = "") -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        return dict(json.loads(reply.read()))


def models_url(client: Client) -> str:
    return str(until(lambda: client.http.get("/api/services")["url"], "the model gateway serves", 60))


def test_requests_go_to_what_answers_and_a_service_goes_to_none_and_comes_back(client: Client) -> None:
    service = client.serve("talk", command(), replicas=(0, 2), idle_s=3.0, **FAST)
    service.wait_ready(60)
    url = models_url(client)
    assert chat(url, "talk")["choices"][0]["message"]["content"] == "hello"
    until(lambda: service.look()["target"] == 0 and not service.look()["replicas"], "nobody asks: it has none", 150)
    assert service.look()["state"] == "idle"
    # This request itself brings a replica, and waits for it.
    assert chat(url, "talk", 60.0)["choices"][0]["message"]["content"] == "hello"
    assert service.look()["target"] == 1
    service.remove()


def test_what_cannot_be_placed_answers_503_with_what_why_says(client: Client) -> None:
    # No host has so many CPUs free: the whole of them is asked for twice.
    cpus = client.hosts()[0]["cpu_milli"] / 1000
    taken = client.serve("taken", command(), cpus=cpus, drain_s=5.0)
    taken.wait_ready(60)
    short = client.serve("short", command(), cpus=cpus, drain_s=5.0)
    told = until(lambda: short.look()["problem"], "it is known why it has no place", 60)
    assert "cpu" in told.lower()
    with pytest.raises(urllib.error.HTTPError) as refused:
        chat(models_url(client), "short", 30.0)
    with refused.value as error:
        assert error.code == 503 and told[:40] in error.read().decode()
    for each in (short, taken):
        each.remove()


def test_no_request_fails_while_replicas_are_exchanged_or_killed(client: Client) -> None:
    service = client.serve("steady", command("--say", "one"), replicas=2, **FAST)
    service.wait_ready(60)
    url = models_url(client)
    said: set[str] = set()
    client.serve("steady", command("--say", "two"), replicas=2, replace=True, **FAST)
    count = 0

    def rolled() -> bool:
        nonlocal count
        for _ in range(20):
            said.add(chat(url, "steady")["choices"][0]["message"]["content"])
            count += 1
        seen = service.look()
        return seen["rollout"] is None and len(seen["replicas"]) == 2

    until(rolled, "it is exchanged under load", 90)
    assert said == {"one", "two"} and count >= 40
    (first, _) = ready(service)
    os.kill(ask(first["port"])["pid"], signal.SIGKILL)
    for _ in range(100):
        assert chat(url, "steady")["choices"][0]["message"]["content"] == "two"
    until(lambda: len(ready(service)) == 2, "another has come for it", 60)
    service.remove()


def test_any_host_answers_for_a_replica_of_another_and_its_loss_is_not_seen(two: Two) -> None:
    first, second = two
    client, far = second.client(), first.client()
    # Only the second host has such GPUs.
    service = client.serve("far", command(), replicas=2, gpus=1, gpu_models=["A100-40GB"], **FAST)
    service.wait_ready(90)
    assert len({each["host"] for each in ready(service)}) == 1
    key = far.http.post("/api/keys", {"user_id": "ann"})["key"]
    url = models_url(far)
    assert url != models_url(client)

    def answers() -> bool:
        try:
            return bool(chat(url, "far", key=key)["choices"])
        except urllib.error.HTTPError as error:
            with error:
                assert error.code == 503, error.read()
            return False  # it has not heard yet of the replicas there

    until(answers, "the other host's replicas answer here", 30)
    with pytest.raises(urllib.error.HTTPError) as refused:
        chat(url, "far")
    with refused.value as error:
        assert error.code == 401
    os.kill(ask(ready(service)[0]["port"])["pid"], signal.SIGKILL)
    for _ in range(50):
        assert chat(url, "far", key=key)["choices"]
    until(lambda: len(ready(service)) == 2, "another has come for it", 60)
    service.remove()


def test_without_a_majority_gateways_and_replicas_go_on_for_as_long_as_work_may(
    make_host: Callable[[str, int], ClusterHost],
) -> None:
    first = make_host("a", 1).found()
    hosts = [first, *(make_host(name, 1).join(first, first.token()["token"]) for name in ("b", "c"))]
    clients = [host.client() for host in hosts]
    until(lambda: all(host["raft_role"] != "learner" for host in clients[0].hosts()), "all vote")
    # A GPU each: one replica on each host.
    service = clients[0].serve("firm", command("--say", "on"), replicas=3, gpus=1, max_isolation_s=60, **FAST)
    service.wait_ready(90)
    key = clients[0].http.post("/api/keys", {"user_id": "ann"})["key"]
    url = models_url(clients[2])
    answers = 0

    def told() -> bool:
        try:
            return bool(chat(url, "firm", key=key)["choices"])
        except urllib.error.HTTPError as error:
            with error:
                assert error.code in (401, 503), error.read()
            return False  # it has not heard of the key, or of the replicas

    until(told, "the last host's gateway knows the service", 30)
    pids = [ask(each["port"])["pid"] for each in ready(service)]
    for host in hosts[:2]:
        host.kill()
    until(lambda: "leader" not in hosts[2].roles().values(), "nobody leads", 60)
    for _ in range(60):
        answers += chat(url, "firm", key=key)["choices"][0]["message"]["content"] == "on"
    assert answers == 60
    for pid in pids:  # of hosts that do not come back: they would go on for their minute
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
