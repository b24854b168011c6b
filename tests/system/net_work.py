"""What clients do with a cluster of hosts while it suffers, and what they were told.

Registers: a user's quota is swapped by several clients at once, each value used once; a swap answers the value it
replaced. So the answers are a history of one register, to be explained by an order of the calls. Locks: acquired and
given back by the same clients, and forgotten by some, so that their leases end. Jobs: each holds its devices in a way
the kernel accounts for (``hold.py``), in a folder that all hosts share.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from actorgrid.chaos.checkers.linearizability import UNKNOWN, Operation
from actorgrid.errors import ActorGridError, LockHeld, NotFound
from tests.system import hold
from tests.system.net_hosts import Clients, NetHost

ASK_S = 4.0
"""A client that has heard nothing for so long calls it unknown and goes on."""
HOLD = Path(hold.__file__)


class Told:
    """What all clients together were told; for threads."""

    def __init__(self) -> None:
        self.swaps: list[Operation] = []
        self.locks: list[Operation] = []
        self.accepted: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, history: list[Operation], operation: Operation) -> None:
        """One call of ``swaps`` or ``locks``."""
        with self._lock:
            history.append(operation)

    def accept(self, job_id: str, host: int) -> None:
        """A host said that it has the job."""
        with self._lock:
            self.accepted[job_id] = host

    def count(self, name: str) -> None:
        """Something happened once more."""
        with self._lock:
            self.counts[name] += 1

    def summary(self) -> str:
        """In one line."""
        return ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))


class Work:
    """Clients on some hosts; ``end`` waits for their last answers."""

    def __init__(self, hosts: list[NetHost], folder: Path, seed: int) -> None:
        self.told = Told()
        self.folder = folder
        self._seed = seed
        self._clients = Clients()
        self._values = itertools.count(1)
        folder.mkdir(exist_ok=True)
        for host in hosts:
            self._clients.begin(host.namespace, lambda host=host: self._swap(host))
            self._clients.begin(host.namespace, lambda host=host: self._lock(host))
            self._clients.begin(host.namespace, lambda host=host: self._submit(host))

    def end(self) -> None:
        """No more calls."""
        self._clients.end()

    # -- registers

    def _swap(self, host: NetHost) -> None:
        dice = random.Random(f"{self._seed}-swap-{host.number}")
        while not self._clients.over.is_set():
            self._swap_once(host, f"{self.folder.name}.{dice.randrange(2)}")
            self._clients.over.wait(dice.uniform(0.01, 0.1))

    def _swap_once(self, host: NetHost, key: str) -> None:
        value = next(self._values)
        answer: Any = UNKNOWN
        called_us = _now_us()
        try:
            with closing(host.http(ASK_S, 0.0)) as door:
                # Sent once: the second of two equal swaps would answer its own value.
                said = door.request("PUT", f"/api/quotas/{key}", body={"jobs_waiting": value}, repeat=False)
            before = said["previous"]
            answer = None if before is None else before["jobs_waiting"]
            self.told.count("swaps")
        except ActorGridError as error:
            self.told.count(f"swap {error.code}")
        returned_us = None if answer is UNKNOWN else _now_us()
        swap = Operation(key, ("swap", value), answer, called_us, returned_us, str(host.number))
        self.told.note(self.told.swaps, swap)
        if answer is UNKNOWN:
            self._clients.over.wait(0.5)  # calls that may have taken effect at any time make the search long

    # -- locks

    def _lock(self, host: NetHost) -> None:
        dice = random.Random(f"{self._seed}-locks-{host.number}")
        while not self._clients.over.is_set():
            # Another lock every two seconds: calls of unknown end stay few for each.
            name = f"{self.folder.name}.{time.monotonic_ns() // 2_000_000_000}"
            held = self._lock_once(host, name, "acquire")
            self._clients.over.wait(dice.uniform(0.01, 0.1))
            if held is not False:
                self._lock_once(host, name, "release")
            if dice.random() < 0.1:
                self._forget(host, f"{self.folder.name}.forgotten")
            self._clients.over.wait(dice.uniform(0.01, 0.1))

    def _lock_once(self, host: NetHost, name: str, verb: str) -> bool | None:
        owner = f"h{host.number}"
        called_us = _now_us()
        answer: Any = UNKNOWN
        body = {"owner": owner, **({"ttl_s": 600} if verb == "acquire" else {})}
        try:
            with closing(host.http(ASK_S, 0.0)) as door:
                said = door.post(f"/api/locks/{name}/{verb}", body)
            answer = bool(said["held" if verb == "acquire" else "released"])
        except LockHeld:
            answer = False
        except ActorGridError as error:
            self.told.count(f"lock {error.code}")
        else:
            self.told.count("locks")
        returned_us = None if answer is UNKNOWN else _now_us()
        self.told.note(
            self.told.locks, Operation(name, (f"{verb}_lock", owner, 1), answer, called_us, returned_us, owner)
        )
        if answer is not UNKNOWN:
            return bool(answer)
        if verb == "acquire":
            # A host that finds its client gone gives up for it.
            gave_up = Operation(name, ("release_lock", owner, 1), UNKNOWN, called_us, None, owner)
            self.told.note(self.told.locks, gave_up)
        self._clients.over.wait(0.5)
        return None

    def _forget(self, host: NetHost, name: str) -> None:
        """Take a short lease, or a place in line for a moment, and never come back to it."""
        try:
            with closing(host.http(ASK_S, 0.0)) as door:
                door.post(f"/api/locks/{name}/acquire", {"owner": f"h{host.number}", "ttl_s": 1.0, "wait_s": 0.2})
        except ActorGridError as error:
            self.told.count(f"forget {error.code}")

    # -- jobs

    def _submit(self, host: NetHost) -> None:
        dice = random.Random(f"{self._seed}-jobs-{host.number}")
        for number in itertools.count(1):
            if self._clients.over.is_set():
                return
            gpus = dice.choice([0, 0.25, 0.5, 1])
            plan = {
                "milli": int(1000 * gpus),
                "gpu_count": 1 if gpus else 0,
                "lasts_s": round(dice.choice([0.0, 0.2, 1.0]), 2),
                "fails": 0,
            }
            command = [sys.executable, "-I", "-S", str(HOLD), str(self.folder), json.dumps(plan)]
            # Of this folder: a job of an earlier scenario must not be taken for a repeated one of this.
            request = {
                "task_id": f"{self.folder.name}-h{host.number}-{number}",
                "gpus": gpus,
                "cpus": 0.05,
                "retries": 20,
            }
            self._accepted(host, {**request, "command": command, "cwd": str(self.folder)})
            self._clients.over.wait(dice.uniform(0.2, 0.8))

    def _accepted(self, host: NetHost, request: dict[str, Any]) -> None:
        """Ask until it is: with the same id it stays one job."""
        while not self._clients.over.is_set():
            try:
                with closing(host.http(ASK_S, 0.0)) as door:
                    door.post("/api/jobs", request)
            except ActorGridError as error:
                self.told.count(f"submit {error.code}")
                self._clients.over.wait(0.5)
            else:
                self.told.accept(request["task_id"], host.number)
                self.told.count("jobs")
                return


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def unfinished(host: NetHost, job_ids: list[str]) -> dict[str, str]:
    """Those of *job_ids* that have not succeeded, as *host* knows them."""
    found = {}
    for job_id in job_ids:
        try:
            state = host.job(job_id)["state"]
        except NotFound:
            state = "not known"
        if state != "succeeded":
            found[job_id] = state
    return found
