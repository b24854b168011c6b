"""Client histories on five real hosts: what was acknowledged, shown and held in the end is possible, by type.

Partitions, 30 % of frames lost, a killed server and clocks an hour off, back and forward, all while clients write. The
oracle and what it catches: tests/replication.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from actorgrid.client.state import SharedState
from actorgrid.errors import ActorGridError, CallTimeout, HostUnreachable, NotReplicated, UnknownKey
from tests.processes import until
from tests.replication.history_oracle import (
    OK,
    REFUSED,
    UNKNOWN,
    Operation,
    check_counter,
    check_register,
    check_set,
)
from tests.system.net_hosts import SMALL, NetCluster, formed

HOSTS = 5
STEPS = 240
"""Operations of each host's client."""
COUNTER, SET, REGISTER = "h/counter", "h/set", "h/register"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetCluster]:
    twin = "tests/replication has the same faults on simulated hosts"
    with formed(tmp_path_factory.mktemp("histories"), HOSTS, SMALL, twin) as made:
        yield made


class Histories:
    """What all clients did, in one list."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._lock = threading.Lock()

    def do(self, host: int, key: str, name: str, value: Any, call: Any) -> None:
        """One operation; of a read the value is what came."""
        began, outcome = time.monotonic(), OK
        try:
            found = call()
            value = found if name == "read" else value
        except (HostUnreachable, CallTimeout):
            outcome = UNKNOWN
        except NotReplicated:
            outcome = OK  # too few have it in time: it stays
        except UnknownKey:
            outcome = REFUSED
        except ActorGridError as error:
            # A server that died under it may have done it before.
            outcome = UNKNOWN if error.http_status >= 500 else REFUSED
        done = Operation(host, key, name, value, began, time.monotonic(), outcome)
        with self._lock:
            self.operations.append(done)

    def of(self, key: str) -> list[Operation]:
        return [one for one in self.operations if one.key == key and not (one.name == "read" and one.outcome != OK)]


def client(cluster: NetCluster, host: int, histories: Histories, seed: int, go_on: threading.Event) -> None:
    dice = random.Random(seed)
    with closing(cluster[host].http(retry_s=5.0)) as door:
        state = SharedState(door)
        for step in range(STEPS):
            if step == STEPS // 2:
                assert go_on.wait(300), "the faults began"
            durability: Any = "majority" if dice.random() < 0.1 else "host"
            how = {"durability": durability, "within_s": 0.3}
            match dice.randrange(8):
                case 0 | 1:
                    by = dice.randint(1, 9)
                    histories.do(host, COUNTER, "add", by, lambda by=by, how=how: state.increment(COUNTER, by, **how))
                case 2:
                    histories.do(host, COUNTER, "read", 0, lambda: state.get(COUNTER, 0))
                case 3:
                    item = f"e{dice.randrange(8)}"
                    histories.do(host, SET, "add", item, lambda i=item, how=how: state.add_to_set(SET, i, **how))
                case 4:
                    item = f"e{dice.randrange(8)}"
                    histories.do(
                        host, SET, "remove", item, lambda i=item, how=how: state.remove_from_set(SET, i, **how)
                    )
                case 5:
                    histories.do(host, SET, "read", [], lambda: state.get(SET, []))
                case 6:
                    value = f"{host}.{step}"
                    histories.do(host, REGISTER, "put", value, lambda v=value, how=how: state.put(REGISTER, v, **how))
                case 7:
                    histories.do(host, REGISTER, "read", None, lambda: state.get(REGISTER, None))


def finals(cluster: NetCluster) -> list[tuple[Any, ...]]:
    def value(number: int, key: str) -> Any:
        try:
            return cluster[number].ask("GET", f"/api/state/{key}")["value"]
        except ActorGridError:
            return None

    return [tuple(value(number, key) for key in (COUNTER, SET, REGISTER)) for number in range(1, HOSTS + 1)]


def test_histories_of_clients_are_possible(cluster: NetCluster) -> None:
    histories, go_on = Histories(), threading.Event()
    seed = int(os.environ.get("ACTORGRID_TEST_SEED", "7"))
    clients = [
        cluster[host]._inside.submit(client, cluster, host, histories, seed + host, go_on)
        for host in range(1, HOSTS + 1)
    ]

    def reached(count: int) -> None:
        until(lambda: len(histories.operations) >= count, f"{count} operations", within_s=120)

    everybody = range(1, HOSTS + 1)
    try:
        cluster.wires.part([1, 2])
        reached(HOSTS * STEPS // 4)
        cluster.wires.heal()
        cluster.wires.drop(everybody, everybody, percent=30)
        if cluster.clocks:
            cluster[4].step_clock(-3600.0)
            cluster[2].step_clock(3600.0)
        reached(HOSTS * STEPS // 2 - HOSTS)
        go_on.set()
        cluster.wires.part([3, 4])
        for number in range(1, 6):
            reached(HOSTS * STEPS // 2 + number * HOSTS * STEPS // 12)
            for host in (3, 5):
                pid = cluster[host].pid_of("distributed_state")
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
        for one in clients:
            one.result(240)
    finally:
        go_on.set()
        cluster.wires.heal()
        if cluster.clocks:
            cluster[4].step_clock(0.0)
            cluster[2].step_clock(0.0)
    until(lambda: len({repr(one) for one in finals(cluster)}) == 1, "all hosts hold the same", within_s=120)
    counter, members, register = finals(cluster)[0]
    done = histories.operations
    assert len(done) == HOSTS * STEPS
    outcomes = {outcome: sum(one.outcome == outcome for one in done) for outcome in (OK, UNKNOWN, REFUSED)}
    print(f"seed {seed}: {outcomes}")
    assert outcomes[OK] > HOSTS * STEPS // 2
    problems = [
        *check_counter(histories.of(COUNTER), counter or 0),
        *check_set(histories.of(SET), members or []),
        *check_register(histories.of(REGISTER), register),
    ]
    assert not problems, problems[:10]
    lost = sum(one.value for one in histories.of(COUNTER) if one.name == "add" and one.outcome == OK) + 1
    assert check_counter(histories.of(COUNTER), (counter or 0) - lost), "a lost count would have been noticed"
