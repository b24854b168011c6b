"""Names of hosts' earlier starts go from the shared state of three real hosts, and what they wrote stays.

The simulated twins, with all faults: tests/replication/test_churn.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from actorgrid.client.find import locate
from actorgrid.client.http import AdminHttp
from actorgrid.errors import ActorGridError
from tests.processes import until
from tests.system.agent import closing_all
from tests.system.cluster_host import ClusterHost

QUIET_S = 5
SETTINGS = ("work.pools.general.warm=0", f"state.retire_after_s={QUIET_S}", "state.retire_starts=256")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClusterHost]]:
    folder = tmp_path_factory.mktemp("retirement")
    hosts = [ClusterHost(folder / name, "simulated:1xH100-80GB") for name in "abc"]
    with closing_all(hosts):
        for host in hosts:
            host.settings += SETTINGS
        hosts[0].found()
        token = hosts[0].token("--uses", "2")["token"]
        for host in hosts[1:]:
            host.join(hosts[0], token)
        yield hosts


def ask(host: ClusterHost, method: str, path: str, body: Any = None) -> Any:
    with closing(AdminHttp(*locate(host.data_dir), retry_s=10.0)) as door:
        return door.request(method, path, body=body)


def change(host: ClusterHost, key: str, kind: str, operation: str, value: Any = None, **more: Any) -> None:
    ask(host, "POST", f"/api/state/{key}", {"type": kind, "operation": operation, "value": value, **more})


def status(host: ClusterHost) -> dict[str, Any]:
    found: dict[str, Any] = ask(host, "GET", "/api/inspect/distributed_state")["inspect"]["status"]
    return found


class Writes:
    """What all hosts wrote, as one value for each key: nobody writes to a field or element that another one takes."""

    def __init__(self) -> None:
        self.hits = self.net = 0
        self.tags: set[str] = set()
        self.fields: dict[str, int] = {}

    def write(self, name: str, host: ClusterHost, number: int) -> None:
        """A change of each type; from the second on with removals of what an earlier start of the host had added."""
        self.count(host, number)
        change(host, "r/net", "pn_counter", "decrement" if number % 2 else "increment", number)
        change(host, "r/tags", "or_set", "add", f"{name}{number}")
        change(host, "r/fields", "or_map", "put_field", number, field=name)
        self.net += -number if number % 2 else number
        self.tags.add(f"{name}{number}")
        self.fields[name] = number
        if (gone := f"{name}{number - 1}") in self.tags:
            change(host, "r/tags", "or_set", "remove", gone)
            self.tags.discard(gone)

    def count(self, host: ClusterHost, number: int) -> None:
        """One increment."""
        change(host, "r/hits", "g_counter", "increment", number)
        self.hits += number

    def shown(self, host: ClusterHost) -> bool:
        """Whether the host shows just that."""
        try:
            found = {key: ask(host, "GET", f"/api/state/r/{key}")["value"] for key in ("hits", "net", "tags", "fields")}
        except ActorGridError:
            return False
        tags, fields = sorted(self.tags), self.fields
        return found == {"hits": self.hits, "net": self.net, "tags": tags, "fields": fields}


def start_again(hosts: Sequence[ClusterHost]) -> None:
    """All of them lose power at once, and come back together: a majority may be needed before one is ready."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(ClusterHost.kill, hosts))
        list(pool.map(ClusterHost.start, hosts))


def test_names_of_starts_go_and_what_they_wrote_stays(three: list[ClusterHost]) -> None:
    writes, away = Writes(), three[2]
    names = dict(zip("abc", three, strict=True))

    def write(number: int, *who: str) -> None:
        for name in who:
            writes.write(name, names[name], number)

    def agree(*hosts: ClusterHost) -> None:
        until(lambda: all(map(writes.shown, hosts)), "they show all that was written", within_s=60)

    for number in (1, 2):
        write(number, *names)
        agree(*three)
        start_again(three)
    write(3, *names)
    agree(*three)

    # What a member told counts though it is away now, until the level of what it told is no more that of the others.
    def told() -> bool:
        found = [status(host) for host in three[:2]]
        return all(one["rounds"] > QUIET_S + 3 and set(one["peers"].values()) == {"equal"} for one in found)

    until(told, "both hosts have heard of all others what they hold", within_s=60)
    assert all(one["origins"] >= 9 and one["retired"]["level"] == 0 for one in map(status, three))
    away.kill()
    three[0].cli("config", "set", "state.retire_starts", "2")

    def retired(hosts: Sequence[ClusterHost], count: int) -> bool:
        found = [status(host)["retired"] for host in hosts]
        return all((one["hosts"], one["level"]) == (count, one["level_of_the_ledger"]) for one in found)

    until(lambda: retired(three[:2], 1), "the names of one of both are gone", within_s=60)
    agree(*three[:2])
    write(4, "a", "b")
    agree(*three[:2])

    # Who was away carries it out, gets what it missed, and its own names go.
    away.start()
    agree(*three)
    write(4, "c")
    until(lambda: retired(three, 3), "the names of all are gone", within_s=60)
    agree(*three)
    until(lambda: [status(host)["origins"] for host in three] == [3] * 3, "each host has one name", within_s=60)
    shown = three[1].cli_json("inspect", "distributed_state")["inspect"]["status"]["retired"]
    assert shown["hosts"] == 3 and shown["level"] == shown["level_of_the_ledger"] >= 3 and shown["due"] == {}

    # A disk that is empty comes to the same level by the states of others.
    lost = three[1]
    lost.kill()
    shutil.rmtree(lost.data_dir / "state")
    write(5, "a", "c")
    lost.start()
    writes.count(lost, 100)  # perhaps before it has heard anything of what was
    until(lambda: retired(three, 3), "it is at the level of the others", within_s=60)
    agree(*three)
    write(5, "b")
    agree(*three)
