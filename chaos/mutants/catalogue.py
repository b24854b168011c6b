"""The planted mutants: what each does wrong, and the scenarios it is hunted in, in this order."""

from __future__ import annotations

from dataclasses import dataclass

from actorgrid.actors.raft.core import RaftCore
from actorgrid.chaos.simulator.node import SimulatedHost
from actorgrid.chaos.simulator.run import play
from actorgrid.errors import BadRequest

from . import cores, hosts, leases, locks, services


@dataclass(frozen=True)
class Mutant:
    """A planted bug. ``fast``: caught within a few seeds, so that the tests of every change can wait for it."""

    node_class: type[SimulatedHost]
    says: str
    scenario: str = "everything"
    fast: bool = True


@dataclass(frozen=True)
class Hunt:
    """The result of a hunt: caught at the *seeds*-th seed by a checker, or, when that is empty, not at all."""

    name: str
    scenario: str
    seeds: int
    checker: str
    what: str
    replay: str


def _core(core: type[RaftCore], scenario: str = "everything", fast: bool = True) -> Mutant:
    return Mutant(hosts.with_core(core), (core.__doc__ or "").strip(), scenario, fast)


def _host(node_class: type[SimulatedHost], scenario: str = "everything", fast: bool = True) -> Mutant:
    return Mutant(node_class, (node_class.__doc__ or "").strip(), scenario, fast)


MUTANTS: dict[str, Mutant] = {
    "vote_forgotten": _core(cores.VoteForgotten, "contested_elections"),
    "term_forgotten": _core(cores.TermForgotten, "contested_elections"),
    "votes_twice": _core(cores.VotesTwice),
    "votes_for_short_logs": _core(cores.VotesForShortLogs),
    "ack_before_sync": _host(hosts.AcksBeforeSync),
    "confirms_replaced_entries": _core(cores.ConfirmsReplacedEntries),
    "failed_sync_ignored": _host(hosts.FailedSyncIgnored),
    "tail_lost": _host(hosts.TailLost),
    "commit_of_old_term": _core(cores.CommitsOldTerms, "short_reigns"),
    "cut_on_every_append": _core(cores.CutsOnEveryAppend),
    "heartbeat_commits_all": _core(cores.HeartbeatCommitsAll, "short_reigns"),
    "conf_change_at_any_time": _core(cores.ConfChangeEarly, "members_come_and_go"),
    "conf_change_before_own_commit": _core(cores.ConfChangeBeforeOwnCommit, "members_come_and_go"),
    "stale_read": _host(hosts.StaleRead),
    "read_without_quorum": _core(cores.ReadsWithoutQuorum, "old_leaders"),
    "read_before_first_commit": _core(cores.ReadsBeforeFirstCommit, "untold_commits"),
    "state_apart_from_index": _host(hosts.StateApartFromIndex, "power_cuts"),
    "applied_twice": _host(hosts.AppliedTwice),
    "sessions_not_in_snapshot": _host(hosts.SessionsNotInSnapshot),
    "old_term_grants": _host(hosts.OldTermGrants, "late_grants"),
    "old_incarnation_grants": _host(hosts.OldIncarnationGrants, "late_grants"),
    "gangs_start_again_early": _host(hosts.GangsStartAgainEarly, "gangs"),
    "no_guard": _host(hosts.NoGuard, "late_grants"),
    "wholes_and_parts_at_once": _host(hosts.WholesAndPartsAtOnce, "cut_gpus"),
    "locks_grabbed": _host(hosts.LocksGrabbed),
    "lease_from_the_answer": _host(leases.LeaseFromTheAnswer, "hosts_away"),
    "silence_is_idle": _host(services.SilenceIsIdle, "services"),
    "no_window_after_election": _host(services.NoWindowAfterElection, "services_by_demand"),
    "held_is_no_demand": _host(services.HeldIsNoDemand, "services_by_demand"),
    "no_wait_after_election": _host(leases.NoWaitAfterElection, "hosts_away"),
    "begins_beside_the_front": _host(leases.BeginsBesideTheFront, "short_calls"),
    "frees_what_is_superseded": _host(hosts.FreesWhatIsSuperseded, "hosts_away", fast=False),
    "slots_overfilled": _host(hosts.SlotsOverfilled),
    "locks_taken_back_by_count": _host(locks.LocksTakenBackByCount, "cut_connections"),
    "late_requests_own_locks": _host(locks.LateRequestsOwnLocks, "cut_connections"),
    "held_locks_change_requests": _host(locks.HeldLocksChangeRequests, "cut_connections"),
}


def find(name: str) -> Mutant:
    """The mutant of that name. Raises BadRequest."""
    if name not in MUTANTS:
        raise BadRequest(f"there is no mutant {name!r}", asked=name, found=f"known: {', '.join(MUTANTS)}")
    return MUTANTS[name]


def hunt(name: str, seeds_max: int, first: int = 1) -> Hunt:
    """Play the mutant's scenario, seed after seed, until a run fails. Raises BadRequest for an unknown name."""
    mutant = find(name)
    for count in range(1, seeds_max + 1):
        result = play(mutant.scenario, first + count - 1, mutant.node_class)
        if not result.held:
            replay = f"{result.replay} --mutant {name}"
            return Hunt(name, mutant.scenario, count, result.checker, result.what, replay)
    return Hunt(name, mutant.scenario, seeds_max, "", "", "")
