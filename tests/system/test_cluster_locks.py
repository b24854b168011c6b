"""Locks on real hosts: held through the death of the leader, the door, the agent; and what a minority says."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.processes import until
from tests.system.cluster_host import ClusterHost


def holders(host: ClusterHost, name: str) -> list[dict[str, Any]]:
    locks = host.cli_json("lock", "list", name)["locks"]
    return [holder for lock in locks for holder in lock["holders"]]


def error_of(host: ClusterHost, *words: str) -> tuple[int, dict[str, Any]]:
    """How a command fails: its exit code and the error."""
    done = host.cli(*words, check=False)
    assert done.stdout, (words, done.returncode, done.stderr[-2000:])
    return done.returncode, json.loads(done.stdout)["error"]


def test_a_lock_outlives_the_leader_and_the_minority_grants_nothing(
    make_host: Callable[..., ClusterHost], tmp_path: Path
) -> None:
    a, b, c = make_host("a", 1).found(), make_host("b", 1), make_host("c", 1)
    token = a.token("--uses", "2")["token"]
    for host in (b, c):
        host.join(a, token)
    until(lambda: c.roles() == {1: "leader", 2: "voter", 3: "voter"}, "three that vote")
    job = b.submit("--", "sleep", "600")

    # Taken on one, seen on the others, waited for on a third.
    losses: list[Any] = []
    lock = b.client().lock("release", ttl_s=20, on_lost=losses.append)
    mine = lock.acquire()
    until(lambda: [h["owner"] for h in holders(a, "release")] == [lock.owner], "the first host shows it")
    got: list[Any] = []
    waits = c.client().lock("release", ttl_s=20)

    def wait() -> None:
        with waits:
            got.append(waits.token)

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: len(c.client().locks("release")[0]["waiters"]) == 1, "somebody waits")
    a.kill()
    until(lambda: "leader" in [b.roles()[node] for node in (2, 3)], "another leads")
    lock.check()
    (holder,) = holders(c, "release")
    assert (holder["owner"], tuple(holder["token"]), losses, got) == (lock.owner, mine, [], [])
    lock.release()
    waiter.join(60)
    assert got and got[0] > mine

    # One of three is left: it refuses what is new, says why, and shows what there is.
    program = tmp_path / "program.py"
    program.write_text("print('never')\n")
    asked = {
        "run": ("run", "--json", "--", "true"),
        "submit": ("submit", "--json", str(program)),
        "cancel": ("cancel", "--json", job),
        "token": ("token", "create", "--json"),
        "lock": ("lock", "run", "x", "--wait", "0", "--json", "--", "true"),
    }
    paused = c.processes()
    for process in paused:
        process.send_signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(len(asked)) as pool:
            refusals = dict(zip(asked, pool.map(lambda words: error_of(b, *words), asked.values()), strict=True))
    finally:
        for process in paused:
            process.send_signal(signal.SIGCONT)
    assert {name: (code, error["code"]) for name, (code, error) in refusals.items()} == dict.fromkeys(
        refusals, (5, "NoQuorum")
    )
    assert "the side of the majority" in refusals["run"][1]["hint"]
    until(lambda: "leader" in [b.roles()[node] for node in (2, 3)], "two of three go on")
    b.cli("cancel", "--json", job)
    b.cli("lock", "run", "x", "--", "true")


def test_holders_and_the_line_outlive_the_door_and_the_whole_agent(make_host: Callable[..., ClusterHost]) -> None:
    host = make_host("alone", 1)
    host.start()
    lock = host.client().lock("release", ttl_s=60)
    lock.acquire()
    got: list[str] = []

    def wait(name: str, turn: threading.Event) -> None:
        with host.client().lock("release", ttl_s=60):
            got.append(name)
            turn.wait(60)

    turns = {name: threading.Event() for name in ("first", "second")}
    waiters = [threading.Thread(target=wait, args=entry) for entry in turns.items()]
    for count, waiter in enumerate(waiters, 1):
        waiter.start()
        until(lambda count=count: len(host.client().locks("release")[0]["waiters"]) == count, "it waits")
    line = [waiter["owner"] for waiter in host.client().locks("release")[0]["waiters"]]

    def back_in_line() -> bool:
        (found,) = host.cli_json("lock", "list")["locks"]
        return [waiter["owner"] for waiter in found["waiters"]] == line

    gateway = host.pid_of("gateway")
    assert gateway is not None
    os.kill(gateway, signal.SIGKILL)
    until(lambda: host.pid_of("gateway") not in (None, gateway), "another gateway")
    assert back_in_line()
    host.kill()
    host.start()
    assert back_in_line()
    lock.check()
    lock.release()
    until(lambda: got == ["first"], "the first in line has it")
    turns["first"].set()
    until(lambda: got == ["first", "second"], "then the second")
    turns["second"].set()
    for waiter in waiters:
        waiter.join(60)
