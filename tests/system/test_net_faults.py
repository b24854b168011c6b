"""Five hosts with real links, disks and power switches; clients that go on while these fail.

make soak                                                  minutes, a new seed each time
NET_ROUNDS=3 NET_SEED=7 make soak      as many rounds, and with the dice, of your choice
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.processes import until
from tests.system import net_scenarios
from tests.system.net_checks import check_logs, explain, no_violation, one_leader_a_term
from tests.system.net_hosts import NetCluster
from tests.system.net_scenarios import GPUS_A_HOST, Scenario
from tests.system.net_wires import missing
from tests.system.net_work import Work, unfinished

HOSTS = 5
SETTINGS = (
    "work.max_isolation_s=3",
    "work.kill_grace_s=0.5",
    "work.pools.general.warm=0",
    "scheduling.retry_backoff_s=0.1",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetCluster]:
    if reason := missing():
        pytest.skip(f"{reason} (actorgrid chaos run has the same faults on simulated hosts)")
    made = NetCluster(tmp_path_factory.mktemp("net"), HOSTS, SETTINGS, GPUS_A_HOST)
    try:
        yield made.form()
    finally:
        made.close()


def suffer(cluster: NetCluster, scenario: Scenario, seed: int) -> None:
    """A fault while clients work; afterwards nothing is lost, twice or out of order."""
    work = Work([cluster[number] for number in (1, 3, 5)], cluster.folder / f"work-{scenario.__name__}-{seed}", seed)
    try:
        scenario(cluster, random.Random(seed))
    finally:
        work.end()
    told = work.told
    left = list(told.accepted)

    def all_ended() -> bool:
        left[:] = unfinished(cluster[2], left)
        return not left

    try:
        until(all_ended, "every accepted job has ended", within_s=60.0)
    except AssertionError as error:
        raise AssertionError(f"{error}; left: {unfinished(cluster[2], left)}; {told.summary()}") from None
    no_violation(work.folder)
    decided = explain(told.history)
    print(f"{scenario.__name__}, seed {seed}: {told.summary()}{'' if decided else '; too many calls for a verdict'}")
    hosts = list(cluster.hosts.values())
    one_leader_a_term(hosts)
    state = check_logs(hosts)
    forgotten = [job_id for job_id in told.accepted if job_id not in state.jobs]
    assert not forgotten, f"accepted, and in nobody's log: {forgotten}"


@pytest.mark.root
@pytest.mark.parametrize(
    "scenario",
    [net_scenarios.halves, net_scenarios.leader_crashes, net_scenarios.host_stands_still],
    ids=lambda scenario: scenario.__name__,
)
def test_nothing_is_lost_or_given_twice(cluster: NetCluster, scenario: Scenario) -> None:
    suffer(cluster, scenario, seed=1)
