"""Six real hosts at three sites, 80 ms there and back between: votes, shared state, a watch, a site cut off, one lost.

The simulated twins are the scenarios ``site_...`` and ``state_site_...`` of ``actorgrid chaos gossip``.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from actorgrid.client.state import SharedState
from actorgrid.errors import ActorGridError
from tests.processes import until
from tests.system.agent import closing_all
from tests.system.net_hosts import NetCluster
from tests.system.net_scenarios import refuses, runs
from tests.system.net_wires import missing
from tests.system.site_lines import SiteLines

SITES = {"east": [1, 2], "north": [3, 4], "west": [5, 6]}
SITE_OF = {number: site for site, numbers in SITES.items() for number in numbers}
HOSTS = len(SITE_OF)
DELAY_S = 0.04
SETTINGS = (
    "performance.min_free_bytes=1MiB",
    "performance.reserve_bytes=1MiB",
    "work.pools.general.warm=0",
)


class SitedCluster(NetCluster):
    """The hosts, and the lines between their sites."""

    lines: SiteLines

    def form(self) -> SitedCluster:
        """All of them up, and votes spread."""
        self.lines = SiteLines(self.wires, SITES, DELAY_S)
        for number, host in self.hosts.items():
            host.settings = [*host.settings, f"cluster.site={SITE_OF[number]}"]
        first, *others = self.hosts.values()
        first.found()
        token = first.ask("POST", "/api/tokens", {"uses": len(others)})["token"]
        for host in others:
            host.join(first, token)
        self.spread()
        return self

    def votes(self, asked: int) -> Counter[str]:
        """Voters by site, as that host says."""
        return Counter(SITE_OF[node] for node, (role, _) in self[asked].view().items() if role in ("leader", "voter"))

    def sites(self) -> dict[int, str | None]:
        """The site of each host, by its number, as the last one says."""
        return {each["node"]: each["site"] for each in self[HOSTS].ask("GET", "/api/hosts")["hosts"]}

    def spread(self) -> None:
        """Wait until all said their sites, five vote, no more than two at a site, and all hosts are well."""

        def good() -> bool:
            view = self[1].view()
            return (
                sorted(self.votes(1).values()) == [1, 2, 2]
                and self.sites() == SITE_OF
                and all(health == "healthy" for _, health in view.values())
            )

        try:
            until(good, "votes are spread over the sites", within_s=120.0)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self[1].view()}") from None

    def close(self) -> None:
        """Hosts first: they say farewell over the lines."""
        with closing_all(self.hosts.values()):
            pass
        self.lines.close()
        self.wires.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SitedCluster]:
    if reason := missing():
        pytest.skip(f"{reason} (actorgrid chaos gossip plays sites on simulated hosts)")
    made = SitedCluster(tmp_path_factory.mktemp("sites"), HOSTS, SETTINGS)
    try:
        made.form()
        yield made
    finally:
        made.close()


def change(cluster: NetCluster, number: int, key: str, **body: Any) -> Any:
    return cluster[number].ask("POST", f"/api/state/{key}", body)["value"]


def increment(cluster: NetCluster, number: int, key: str, amount: int = 1) -> Any:
    return change(cluster, number, key, type="g_counter", operation="increment", value=amount)


def shown(cluster: NetCluster, key: str) -> list[Any]:
    def value(number: int) -> Any:
        try:
            return cluster[number].ask("GET", f"/api/state/{key}")["value"]
        except ActorGridError:
            return None

    return [value(number) for number in cluster.hosts]


def test_hosts_and_status_show_the_sites_and_no_site_has_half_of_the_votes(cluster: SitedCluster) -> None:
    assert cluster.sites() == SITE_OF
    sites = cluster[4].ask("GET", "/api/cluster")["sites"]
    assert {name: each["hosts"] for name, each in sites.items()} == dict.fromkeys(SITES, 2)
    assert sorted(each["voters"] for each in sites.values()) == [1, 2, 2]


def test_a_counter_converges_over_the_lines_and_a_watch_afar_sees_a_put(cluster: SitedCluster) -> None:
    for number in cluster.hosts:
        increment(cluster, number, "hits", 10**number)
    until(lambda: shown(cluster, "hits") == [1_111_110] * HOSTS, "one counter at all sites")
    seen: list[Any] = []
    listening, heard = threading.Event(), threading.Event()

    def watch() -> None:
        with closing(cluster[6].http()) as door:
            for entry in SharedState(door).watch("watched/", initial=True):
                seen.append(entry["value"])
                listening.set()
                if entry["value"] == "second":
                    heard.set()
                    return

    change(cluster, 6, "watched/key", value="first")
    waiting = cluster[6]._inside.submit(watch)
    assert listening.wait(30)
    until(lambda: shown(cluster, "watched/key") == ["first"] * HOSTS, "all have the first")
    began = time.monotonic()
    change(cluster, 1, "watched/key", value="second")
    assert heard.wait(30)
    print(f"a put at east was seen at west after {time.monotonic() - began:.3f} s")
    waiting.result(30)
    assert seen[-1] == "second"


def test_a_site_that_is_cut_off_goes_on_with_the_state_and_the_others_with_the_ledger(cluster: SitedCluster) -> None:
    increment(cluster, 1, "cut", 1)
    until(lambda: shown(cluster, "cut") == [1] * HOSTS, "all have it")
    cluster.lines.cut_off("west")
    try:
        until(lambda: cluster.leader() not in SITES["west"], "the others have a leader", within_s=60.0)
        runs(cluster[3], "majority")
        refuses(cluster[5])
        for number in cluster.hosts:
            increment(cluster, number, "cut", 10**number)
        until(lambda: shown(cluster, "cut") == [11_111] * 4 + [1_100_001] * 2, "each side has its own")
    finally:
        cluster.lines.heal()
    until(lambda: shown(cluster, "cut") == [1_111_111] * HOSTS, "one counter again", within_s=60)
    cluster.spread()


def test_the_ledger_goes_on_when_the_site_of_its_leader_is_lost(cluster: SitedCluster) -> None:
    leader = cluster.leader()
    lost = SITES[SITE_OF[leader]]
    for number in lost:
        cluster[number].crash()
    left = [number for number in cluster.hosts if number not in lost]
    runs(cluster[left[0]], "after-a-site")
    increment(cluster, left[0], "after", 5)
    until(lambda: [each for each in shown(cluster, "after") if each] == [5] * len(left), "both sites have it")
    cluster.start(lost)
    until(lambda: shown(cluster, "after") == [5] * HOSTS, "the lost site has it too", within_s=60)
    cluster.spread()
