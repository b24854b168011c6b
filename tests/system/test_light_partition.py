"""A set of shards on three hosts whose cables are pulled: who is told what, and who has the names. Needs root.

``tests/light/test_cut_links.py`` has the same over sockets of one process, for every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.errors import ActorGridError
from tests.processes import until
from tests.system.hold import lines
from tests.system.light_kinds import Contenders
from tests.system.net_hosts import SMALL, NetCluster, NetHost, formed

pytestmark = [pytest.mark.system, pytest.mark.root]

HOSTS = 3
PATIENCE_S = 8.0
ISOLATION_S = 40.0
"""Longer than it takes a busy machine to break the links by patience, and to link them again."""
NAMES = [f"wanted {n}" for n in range(12)]
WAIT_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetCluster]:
    twin = "tests/light/test_cut_links.py has the same over cut sockets"
    with formed(tmp_path_factory.mktemp("net"), HOSTS, SMALL, twin) as made:
        yield made


class Side:
    """A client of one host, used from within its namespace."""

    def __init__(self, host: NetHost) -> None:
        self.host = host
        self.client: Client = host.inside(lambda: actorgrid.connect(data_dir=host.data_dir))

    def begin(self, folder: Path) -> None:
        def start() -> None:
            self.client.start_shards(
                *("split", HOSTS, Contenders, NAMES, str(folder)),
                patience_s=PATIENCE_S, gpus=1, cpus=0.1, max_isolation_s=ISOLATION_S,
            )  # fmt: skip

        self.host.inside(start)

    def layout(self) -> list[dict[str, Any]]:
        def look() -> list[dict[str, Any]]:
            try:
                return self.client.shards("split").layout(5.0)
            except ActorGridError:
                return []

        return self.host.inside(look)

    def job_of(self, slot: int) -> str:
        return self.host.inside(lambda: str(self.client.shards("split")._shard(slot)._reference.job_id))

    def held(self, slot: int) -> list[str]:
        def ask() -> list[str]:
            try:
                return list(self.client.shards("split").call(f"contender_{slot}", "held"))
            except ActorGridError:
                return []

        return self.host.inside(ask)

    def close(self) -> None:
        self.host.inside(self.client.close)


def whole(side: Side) -> list[dict[str, Any]]:
    """The layout once all are linked with all, and each name is somebody's."""

    def look() -> list[dict[str, Any]] | None:
        found = side.layout()
        linked = [each["linked"] for each in found] == [[n for n in range(HOSTS) if n != slot] for slot in range(HOSTS)]
        held = sorted(name for slot in range(HOSTS) for name in side.held(slot))
        return found if linked and held == sorted(NAMES) else None

    try:
        found: list[dict[str, Any]] = until(look, "all shards are linked, and hold all names", WAIT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; {side.layout()}; {[side.held(slot) for slot in range(HOSTS)]}") from None
    return found


def pairs(notes: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    return Counter((each["by"], each["of"]) for each in notes)


def test_both_sides_hear_noconnection_names_are_fenced_and_one_wins_when_it_heals(
    cluster: NetCluster, tmp_path: Path
) -> None:
    leader = cluster.leader()
    cut_off = next(number for number in cluster.hosts if number != leader)
    side = Side(cluster[leader])
    try:
        side.begin(tmp_path)
        first = whole(side)
        assert len({each["host_id"] for each in first}) == HOSTS
        by_host = {each["host_id"]: each for each in first}
        victim = by_host[host_id_of(cluster[cut_off])]
        slot = victim["slot"]
        job_id = side.job_of(slot)
        assert workers_of(cluster[cut_off], job_id)
        others = [n for n in range(HOSTS) if n != slot]
        over = {(slot, other) for other in others} | {(other, slot) for other in others}
        until(lambda: len(pairs(lines(tmp_path, "watches"))) == HOSTS * (HOSTS - 1), "each watches each")
        assert lines(tmp_path, "downs") == []

        # A short one: the links break, and nobody's lease has ended.
        cluster.wires.part({cut_off})
        until(lambda: set(pairs(lines(tmp_path, "downs"))) == over, "both sides are told", WAIT_S)
        cluster.wires.heal()
        second = whole(side)
        downs = lines(tmp_path, "downs")
        assert pairs(downs) == dict.fromkeys(over, 1) and {each["kind"] for each in downs} == {"noconnection"}
        assert [each["token"] for each in second] == [each["token"] for each in first]

        # A long one: the shard that is cut off ends with its lease, and is begun again when its host is back.
        cluster.wires.part({cut_off})
        until(lambda: not workers_of(cluster[cut_off], job_id), "its lease is over, and so is it", WAIT_S + ISOLATION_S)
        cluster.wires.heal()
        third = whole(side)
        assert third[slot]["token"] > first[slot]["token"]
        assert [third[n]["token"] for n in others] == [first[n]["token"] for n in others]
    finally:
        side.close()
    for name in NAMES:
        notes = sorted((each for each in lines(tmp_path, "holds") if each["what"] == name), key=lambda each: each["at"])
        holders = [holder for holder, _ in groupby((each["by"], *each["token"]) for each in notes)]
        assert len(holders) == len(set(holders)), f"{name} went back to who had lost it: {holders}"
        assert holders, name


def workers_of(host: NetHost, job_id: str) -> list[int]:
    """The processes on that host whose titles name the job: those of its attempts."""
    found = []
    for pid in host.wires.pids(host.number):
        with suppress(OSError):  # it has ended
            if job_id.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def host_id_of(host: NetHost) -> str:
    here: str = host.ask("GET", "/api/members")["here"]
    return here
