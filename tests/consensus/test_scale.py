"""What a leader does for many hosts, in messages and bytes against their number: real cores, virtual time."""

from __future__ import annotations

import pytest

from tests.bench.scale_town import TICKS_A_S, VOTERS, Town

SIZES = (12, 60)


@pytest.fixture(scope="module", params=SIZES)
def town(request: pytest.FixtureRequest) -> Town:
    return Town(request.param)


def test_at_rest_a_learner_costs_two_messages_a_second(town: Town) -> None:
    town.forget()
    town.run(TICKS_A_S)
    learners = len(town.hosts) - VOTERS
    assert town.sent["heartbeat"] == (VOTERS - 1) * TICKS_A_S + 2 * learners
    assert town.sent["append"] == 0
    assert town.received == town.sent["heartbeat"]


def test_reads_of_all_hosts_cost_an_answer_each_and_rounds_of_the_voters(town: Town) -> None:
    town.run(TICKS_A_S, reads=True)
    town.forget()
    town.run(TICKS_A_S, reads=True)
    others = len(town.hosts) - 1
    assert town.sent["read_index_reply"] == others
    beside = (VOTERS - 1) * TICKS_A_S + 2 * (len(town.hosts) - VOTERS)
    assert town.sent["heartbeat"] - beside <= 2 * (VOTERS - 1) * min(TICKS_A_S, len(town.hosts))


def test_each_host_hears_of_what_is_granted_to_it_as_soon_as_it_is_committed(town: Town) -> None:
    town.forget()
    town.run(TICKS_A_S, jobs_a_tick=1)
    assert town.decisions >= TICKS_A_S - 1
    assert set(town.heard_late_ticks) == {0}
    town.run(2 * TICKS_A_S)


def test_what_each_host_is_sent_of_a_job_does_not_grow_with_their_number() -> None:
    found = []
    for hosts in SIZES:
        town = Town(hosts)
        town.run(2 * TICKS_A_S, jobs_a_tick=1)
        town.run(2 * TICKS_A_S)
        found.append(town.sent["bytes"] / hosts / town.decisions)
    few, many = found
    assert many < 1.2 * few


def test_jobs_in_a_row_reach_a_crowd_of_hosts_in_few_messages() -> None:
    town = Town(150)
    learners = len(town.hosts) - VOTERS
    town.run(TICKS_A_S, jobs_a_tick=4)
    entries = town.leader.core.status().commit - town.committed_at_start
    to_voters = (VOTERS - 1) * 3 * entries
    in_turn, at_rest, concerned = 64 * (TICKS_A_S + 1), 2 * learners, 2 * entries
    assert town.sent["append"] <= to_voters + in_turn + at_rest + concerned
    assert in_turn + at_rest + concerned < entries * learners / 4
