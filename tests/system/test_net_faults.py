"""Five hosts with real links, disks and power switches; clients that go on while these fail.

make soak                                                  minutes, a new seed each time
NET_ROUNDS=3 NET_SEED=7 make soak      as many rounds, and with the dice, of your choice
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from actorgrid.chaos.simulator.scenario import find
from tests.processes import until
from tests.system import hold, net_scenarios
from tests.system.net_checks import check_logs, explain, no_violation, one_leader_a_term
from tests.system.net_hosts import SMALL, NetCluster, Standstill, formed
from tests.system.net_scenarios import GPUS_A_HOST, Scenario, clocks_step
from tests.system.net_work import Work, unfinished

HOSTS = 5
ISOLATION_S = 3.0
SETTINGS = (
    *SMALL,
    "performance.ledger_segment_bytes=4MiB",
    f"work.max_isolation_s={ISOLATION_S}",
    "work.kill_grace_s=0.5",
    "scheduling.retry_backoff_s=0.1",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetCluster]:
    twin = "actorgrid chaos run has the same faults on simulated hosts"
    with formed(tmp_path_factory.mktemp("net"), HOSTS, SETTINGS, twin, GPUS_A_HOST) as made:
        yield made


def play(cluster: NetCluster, scenario: Scenario, seed: int) -> None:
    """The scenario, where this machine has what it takes."""
    if scenario is clocks_step and not cluster.clocks:
        pytest.skip("a clock that steps is a small library in C: needs a compiler")
    suffer(cluster, scenario, seed)


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
    no_violation(work.folder, ISOLATION_S, [each for host in cluster.hosts.values() for each in host.standstills])
    decided = explain(told)
    print(f"{scenario.__name__}, seed {seed}: {told.summary()}{'' if decided else '; too many calls for a verdict'}")
    hosts = list(cluster.hosts.values())
    one_leader_a_term(hosts)

    def forgotten() -> list[str]:
        state = check_logs(hosts)
        return [job_id for job_id in told.accepted if job_id not in state.jobs]

    # What is committed is marked so in a log a little later: with the next write of the host's state.
    until(lambda: not forgotten(), "all that was accepted is in the hosts' logs as committed", within_s=20.0)


@pytest.mark.root
@pytest.mark.parametrize("scenario", net_scenarios.QUICK, ids=lambda scenario: scenario.__name__)
def test_nothing_is_lost_or_given_twice(cluster: NetCluster, scenario: Scenario) -> None:
    play(cluster, scenario, seed=1)


def test_every_fault_of_real_hosts_is_simulated_too() -> None:
    table = (Path(__file__).parents[2] / "docs/chaos.md").read_text(encoding="utf-8")
    for scenario, simulated in net_scenarios.SIMULATED.items():
        assert find(simulated).says
        row = next(line for line in table.splitlines() if line.startswith("|") and f"`{scenario.__name__}`" in line)
        assert f"`{simulated}`" in row


@pytest.mark.parametrize(
    ("at", "other", "excused"),
    [
        (103.1, "j.1", True),
        (109.0, "j.1", True),
        (110.5, "j.1", True),
        (102.0, "j.1", False),  # its lease was good
        (112.0, "j.1", False),  # it should have been ended
        (105.0, "j.2", False),  # it was elsewhere
        (105.0, "", False),
    ],
)
def test_only_what_is_over_on_a_host_that_stands_still_is_no_second_attempt(
    tmp_path: Path, at: float, other: str, excused: bool
) -> None:
    (tmp_path / "attempts" / "j.1").mkdir(parents=True)
    told = {"at": at, "what": "two attempts at once", "who": "j.3", "other": other}
    (tmp_path / "violations").write_text(json.dumps(told) + "\n")
    with nullcontext() if excused else pytest.raises(AssertionError, match="two attempts"):
        no_violation(tmp_path, 3.0, [Standstill(tmp_path / "attempts", 100.0, 110.0)])


def test_a_standstill_excuses_nothing_on_a_device(tmp_path: Path) -> None:
    (tmp_path / "attempts" / "j.1").mkdir(parents=True)
    hold.note(str(tmp_path), "violations", what="overcommit", who="j.3", device="d")
    with pytest.raises(AssertionError, match="overcommit"):
        no_violation(tmp_path, 3.0, [Standstill(tmp_path / "attempts", 0.0)])


@pytest.mark.root
@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_nothing_is_lost_or_given_twice_in_many_rounds(cluster: NetCluster) -> None:
    seed = int(os.environ.get("NET_SEED") or random.SystemRandom().randrange(10**6))
    rounds = int(os.environ.get("NET_ROUNDS", "30"))
    print(f"replay: NET_ROUNDS={rounds} NET_SEED={seed} make soak", flush=True)
    dice = random.Random(seed)
    for number in range(rounds):
        scenario = dice.choice([each for each in net_scenarios.SIMULATED if cluster.clocks or each is not clocks_step])
        suffer(cluster, scenario, seed * 1_000 + number)
