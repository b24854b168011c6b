"""Hosts that start again and again: their names go, what they wrote stays, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.ledger.retirement_records import INCARNATION_GONE
from actorgrid.actors.replication import replica as replica_module
from actorgrid.actors.replication import retirement_due
from actorgrid.actors.replication.anti_entropy import AntiEntropy
from actorgrid.actors.replication.replica import StateReplica
from actorgrid.actors.replication.retirement import NOBODY, join_at
from actorgrid.actors.replication.retirement_due import RetirementDue
from actorgrid.actors.replication.store import StateStore
from actorgrid.actors.replication.types import DELTAS, TYPES
from actorgrid.actors.replication.walk import Walk
from tests.replication.churn_town import ChurnTown, play_churn
from tests.replication.gossip_net import KEPT, LOST
from tests.replication.test_gossip import SHORT_LOG

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


def plays(directory: Path, seeds: range, steps: int = 150) -> int:
    retirements = 0
    for seed in seeds:
        town = ChurnTown(directory / str(seed), 2 + seed % 3, seed, SHORT_LOG if seed % 3 == 0 else None)
        try:
            play_churn(town, steps)
        finally:
            town.close()
        retirements += town.retirements
    return retirements


def test_random_plays_with_their_seeds(tmp_path: Path) -> None:
    assert plays(tmp_path, range(6)) > 12


# -- planted bugs


def a_level_taken_without_what_is_final(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica_module, "may_retire", lambda *_: True)


def states_of_another_level_joined_as_if_of_ours(patch: pytest.MonkeyPatch) -> None:
    real = AntiEntropy._begin_walk

    def begin(self: AntiEntropy, name: str, opening: Any, vector: Any, _retired: Any) -> Any:
        return real(self, name, opening, vector, self.retired)

    patch.setattr(AntiEntropy, "_begin_walk", begin)
    patch.setattr(Walk, "belongs", lambda self, peer, answer: (peer, answer.walk) == (self.peer, self.number))


def states_joined_without_what_a_level_implies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica_module, "join_at", lambda mine, theirs, _here, _there: mine.join(theirs))


def a_level_read_back_without_its_folds(patch: pytest.MonkeyPatch) -> None:
    real = StateStore._join

    def join(self: StateStore, *arguments: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(StateStore, "_carry_out", lambda _self: [])
            real(self, *arguments)

    patch.setattr(StateStore, "_join", join)


def a_deltas_gaps_taken_for_removals(patch: pytest.MonkeyPatch) -> None:
    class Joined:
        decode = DELTAS.decode

        def join(self, states: Any, keys: Any, deltas: Any) -> None:
            for key, delta in zip(keys, deltas, strict=True):
                kinds = states.setdefault(key, {})
                known = kinds.setdefault(delta.kind, TYPES[delta.kind]())
                join_at(known, delta.copy(), self.retired, self.retired)

        retired = NOBODY

    joined = Joined()
    real = StateReplica._do

    def do(self: StateReplica, instructions: Any) -> Any:
        joined.retired = self.store.retired
        return real(self, instructions)

    patch.setattr(StateReplica, "_do", do)
    patch.setattr(replica_module, "DELTAS", joined)


def deltas_of_the_retired_taken_until_the_level_is(patch: pytest.MonkeyPatch) -> None:
    real = AntiEntropy.retire
    patch.setattr(AntiEntropy, "retire", lambda self, retired, _known: real(self, retired, retired))


@pytest.mark.parametrize(
    ("bug", "first"),
    [
        (a_level_taken_without_what_is_final, 1),
        (states_of_another_level_joined_as_if_of_ours, 12),
        (states_joined_without_what_a_level_implies, 126),
        (a_level_read_back_without_its_folds, 11),
        (a_deltas_gaps_taken_for_removals, 7),
        (deltas_of_the_retired_taken_until_the_level_is, 12),
    ],
    ids=lambda given: given.__name__.replace("_", " ") if callable(given) else f"from seed {given}",
)
def test_planted_bugs_are_caught(
    bug: Callable[[pytest.MonkeyPatch], None], first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        plays(tmp_path, range(first, first + 100))


@pytest.mark.parametrize("hasty", [False, True], ids=["as it is", "planted bug: not all members were asked"])
def test_what_one_member_alone_has_of_a_host_that_is_gone_comes_to_all_before_its_name_goes(
    hasty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hasty:
        monkeypatch.setattr(retirement_due, "_agrees", lambda *_: True)
    town = ChurnTown(tmp_path, 3, 1)
    town.mutate("host-2", "tags", "or_set", "add", 1)
    town.settle()
    town.sides = {"host-0": 1}
    town.mutate("host-2", "tags", "or_set", "add", 2)
    town.commit("host-2")
    town.push("host-2", everybody=True)
    while town.deliver():
        pass
    assert town.holds("host-1", town.updates[-1]) and not town.holds("host-0", town.updates[-1])
    town.remove("host-2")
    town.quiet = set(town.names)
    town.look("host-0")
    assert town.retirements == hasty
    town.settle()
    town.retire_all()
    assert town.retirements == 1
    found = {frozenset(host.replica.states["tags"]["or_set"].value) for host in town.hosts.values()}
    assert found == {frozenset({1} if hasty else {1, 2})}
    town.close()


# -- what it is for


def test_names_stay_as_few_as_hosts_however_often_they_start(tmp_path: Path) -> None:
    town = ChurnTown(tmp_path, 3, 1, at_least=3)
    most = 0
    for start in range(24):
        name = town.names[start % 3]
        for each in town.names:
            town.mutate(each, "hits", "pn_counter", "increment", 1)
            town.mutate(each, "tags", "or_set", "add", 1)
            town.mutate(each, "tags", "or_set", "remove", 1)
        town.settle()
        town.restart(name)
        town.settle()
        town.retire_all() if start % 6 == 5 else None
        most = max(most, town.names_left())
    assert town.retirements >= 4
    assert most <= 3 * (3 + 3), most
    assert town.hosts["host-0"].replica.states["hits"]["pn_counter"].value == 72
    assert all(len(host.replica.gossip.vector) <= 3 * 4 for host in town.hosts.values())
    town.check_end()
    town.close()


def test_a_member_that_is_away_holds_it_up_and_is_named(tmp_path: Path) -> None:
    town = ChurnTown(tmp_path, 3, 1)
    away = town.names[2]
    town.mutate("host-0", "hits", "pn_counter", "increment", 1)
    town.commit("host-0")
    town.sides = {away: 1}
    town.restart("host-0")
    for _ in range(3):
        for name in town.names:
            town.round(name)
        while town.deliver():
            pass
        town.look("host-0")
    [due] = town.watches["host-0"].due
    assert isinstance(due, RetirementDue) and due.blocked_by == (away,)
    assert (due.openings.host_id, due.openings.floor, len(due.openings.finals)) == ("host-0", 2, 1)
    town.settle()
    town.retire_all()
    assert town.watches["host-0"].due == () and town.retirements == 1
    assert len(town.hosts[away].replica.gossip.vector) == 0
    town.close()


def test_what_a_removed_host_wrote_loses_its_name_and_stays(tmp_path: Path) -> None:
    town = ChurnTown(tmp_path, 3, 1)
    town.mutate("host-2", "hits", "pn_counter", "increment", 7)
    town.mutate("host-2", "tags", "or_set", "add", 1)
    town.settle()
    town.remove("host-2")
    town.settle()
    town.retire_all()
    assert town.ledger.retirements["host-2"]["floor"] == INCARNATION_GONE
    for host in town.hosts.values():
        assert host.replica.gossip.vector == {}
        assert host.replica.states["hits"]["pn_counter"].value == 7
        assert host.replica.states["tags"]["or_set"].value == {1}
    town.close()


def test_a_host_with_an_empty_disk_comes_to_the_level_by_the_states_of_others(tmp_path: Path) -> None:
    town = ChurnTown(tmp_path, 3, 1)
    for name in town.names:
        town.mutate(name, "hits", "pn_counter", "increment", 1)
        town.mutate(name, "tags", "or_set", "add", 1)
        town.settle()
        town.restart(name)
    town.settle()
    town.retire_all()
    assert town.retirements >= 3
    town.restart("host-1", LOST)
    town.mutate("host-1", "hits", "pn_counter", "increment", 1)
    assert town.hosts["host-1"].replica.store.retired.level == 0
    town.settle()
    store = town.hosts["host-1"].replica.store
    assert store.retired.level == max(record["level"] for record in town.ledger.retirements.values())
    assert {host.replica.states["hits"]["pn_counter"].value for host in town.hosts.values()} == {4}
    town.restart("host-1", KEPT)
    assert town.hosts["host-1"].replica.store.retired == store.retired, "the level is on the disk"
    town.close()


def test_when_all_who_had_what_was_final_lost_their_disks_it_is_said_anew(tmp_path: Path) -> None:
    town = ChurnTown(tmp_path, 2, 1)
    town.mutate("host-0", "hits", "pn_counter", "increment", 1)
    town.mutate("host-1", "tags", "or_set", "add", 1)
    town.settle()
    town.restart("host-0")
    town.settle()
    for _ in range(2):
        for name in town.names:
            town.round(name)
        while town.deliver():
            pass
        town.look("host-0")
        while town.deliver():
            pass
    assert town.retirements == 1
    for name in town.names:  # before either has heard of it
        town.restart(name, LOST)
    town.mutate("host-1", "hits", "pn_counter", "increment", 5)
    town.settle()
    assert {host.replica.store.retired.level for host in town.hosts.values()} == {0}
    town.retire_all()
    assert {host.replica.store.retired.level for host in town.hosts.values()} == {2}
    assert {host.replica.states["hits"]["pn_counter"].value for host in town.hosts.values()} == {5}
    town.close()


def test_a_host_set_back_with_its_incarnation_writes_under_one_that_is_alive(tmp_path: Path) -> None:
    town = ChurnTown(tmp_path, 2, 1)
    for _ in range(3):
        town.mutate("host-0", "hits", "pn_counter", "increment", 1)
        town.settle()
        town.restart("host-0")
    town.settle()
    town.retire_all()
    host = town.hosts["host-0"]
    host.replica.close()
    host.replica = StateReplica(tmp_path / "empty", "host-0", 1, town.dice)  # type: ignore[arg-type]
    host.replica.set_members(town.names)
    town.settle()
    town.mutate("host-0", "hits", "pn_counter", "increment", 1)
    town.settle()
    assert {each.replica.states["hits"]["pn_counter"].value for each in town.hosts.values()} == {4}
    town.close()
