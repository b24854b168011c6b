"""Actors of the user's that are called from other hosts of the cluster: real agents, workers and links."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import actorgrid
from actorgrid import user_actor_context
from actorgrid.client.client import Client
from actorgrid.errors import ActorDied, ActorRestarted
from actorgrid.objects import here
from tests.processes import until
from tests.system.agent import closing_all
from tests.system.cluster_host import ClusterHost

pytestmark = pytest.mark.system


@actorgrid.actor(gpus=1, cpus=0.1, max_restarts=3)
class Ledger:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    def note(self, number: int) -> int:
        self.noted.append(number)
        return number

    def all(self) -> list[int]:
        return self.noted

    def large(self, value: Any) -> Any:
        return value + 1

    def home(self) -> tuple[str, int]:
        held = user_actor_context.here
        assert held is not None
        return held.host_id, os.getpid()

    def token(self) -> str:
        return str(actorgrid.current_task().token)

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def save(self) -> list[int]:
        return self.noted

    def load(self, state: list[int]) -> None:
        self.noted = state

    def wait(self, folder: str) -> None:
        Path(folder, "begun").touch()
        until(Path(folder, "go").exists, "the word to go on")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClusterHost, ClusterHost]]:
    folder = tmp_path_factory.mktemp("hosts")
    first, second = (ClusterHost(folder / name, "simulated:1xH100-80GB") for name in ("one", "two"))
    with closing_all((first, second)):
        first.found()
        second.join(first, str(first.token()["token"]))
        until(lambda: len(first.hosts()) == 2, "the cluster has two hosts")
        yield first, second


@pytest.fixture
def client(hosts: tuple[ClusterHost, ClusterHost]) -> Iterator[Client]:
    client = hosts[0].client()
    yield client
    client.close()


def note_many(ledger: Any, first: int, count: int) -> list[int]:
    return [future.result(60) for future in [ledger.note(first + number) for number in range(count)]]


def enlarge(ledger: Any, size: int) -> int:
    total: int = int(ledger.large(np.zeros(size, np.uint8)).result(60).astype(np.int64).sum())
    return total


def test_it_is_called_from_both_hosts_wherever_it_runs(client: Client) -> None:
    ledgers = [Ledger.on(client).create() for _ in range(2)]
    homes = [ledger.home().result(100) for ledger in ledgers]
    assert homes[0][0] != homes[1][0], "one on each host"
    for ledger in ledgers:
        assert note_many(ledger, 0, 500) == list(range(500))
        # Tasks of both hosts: each has taken its CPUs for a while.
        tasks = [client.submit(note_many, ledger, 1000 * each, 300) for each in range(1, 5)]
        for each, task in enumerate(tasks, 1):
            assert task.result(100) == list(range(1000 * each, 1000 * each + 300))
        noted = ledger.all().result(60)
        assert len(noted) == 500 + 4 * 300
        for each in range(1, 5):
            own = [number for number in noted if number // 1000 == each]
            assert own == sorted(own), "the calls of one caller begin in their order"
        assert enlarge(ledger, 3 * 2**20) == 3 * 2**20
        assert client.submit(enlarge, ledger, 2 * 2**20).result(100) == 2 * 2**20
    for ledger in ledgers:
        ledger.stop()


CALLER = """
import sys
sys.path.insert(0, sys.argv[1])
import actorgrid
client = actorgrid.connect(data_dir=sys.argv[2])
found = client.actor("the ledger")
print(found.note(7).result(60), found.all().result(60), flush=True)
for line in sys.stdin:
    try:
        print(found.note(int(line)).result(60), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


def test_its_name_is_found_on_the_other_host_and_its_end_is_told_there(
    hosts: tuple[ClusterHost, ClusterHost], client: Client
) -> None:
    ledger = Ledger.options(name="the ledger").on(client).create()
    ledger.note(1).result(100)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    words = [sys.executable, "-c", CALLER, root, str(hosts[1].data_dir)]
    caller = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert caller.stdin is not None and caller.stdout is not None
    try:
        assert caller.stdout.readline().strip() == "7 [1, 7]"

        def say(number: int) -> str:
            assert caller.stdin is not None and caller.stdout is not None
            print(number, file=caller.stdin, flush=True)
            return caller.stdout.readline().strip()

        os.kill(ledger.home().result(60)[1], signal.SIGKILL)
        assert ledger.all.options(retries=1)().result(60) == []
        until(lambda: say(8) == "8", "the other host has heard of the next incarnation")
        ledger.stop()
        assert say(9) == "ActorDied"
    finally:
        caller.kill()
        caller.communicate()


FAR_CALLS = """
import sys
sys.path.insert(0, sys.argv[1])
import actorgrid
client = actorgrid.connect(data_dir=sys.argv[2])
found = client.actor(sys.argv[3])
for line in sys.stdin:
    futures = [found.wait(sys.argv[4]), *[found.note(number) for number in range(20)]]
    print([type(future.exception(100)).__name__ for future in futures], found.all().result(60), flush=True)
"""


def test_calls_from_another_host_are_begun_once_whatever_breaks(
    hosts: tuple[ClusterHost, ClusterHost], client: Client, tmp_path: Path
) -> None:
    ledgers = {name: Ledger.options(name=name).on(client).create() for name in ("begun once", "another")}
    homes = {name: ledger.home().result(100) for name, ledger in ledgers.items()}
    # One on its creator's host: another would end with the way there.
    name, pid = next((name, pid) for name, (host, pid) in homes.items() if host == ledgers[name]._reference.host_id)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    words = [sys.executable, "-c", FAR_CALLS, root, str(hosts[1].data_dir), name, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdin is not None and caller.stdout is not None
        print(file=caller.stdin, flush=True)
        until((tmp_path / "begun").exists, "the first call has begun")
        for host in hosts:  # their links start again: the calls are under way, and go on over new ones
            os.kill(int(host.pid_of("links") or 0), signal.SIGKILL)
        (tmp_path / "go").touch()
        assert caller.stdout.readline().strip() == f"{['NoneType'] * 21} {list(range(20))}"

        (tmp_path / "go").unlink()
        (tmp_path / "begun").unlink()
        print(file=caller.stdin, flush=True)
        until((tmp_path / "begun").exists, "the first call has begun")
        os.kill(pid, signal.SIGKILL)
        # What had not begun is called of the next incarnation.
        assert caller.stdout.readline().strip() == f"{['ActorRestarted'] + ['NoneType'] * 20} {list(range(20))}"
        caller.stdin.close()


def test_one_on_another_host_than_its_creators_is_begun_again_when_it_was_killed(client: Client) -> None:
    ledgers = [Ledger.options(checkpoint_every=1).on(client).create() for _ in range(2)]
    homes = {ledger: ledger.home().result(100) for ledger in ledgers}
    for ledger, (_, pid) in homes.items():
        ledger.note(4).result(60)
        ledger.checkpoint().result(60)
        killed = ledger.kill()
        assert isinstance(killed.exception(100), ActorRestarted)
        assert ledger.home().result(100)[1] != pid
        assert ledger.all().result(60) == [4], "it goes on from what it had saved"
    client.close()
    for ledger in ledgers:
        with pytest.raises(ActorDied):
            ledger.all().result(60)


def test_one_on_another_host_than_its_creators_outlives_a_break_of_the_way_there(
    hosts: tuple[ClusterHost, ClusterHost], client: Client, tmp_path: Path
) -> None:
    ledgers = [Ledger.options(max_restarts=0).on(client).create() for _ in range(2)]
    homes = [ledger.home().result(100) for ledger in ledgers]
    (away,) = [each for each, (host, _) in enumerate(homes) if host != ledgers[0]._reference.host_id]
    ledger = ledgers[away]
    note_many(ledger, 0, 10)
    for server in ("links", "gateway"):
        waits, behind = ledger.wait(str(tmp_path)), ledger.note(10)
        until((tmp_path / "begun").exists, "the call has begun")
        for host in hosts:
            os.kill(int(host.pid_of(server) or 0), signal.SIGKILL)
        (tmp_path / "go").touch()
        assert (waits.result(100), behind.result(100)) == (None, 10), "calls are answered over the next link"
        assert ledger.home().result(60) == homes[away]
        for name in ("begun", "go"):
            (tmp_path / name).unlink()
    assert ledger.all().result(60) == [*range(10), 10, 10]
    for each in ledgers:
        each.stop()


def kill_all(host: ClusterHost) -> None:
    """End a host without a word, and all that runs on it."""
    victims = host.processes()
    host.kill()
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()


def test_a_client_of_a_lost_host_keeps_no_other_from_actors(client: Client, tmp_path: Path) -> None:
    Ledger.options(detached=True, name="kept").on(client).create().note(1).result(100)
    other = ClusterHost(tmp_path / "other", "simulated:1xH100-80GB")
    with closing_all((other,)):
        lost = other.found().client()
        assert lost.submit(pow, 2, 5).result(100) == 32, "its session is the one that was opened last"
        kill_all(other)
        kept = client.actor("kept")
        assert kept.all().result(100) == [1]
        made = Ledger.on(client).create()
        assert made.note(2).result(100) == 2
        assert client.submit(note_many, made, 0, 3).result(100) == [0, 1, 2]
        for ledger in (kept, made):
            ledger.stop()


def test_a_detached_one_outlives_its_creator_and_its_host(
    hosts: tuple[ClusterHost, ClusterHost], client: Client, tmp_path: Path
) -> None:
    detached = Ledger.options(detached=True, max_isolation_s=3)
    with hosts[0].client() as creator:
        for name in ("first", "second"):
            detached.options(name=name).on(creator).create().note(1).result(100)
        own = here.whereabouts()[1]
    found = {name: client.actor(name) for name in ("first", "second")}
    homes = {name: ledger.home().result(100) for name, ledger in found.items()}
    stays, leaves = sorted(homes, key=lambda name: homes[name][0] != own)
    assert homes[stays][0] == own != homes[leaves][0]
    assert [found[name].all().result(60) for name in found] == [[1], [1]], "their creator is closed"
    found[stays].stop()  # which makes room
    ledger = found[leaves]
    token = ledger.token().result(60)
    waiting, behind = ledger.wait(str(tmp_path)), ledger.note(2)
    until((tmp_path / "begun").exists, "the first call has begun")
    kill_all(hosts[1])
    assert isinstance(waiting.exception(100), ActorRestarted)
    assert isinstance(behind.exception(100), ActorRestarted), "nobody can say whether it had begun"
    assert ledger.home().result(100)[0] == own
    assert ledger.token().result(60) > token
    assert client.actor(leaves).all().result(60) == []
    ledger.stop(force=True)
    with pytest.raises(ActorDied):
        ledger.all().result(60)
