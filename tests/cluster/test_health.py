"""The verdict on the cluster: from what one host knows, and when it knew it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actorgrid.actors.cluster.health import Facts, HealthVerdict, HostFact, LedgerFact, RefusedFact, verdict

NOW = 10_000.0
HOSTS = tuple(HostFact(name, name.upper(), 8) for name in ("a", "b", "c"))


def facts(*, leader: str | None = "a", leaderless_s: float = 0.0, hosts: Any = HOSTS, **ledger: Any) -> Facts:
    known = {"read_at": NOW, "voters": ("a", "b", "c"), "contact_age_s": {}, **ledger}
    return Facts("a", NOW, hosts, leader, leaderless_s, LedgerFact(**known))


def names(found: HealthVerdict) -> list[str]:
    return [problem.name for problem in found.problems]


def presences(found: HealthVerdict) -> dict[str, str]:
    return {host_id: view.presence.value for host_id, view in found.hosts.items()}


def test_three_hosts_that_hear_each_other_are_healthy() -> None:
    found = verdict(facts())
    assert (found.health.value, found.problems, found.ready, found.can_commit) == ("healthy", (), True, True)
    assert (found.hosts_present, found.gpus, found.gpus_present, found.known_at) == (3, 24, 24, None)


@pytest.mark.parametrize(("lost", "name"), [(False, "hosts_away"), (True, "hosts_lost")])
def test_a_host_that_is_missed_takes_its_gpus_with_it(lost: bool, name: str) -> None:
    gone = replace(HOSTS[2], lost=lost, heard_at=NOW - 40)
    found = verdict(facts(hosts=(*HOSTS[:2], gone)))
    assert (found.health.value, found.ready, names(found)) == ("degraded", True, [name])
    assert (found.hosts_present, found.gpus_present, found.gpus) == (2, 16, 24)
    problem = found.problems[0]
    assert "1 of 3 hosts" in problem.what and "C" in problem.what
    assert "8 of 24 GPUs" in problem.found and "40 s" in problem.found
    assert (problem.hosts, problem.since, problem.read_at) == (("c",), NOW - 40, NOW)
    assert problem.hint and found.to_plain()["problems"][0]["try"] == problem.hint


def test_a_host_that_nobody_reaches_is_told_from_one_that_only_the_leader_misses() -> None:
    dead = replace(HOSTS[2], heard_at=NOW - 5, witnesses=("a", "b"))
    (problem,) = verdict(facts(hosts=(*HOSTS[:2], dead))).problems
    assert "C is reached by nobody, say A, B" in problem.found
    missed = replace(HOSTS[2], heard_at=NOW - 5, reached_by=("b",))
    found = verdict(facts(hosts=(*HOSTS[:2], missed)))
    assert "B do reach C" in found.problems[0].found and "nobody" not in found.problems[0].found
    assert found.to_plain()["hosts"]["c"]["reached_by"] == ["b"]


def test_a_host_that_cannot_be_brought_up_to_date_is_named() -> None:
    behind = replace(HOSTS[1], behind_since=NOW - 45)
    found = verdict(facts(hosts=(HOSTS[0], behind, HOSTS[2])))
    assert (found.health.value, found.ready, names(found)) == ("degraded", True, ["hosts_behind"])
    problem = found.problems[0]
    assert "B" in problem.what and "1 of 3 hosts" in problem.what and "45 s" in problem.found and problem.hint
    assert (problem.hosts, problem.since) == (("b",), NOW - 45)
    catching_up = replace(behind, behind_since=NOW - 20)
    assert names(verdict(facts(hosts=(HOSTS[0], catching_up, HOSTS[2])))) == []
    away = replace(behind, heard_at=NOW - 5)
    assert names(verdict(facts(hosts=(HOSTS[0], away, HOSTS[2])))) == ["hosts_away"], "said once"


def test_a_leader_whose_state_was_refused_is_named_and_when_another_leads_it_is_a_note() -> None:
    refused = RefusedFact("b", "no state: 1 bytes", 7.0, behind=True)
    found = verdict(facts(refused=refused))
    assert (found.health.value, found.ready, names(found)) == ("degraded", True, ["snapshot_refused"])
    (problem,) = found.problems
    assert "B" in problem.what and "no state" in problem.found and "7.0 s" in problem.found and problem.hint
    assert (problem.since, problem.hosts) == (NOW - 7, ("a", "b"))
    later = verdict(facts(refused=replace(refused, behind=False)))
    assert (later.health.value, names(later), later.problems[0].level) == ("healthy", ["snapshot_refused"], "note")


def test_a_voter_that_hears_too_few_has_no_quorum_and_says_whom_it_misses() -> None:
    found = verdict(facts(leader=None, leaderless_s=4.0, contact_age_s={"b": 30.0}))
    assert (found.health.value, found.ready, found.can_commit) == ("no_quorum", False, False)
    (problem, away) = found.problems
    assert (problem.name, problem.hosts, problem.since) == ("no_quorum", ("b", "c"), NOW - 4)
    assert "1 of 3 voters" in problem.found and "2 are needed" in problem.found
    assert (away.name, away.hosts) == ("hosts_away", ("b", "c"))
    assert presences(found) == {"a": "present", "b": "away", "c": "away"}
    assert found.known_at == NOW - 4, "what it shows of others is of when it last had a leader"


def test_a_majority_that_elects_is_not_taken_for_a_minority() -> None:
    # A follower hears nothing of the other followers while there is a leader, and just after.
    begun = verdict(facts(leader=None, leaderless_s=0.5, contact_age_s={"b": 500.0}))
    assert (begun.health.value, begun.can_commit, names(begun)[0]) == ("electing", False, "no_leader")
    later = verdict(facts(leader=None, leaderless_s=5.0, contact_age_s={"b": 0.3}))
    assert later.health.value == "electing" and presences(later)["b"] == "present"
    # Two that hear each other and elect nobody for long cannot.
    assert verdict(facts(leader=None, leaderless_s=7.0, contact_age_s={"b": 0.3})).health.value == "no_quorum"


def test_readings_of_who_was_heard_of_grow_old() -> None:
    stale = facts(leader=None, leaderless_s=5.0, read_at=NOW - 10, contact_age_s={"b": 0.1, "c": 0.1})
    assert verdict(stale).health.value == "no_quorum"


def test_a_learner_without_a_leader_knows_nothing_of_the_others() -> None:
    found = verdict(facts(leader=None, leaderless_s=20.0, voters=("b", "c", "d")))
    assert (found.health.value, presences(found)) == ("no_quorum", {"a": "present", "b": "away", "c": "away"})
    (problem, *_) = found.problems
    assert "20 s" in problem.found and problem.hosts == ("b", "c", "d")


def test_commits_that_do_not_come_through_are_named_though_there_is_a_leader() -> None:
    slow = verdict(facts(stalled_s=1.0))
    assert slow.health.value == "healthy"
    found = verdict(facts(stalled_s=30.0))
    assert (found.health.value, found.ready, found.can_commit) == ("stalled", False, False)
    assert names(found) == ["commits_stalled"] and found.problems[0].since == NOW - 30


def test_devices_certificates_disks_and_drained_hosts_are_looked_at() -> None:
    unfit = replace(HOSTS[1], unfit=((3, "too hot"),))
    late = replace(HOSTS[2], certificate_until=NOW + 86_400)
    found = verdict(facts(hosts=(HOSTS[0], unfit, late)))
    assert (found.health.value, names(found)) == ("degraded", ["gpus_unfit", "certificates_late"])
    assert "B gpu 3: too hot" in found.problems[0].found and found.problems[1].hosts == ("c",)
    short = verdict(replace(facts(), own_problems=("the disk is full",)))
    assert (short.health.value, names(short)) == ("degraded", ["host_short"])
    full = verdict(facts(accepts=False))
    assert (full.health.value, names(full)) == ("degraded", ["ledger_refuses"])
    # Somebody wanted it so: worth knowing, no harm.
    drained = verdict(facts(hosts=(*HOSTS[:2], replace(HOSTS[2], draining=True))))
    assert (drained.health.value, names(drained)) == ("healthy", ["hosts_draining"])


def test_a_silent_server_makes_the_host_not_ready_but_not_the_cluster() -> None:
    found = verdict(replace(facts(), silent=("gateway",)))
    assert (found.health.value, found.ready, found.can_commit) == ("not_ready", False, True)
    assert found.problems[0].what == "gateway is silent"


def test_many_hosts_are_named_by_a_few() -> None:
    many = tuple(HostFact(f"h{n}", "box", 1, lost=True, heard_at=NOW - n) for n in range(9))
    found = verdict(facts(hosts=(*HOSTS, *many)))
    assert found.problems[0].what == "9 of 12 hosts are lost: h0, h1, h2, h3, h4 and 4 more"
