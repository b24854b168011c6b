"""Which members vote: the next step by which a leader brings Raft's configuration into line with the ledger's members.

A new member is a learner first, and votes once it holds nearly all of the log. The number of voters is odd, 5 at most:
one of two hosts votes (two would stop when either does), three of three or four, five of more. Voters are spread over
sites, evenly, and inside a site over racks; where three sites or more have hosts that may vote, no site has half of
the votes, if that means three voters in place of five. Or only hosts of some sites vote, and all others follow.
One that has been silent for long gives its vote to a learner that is there, and keeps it where there is none: a
cluster does not become smaller by itself. One step at a time, each a change of its own, so that each is safe by
itself; what joins two is a joint configuration (Ongaro's dissertation, 4.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from actorgrid.actors.ledger.record_types import MemberRecord
from actorgrid.actors.raft.messages import ConfChange, ConfState
from actorgrid.actors.raft.progress import PeerStatus
from actorgrid.actors.raft.status import Status

VOTERS_MAX = 5
"""Two of five may be lost; with more, a commit would wait for a fourth disk."""
NEAR_ENTRIES = 1_000
"""A learner that lacks no more than this is soon there."""


def voters_wanted(candidates: int, sites: Collection[int] = ()) -> int:
    """How many members should vote where *candidates* may, so many of them at each of the *sites*.

    With three sites or more, as many as can vote without any site having half of the votes: what is left then decides
    when a site is lost.
    """
    wanted = max(1, min(VOTERS_MAX, candidates - 1 + candidates % 2))
    if len(sites) > 2:
        while wanted > 3 and sum(min(count, wanted // 2) for count in sites) < wanted:
            wanted -= 2
    return wanted


def next_step(
    members: Mapping[str, MemberRecord],
    config: ConfState,
    progress: Mapping[int, PeerStatus],
    commit: int,
    leader: int,
    silent: frozenset[int],
    voter_sites: Collection[str] = (),
) -> tuple[ConfChange, ...]:
    """The changes to propose now, together; none when all is as it should be, or something has to be waited for.

    *silent*: nodes that have not been heard of for long. *voter_sites*: the only sites whose hosts may vote; all, where
    none is named, or none of their hosts may. The *leader*'s own vote is never given away, unless it is no
    member any more, or is to leave and is the only one.
    """
    if config.voters_outgoing:
        return ()  # a change is under way
    # Who is gone comes first: a voter that never answers again counts against the quorum in every step after this one.
    by_node = {record["node"]: record for record in members.values()}
    known = {*config.voters, *config.learners}
    for node in sorted(known - by_node.keys()):
        if node in config.voters and len(config.voters) == 1:
            continue  # its successor has to vote first
        return (ConfChange("remove", node),)
    for node in sorted(by_node.keys() - known):
        return (ConfChange("add_learner", node),)
    may_vote = _may_vote(members, voter_sites)
    for node in sorted(set(config.voters) - may_vote - {leader}):
        if len(config.voters) > 1:
            return (ConfChange("add_learner", node),)
    ready = [node for node in config.learners if node in may_vote and _is_near(progress.get(node), commit)]
    ready = [node for node in ready if node not in silent]
    if leader in by_node and ready and may_vote.isdisjoint(config.voters):
        # The only voter leaves: who takes its place takes the leadership with it.
        return (ConfChange("add_voter", ready[0]), ConfChange("add_learner", leader))
    site_of = {node: record.get("site", "") for node, record in by_node.items()}
    sites = Counter(site_of[node] for node in config.voters if node in by_node)
    racks = Counter(by_node[node]["rack"] for node in config.voters if node in by_node)
    wanted = voters_wanted(len(may_vote), Counter(site_of[node] for node in may_vote).values())
    here = [node for node in config.voters if node in by_node]

    def chosen(count: int) -> list[int]:
        """The next *count* to vote: each at a site, and in a rack, with as few voters as can be."""
        found: list[int] = []
        at_sites, in_racks = Counter(sites), Counter(racks)
        while len(found) < count:
            left = (node for node in ready if node not in found)
            node = min(left, key=lambda node: (at_sites[site_of[node]], in_racks[by_node[node]["rack"]], node))
            found.append(node)
            at_sites[site_of[node]] += 1
            in_racks[by_node[node]["rack"]] += 1
        return found

    if ready and len(here) < wanted:
        # From one voter to three in one step: two would both be needed.
        missing = min(wanted - len(here), len(ready))
        if (len(config.voters) + missing) % 2 == 1 or (missing == 1 and len(config.voters) > 2):
            return tuple(ConfChange("add_voter", node) for node in chosen(missing))
        return ()
    lost = sorted(node for node in config.voters if node in silent and node != leader)
    if ready and lost:
        return (ConfChange("add_voter", chosen(1)[0]), ConfChange("add_learner", lost[0]))
    # From a site with two voters more than another has: with one more, both would only change places for ever.
    others = sorted(node for node in config.voters if node != leader and node in by_node)
    others.sort(key=lambda node: (sites[site_of[node]], racks[by_node[node]["rack"]], node))
    if ready and others and sites[site_of[others[-1]]] - sites[site_of[chosen(1)[0]]] >= 2:
        return (ConfChange("add_voter", chosen(1)[0]), ConfChange("add_learner", others[-1]))
    for crowded in reversed(others):
        if racks[by_node[crowded]["rack"]] > 1:
            for node in ready:
                if site_of[node] == site_of[crowded] and racks[by_node[node]["rack"]] == 0:
                    return (ConfChange("add_voter", node), ConfChange("add_learner", crowded))
    if (len(config.voters) > wanted and len(config.voters) % 2 == 0) or len(config.voters) > wanted + 1:
        extra = lost or others or [node for node in config.voters if node != leader]
        if extra:
            return (ConfChange("add_learner", extra[-1]),)
    return ()


def successor(status: Status, silent_ticks: float) -> int | None:
    """Who is to lead when the leader, whose *status* it is, stops: of the voters that are there, the one that has the
    most of the log. ``None`` where there is no other.
    """
    gone = {status.node, *status.silent(silent_ticks)}
    able = [node for node in status.config.voters if node not in gone and not status.progress[node].damaged]
    return max(able, key=lambda node: (status.progress[node].match, -node), default=None)


def heir(
    members: Mapping[str, MemberRecord],
    config: ConfState,
    progress: Mapping[int, PeerStatus],
    commit: int,
    leader: int,
    silent: frozenset[int],
    voter_sites: Collection[str] = (),
) -> int | None:
    """To whom a leader hands over that is not to vote any more; ``None`` when it stays, or nobody else can lead yet."""
    may_vote = _may_vote(members, voter_sites)
    if leader in may_vote:
        return None
    others = [node for node in config.voters if node in may_vote and node not in silent]
    return next((node for node in others if _is_near(progress.get(node), commit)), None)


def _may_vote(members: Mapping[str, MemberRecord], voter_sites: Collection[str]) -> set[int]:
    able = {record["node"]: record.get("site", "") for record in members.values() if record["votes"]}
    # A site that nobody is in, by a slip or because its hosts left, must not leave the ledger without voters.
    return {node for node, site in able.items() if site in voter_sites} or set(able)


def _is_near(status: PeerStatus | None, commit: int) -> bool:
    return status is not None and status.active and not status.damaged and commit - status.match <= NEAR_ENTRIES
