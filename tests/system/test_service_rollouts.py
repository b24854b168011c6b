"""Rollouts of real services under load: good ones lose nothing, and bad ones go back by themselves at a known price."""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actorgrid.client.client import Client
from actorgrid.client.services import ServiceHandle
from tests.processes import until
from tests.system.agent import Agent
from tests.system.test_services import chat, models_url

SERVER = str(Path(__file__).parents[1] / "serving" / "small_server.py")
FAST: dict[str, Any] = {"cpus": 0.1, "drain_s": 20.0}
SESSIONS = 100


def command(*more: str) -> list[str]:
    return [sys.executable, SERVER, "{port}", *more]


@pytest.fixture
def client(shared_agent: Agent) -> Client:
    return shared_agent.client()


class Load:
    """Clients of a hundred sessions that ask a model again and again."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.said: Counter[str] = Counter()
        """What the answers said, and the statuses of those that were none."""
        self.failed_sessions: set[int] = set()

    def ask(self, session: int) -> None:
        """Ask once."""
        body = {"model": self._model, "messages": [{"role": "user", "content": "how are you"}]}
        headers = {"content-type": "application/json", "x-session-id": f"s{session}"}
        request = urllib.request.Request(f"{self._url}/chat/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                said = str(json.loads(reply.read())["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            with error:
                said = str(error.code)
        with self._lock:
            self.said[said] += 1
            if said.isdecimal():
                self.failed_sessions.add(session)

    def ask_on(self, first: int) -> None:
        """Ask until it is stopped, as one session after the other."""
        session = first
        while not self._stop.is_set():
            self.ask(session % SESSIONS)
            session += 7

    @property
    def failed(self) -> int:
        """How many got no answer."""
        return sum(count for said, count in self.said.items() if said.isdecimal())

    @contextmanager
    def runs(self, clients: int) -> Iterator[None]:
        """While it lasts, so many ask."""
        threads = [threading.Thread(target=self.ask_on, args=(number * 13,)) for number in range(clients)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in threads:
                each.join()


def is_over(service: ServiceHandle) -> bool:
    seen = service.look()
    return seen["rollout"] is None and len(seen["replicas"]) == seen["ready"] == seen["target"]


def test_good_and_dying_revisions_lose_no_request_under_load(client: Client) -> None:
    service = client.serve("busy", command("--say", "one"), replicas=2, **FAST)
    service.wait_ready(60)
    load = Load(models_url(client), "busy")
    with load.runs(6):
        client.serve("busy", command("--say", "two"), replicas=2, replace=True, **FAST)
        until(lambda: is_over(service), "it is exchanged", 120)
        client.serve("busy", command("--die"), replicas=2, replace=True, **FAST)
        until(lambda: is_over(service), "it is given up", 120)
    assert load.failed == 0, load.said
    assert load.said.keys() == {"one", "two"}
    assert service.look()["revisions"][-1]["outcome"] == "failed"
    service.remove()


@pytest.mark.parametrize(("fault", "told"), [("--fail-clients", "requests failed"), ("--slow-clients", "first byte")])
def test_a_canary_that_answers_badly_goes_back_and_costs_its_sessions_alone(
    client: Client, fault: str, told: str
) -> None:
    name = f"canary{fault[1:5]}"
    service = client.serve(name, command("--say", "one"), replicas=2, **FAST)
    service.wait_ready(60)
    before = service.look()["revision"]
    load = Load(models_url(client), name)
    with load.runs(12):
        until(lambda: load.said["one"] >= 150, "the old one has a name", 60)
        # It answers whoever asks whether it is ready, and clients badly.
        bad = command("--say", "two", fault)
        client.serve(name, bad, replicas=2, replace=True, canary=20, canary_s=600.0, **FAST)
        until(lambda: service.look()["rollout"] is None, "it goes back by itself", 120)
    seen = service.look()
    assert seen["revision"] == before and told in seen["last_rollout"], seen["last_rollout"]
    bad_answers = load.failed + load.said["two"]
    assert 0 < bad_answers < 0.5 * load.said.total(), load.said
    if fault == "--fail-clients":
        # The same sessions each time: 20 of 100, and binomially hardly ever 40.
        assert 0 < len(load.failed_sessions) < 40, load.failed_sessions
    else:
        assert not load.failed
    until(lambda: is_over(service), "the old serve again", 60)
    after = Load(models_url(client), name)
    for session in range(SESSIONS):
        after.ask(session)
    assert after.said == {"one": SESSIONS}
    service.remove()


@pytest.mark.timeout(400)
def test_requests_that_come_while_there_is_nobody_are_all_answered_and_it_goes_back_to_none(client: Client) -> None:
    service = client.serve("asleep", command("--start-s", "1"), replicas=(0, 1), idle_s=3.0, **FAST)
    service.wait_ready(60)
    url = models_url(client)
    assert chat(url, "asleep")["choices"]

    def is_asleep() -> bool:
        seen = service.look()
        return seen["target"] == 0 and not seen["replicas"]

    until(is_asleep, "nobody asks: it has none", 150)
    load = Load(url, "asleep")
    threads = [threading.Thread(target=load.ask, args=(session,)) for session in range(40)]
    began = time.monotonic()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    print(f"40 requests waited for one replica, {time.monotonic() - began:.1f} s at most")
    assert load.said == {"hello": 40}
    until(is_asleep, "it has none again", 150)
    service.remove()
