"""How the cluster is, as one host knows it: a verdict from what that host has seen, and when; decisions only.

A host never knows the cluster, it knows what it has heard. So a verdict names for each problem when its reading was
taken, and, once this host hears no leader, since when all that it shows of others is only what was last known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from actorgrid.amounts import duration
from actorgrid.models import ClusterHealth, HostPresence

HEARD_S = 3.0
"""A voter that was heard of within this time answers: candidates ask again after two seconds at most."""
ELECTING_S = 6.0
"""Several elections could have been held in this time: a leader that is missing for longer cannot be elected."""
STALLED_S = 5.0
"""A commit waits for two disks and a round trip; one that takes so long is stuck, not slow."""
BEHIND_S = 30.0
"""A member that answers and has taken nothing for so long is not just slow: a snapshot of the ledger takes seconds."""
AWAY_KNOWN_S = 10.0
"""What a leader said of who is away counts for so long."""
CERTIFICATE_LEFT_S = 15 * 86_400.0
"""A certificate with less left than this should have been renewed long ago."""
NAMED_MAX = 5

Level = Literal["note", "degraded", "critical"]


@dataclass(frozen=True, slots=True)
class HostFact:
    """A fact about one host: its ledger record, and when the leader last heard of it where that is too long ago.

    Times are seconds since the epoch. ``unfit``: (index, why) of devices that take nothing new.
    """

    host_id: str
    name: str
    gpus: int
    lost: bool = False
    draining: bool = False
    heard_at: float | None = None
    """When it was last heard of; ``None``: it is not missed by anybody this host hears."""
    behind_since: float | None = None
    """Since when it takes nothing from the leader, although it answers and lacks what is committed."""
    unfit: tuple[tuple[int, str], ...] = ()
    certificate_until: float | None = None
    witnesses: tuple[str, ...] = ()
    """Hosts that did not reach it, as the ledger says; none: it is not held for unreachable."""
    reached_by: tuple[str, ...] = ()
    """Hosts that said that they reach it, where the leader does not."""
    maintained_until: float | None = None
    """Until when somebody works on it; ``None``: nobody does."""


@dataclass(frozen=True, slots=True)
class RefusedFact:
    """A snapshot of the ledger that host *sender* sent as leader and this one refused, ``ago_s`` ago.

    ``behind``: nothing has come to the ledger here since.
    """

    sender: str
    reason: str
    ago_s: float
    behind: bool


@dataclass(frozen=True, slots=True)
class LedgerFact:
    """What Consensus on this host said at ``read_at``. Ages are in seconds, of that moment.

    ``voters``: host ids, this one's among them when it votes; ``contact_age_s``: by host, how long ago it was heard;
    ``stalled_s``: how long the oldest proposal of this host has waited for its commit, ``None``: none waits.
    """

    read_at: float
    voters: tuple[str, ...]
    contact_age_s: Mapping[str, float]
    accepts: bool = True
    stalled_s: float | None = None
    refused: RefusedFact | None = None


@dataclass(frozen=True, slots=True)
class BoundFact:
    """How much of a bound is used. ``whose``: for people; ``setting``: what says the bound."""

    whose: str
    used_bytes: int
    max_bytes: int
    setting: str


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts for a verdict. ``leaderless_s``: for how many seconds nobody has been known to lead; 0 while one is."""

    here: str
    now: float
    hosts: tuple[HostFact, ...]
    leader: str | None
    leaderless_s: float = 0.0
    ledger: LedgerFact | None = None
    silent: tuple[str, ...] = ()
    """Servers of this host that are not heard of."""
    own_problems: tuple[str, ...] = ()
    """Of this host's disk and memory."""
    own_read_at: float = 0.0
    waiting: tuple[BoundFact, ...] = ()
    """What waiting jobs take, of all users and of the user whose take most."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong. A ``note`` is worth knowing; ``critical``: new work cannot be accepted here."""

    name: str
    level: Level
    what: str
    found: str
    hint: str
    read_at: float
    since: float | None = None
    hosts: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """The problem as the API answers it; what to do about it is ``try``."""
        return {
            "name": self.name,
            "level": self.level,
            "what": self.what,
            "found": self.found,
            "try": self.hint,
            "read_at": self.read_at,
            "since": self.since,
            "hosts": list(self.hosts),
        }


@dataclass(frozen=True, slots=True)
class HostView:
    """One host as this one knows it; ``heard_at``: when it was last heard of, where that is not now."""

    presence: HostPresence
    heard_at: float | None = None
    reached_by: tuple[str, ...] = ()
    """Hosts that said that they reach it, where the leader does not."""


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """How the cluster is. ``known_at``: of when all is that comes from the leader; ``None``: it is of now."""

    health: ClusterHealth
    problems: tuple[Problem, ...]
    hosts: Mapping[str, HostView]
    gpus: int
    gpus_present: int
    known_at: float | None

    @property
    def can_commit(self) -> bool:
        """Whether the ledger takes anything new, as far as this host can tell."""
        return self.health in (ClusterHealth.HEALTHY, ClusterHealth.DEGRADED, ClusterHealth.NOT_READY)

    @property
    def ready(self) -> bool:
        """Whether work is accepted at this host."""
        return self.health in (ClusterHealth.HEALTHY, ClusterHealth.DEGRADED)

    @property
    def hosts_present(self) -> int:
        """The number of hosts that are there, as far as this one knows."""
        return sum(view.presence is HostPresence.PRESENT for view in self.hosts.values())

    def to_plain(self) -> dict[str, Any]:
        """The verdict as the API answers it."""
        return {
            "health": self.health.value,
            "ready": self.ready,
            "can_commit": self.can_commit,
            "problems": [problem.to_plain() for problem in self.problems],
            "hosts": {
                host_id: {
                    "presence": view.presence.value,
                    "heard_at": view.heard_at,
                    "reached_by": list(view.reached_by),
                }
                for host_id, view in self.hosts.items()
            },
            "hosts_present": self.hosts_present,
            "gpus": self.gpus,
            "gpus_present": self.gpus_present,
            "known_at": self.known_at,
        }


def verdict(facts: Facts) -> HealthVerdict:
    """Judge the cluster by *facts*."""
    known_at = None if facts.leader is not None else facts.now - facts.leaderless_s
    views = {host.host_id: _view(host, facts) for host in facts.hosts}
    problems = tuple(_problems(facts, views))
    return HealthVerdict(
        _health(facts, problems),
        problems,
        views,
        sum(host.gpus for host in facts.hosts),
        sum(host.gpus for host in facts.hosts if views[host.host_id].presence is HostPresence.PRESENT),
        known_at,
    )


def _view(host: HostFact, facts: Facts) -> HostView:
    if host.host_id == facts.here:
        return HostView(HostPresence.LOST if host.lost else HostPresence.PRESENT)
    if facts.leader is None:
        # Whoever led knows more than we do now: only what we hear ourselves counts.
        ago_s = _heard_s(facts, host.host_id)
        if _answers(facts, host.host_id):
            return HostView(HostPresence.LOST if host.lost else HostPresence.PRESENT)
        last = host.heard_at if ago_s is None else facts.now - ago_s
        if host.lost:
            return HostView(HostPresence.LOST, last)
        return HostView(HostPresence.AWAY if _votes(facts, host.host_id) else HostPresence.UNKNOWN, last)
    if host.lost:
        return HostView(HostPresence.LOST, host.heard_at, host.reached_by)
    presence = HostPresence.PRESENT if host.heard_at is None else HostPresence.AWAY
    return HostView(presence, host.heard_at, host.reached_by)


def _heard_s(facts: Facts, host_id: str) -> float | None:
    """Seconds since anything of the host came, as of now."""
    if facts.ledger is None or host_id not in facts.ledger.contact_age_s:
        return None
    return facts.ledger.contact_age_s[host_id] + max(0.0, facts.now - facts.ledger.read_at)


def _votes(facts: Facts, host_id: str) -> bool:
    return facts.ledger is not None and host_id in facts.ledger.voters


def _health(facts: Facts, problems: tuple[Problem, ...]) -> ClusterHealth:
    found = {problem.name for problem in problems}
    for name, health in (
        ("no_quorum", ClusterHealth.NO_QUORUM),
        ("no_leader", ClusterHealth.ELECTING),
        ("commits_stalled", ClusterHealth.STALLED),
        ("server_silent", ClusterHealth.NOT_READY),
    ):
        if name in found:
            return health
    return ClusterHealth.DEGRADED if any(each.level != "note" for each in problems) else ClusterHealth.HEALTHY


def _problems(facts: Facts, views: Mapping[str, HostView]) -> Iterator[Problem]:
    yield from _leadership(facts)
    yield from _stalled(facts)
    for name in facts.silent:
        yield Problem(
            "server_silent",
            "critical",
            f"{name} is silent",
            "a server of this host has missed its heartbeats",
            "actorgrid inspect shows each process; it is restarted by itself, and agent.log says why",
            facts.own_read_at,
            hosts=(facts.here,),
        )
    yield from _hosts_missing(facts, views)
    yield from _behind(facts, views)
    yield from _snapshot_refused(facts)
    for text in facts.own_problems:
        yield Problem(
            "host_short",
            "degraded",
            text,
            "on this host",
            "make room there; new work is refused or goes elsewhere meanwhile",
            facts.own_read_at,
            hosts=(facts.here,),
        )
    if facts.ledger is not None and not facts.ledger.accepts and facts.leader == facts.here:
        yield Problem(
            "ledger_refuses",
            "degraded",
            "the ledger takes nothing new: the leader's disk has no room",
            f"on {_names(facts, (facts.here,))}",
            "make room on the disk of its data directory",
            facts.ledger.read_at,
            hosts=(facts.here,),
        )
    yield from _waiting(facts)
    yield from _devices(facts)
    yield from _certificates(facts)


def _leadership(facts: Facts) -> Iterator[Problem]:
    if facts.leader is not None:
        return
    since = facts.now - facts.leaderless_s
    read_at = facts.now if facts.ledger is None else facts.ledger.read_at
    voters = () if facts.ledger is None else facts.ledger.voters
    heard = [id for id in voters if id == facts.here or _answers(facts, id)]
    missing = tuple(id for id in voters if id not in heard)
    needed = len(voters) // 2 + 1
    votes = facts.here in voters
    # Voters hear of each other only once there is something to elect: before, silence says nothing.
    alone = votes and len(heard) < needed and facts.leaderless_s >= HEARD_S
    if alone or facts.leaderless_s >= ELECTING_S:
        found = f"nobody is known to lead for {duration(facts.leaderless_s)}"
        if votes:
            found = f"{len(heard)} of {len(voters)} voters answer, {needed} are needed; {found}"
        yield Problem(
            "no_quorum",
            "critical",
            "no majority of the cluster's voters can be reached from this host: nothing new is accepted here",
            found,
            f"bring back {_names(facts, missing)}, or ask a host on the other side; what runs goes on. If the majority "
            "is gone for good: actorgrid ledger recover"
            if missing
            else "ask another host of the cluster; is this one's network well? What runs goes on",
            read_at,
            since,
            missing,
        )
    else:
        yield Problem(
            "no_leader",
            "critical",
            "no host leads the ledger just now",
            f"for {duration(facts.leaderless_s)}; an election takes about a second",
            "ask again in a moment",
            read_at,
            since,
        )


def _answers(facts: Facts, host_id: str) -> bool:
    ago_s = _heard_s(facts, host_id)
    return ago_s is not None and ago_s <= HEARD_S


def _stalled(facts: Facts) -> Iterator[Problem]:
    if facts.leader is None or facts.ledger is None or facts.ledger.stalled_s is None:
        return
    if facts.ledger.stalled_s >= STALLED_S:
        yield Problem(
            "commits_stalled",
            "critical",
            "the ledger has a leader, but commits nothing",
            f"a proposal has waited for {duration(facts.ledger.stalled_s)}",
            "a majority of the voters' disks and links has to be well: actorgrid hosts, actorgrid inspect consensus",
            facts.ledger.read_at,
            facts.ledger.read_at - facts.ledger.stalled_s,
        )


def _hosts_missing(facts: Facts, views: Mapping[str, HostView]) -> Iterator[Problem]:
    kinds: tuple[tuple[HostPresence, str, str, str], ...] = (
        (
            HostPresence.LOST,
            "hosts_lost",
            "lost",
            "start them, or see to their network; if they are gone for good: actorgrid leave --host NAME --force",
        ),
        (
            HostPresence.AWAY,
            "hosts_away",
            "not heard of",
            "see to their network and their agents; their work starts elsewhere when its patience is over",
        ),
    )
    for presence, name, word, hint in kinds:
        missing = [host for host in facts.hosts if views[host.host_id].presence is presence]
        if not missing:
            continue
        ids = tuple(host.host_id for host in missing)
        times = [at for id in ids if (at := views[id].heard_at) is not None]
        gpus = sum(host.gpus for host in missing)
        yield Problem(
            name,
            "degraded",
            f"{len(missing)} of {len(facts.hosts)} hosts {'is' if len(missing) == 1 else 'are'} {word}: "
            + _names(facts, ids),
            (f"{gpus} of {sum(host.gpus for host in facts.hosts)} GPUs are away with them" if gpus else "no GPUs of it")
            + (f"; last heard of {duration(max(0.0, facts.now - min(times)))} ago" if times else "")
            + _who_reaches(facts, missing),
            hint,
            facts.now,
            min(times, default=None),
            ids,
        )
    worked_on = {host.host_id: host.maintained_until for host in facts.hosts if host.maintained_until is not None}
    if worked_on:
        yield Problem(
            "hosts_maintained",
            "note",
            f"{len(worked_on)} of {len(facts.hosts)} hosts are under maintenance: {_names(facts, worked_on)}",
            f"the last window ends in {duration(max(0.0, max(worked_on.values()) - facts.now))}",
            "nothing is done about them meanwhile; actorgrid maintenance end HOST",
            facts.now,
            hosts=tuple(worked_on),
        )
    draining = tuple(host.host_id for host in facts.hosts if host.draining)
    if draining:
        yield Problem(
            "hosts_draining",
            "note",
            f"{len(draining)} of {len(facts.hosts)} hosts get nothing new: {_names(facts, draining)}",
            "somebody drained them",
            "actorgrid drain --undo HOST when they may have work again",
            facts.now,
            hosts=draining,
        )


def _who_reaches(facts: Facts, missing: list[HostFact]) -> str:
    """Whether nobody reaches the hosts, or only the leader does not: what to look at first differs."""
    nobody = [host for host in missing if host.witnesses and not host.reached_by]
    others = [host for host in missing if host.reached_by]
    parts = [
        f"; {_names(facts, (host.host_id,))} is reached by nobody, say {_names(facts, host.witnesses)}"
        for host in nobody[:NAMED_MAX]
    ] + [
        f"; {_names(facts, host.reached_by)} do reach {_names(facts, (host.host_id,))}: it is the way from the leader"
        for host in others[:NAMED_MAX]
    ]
    return "".join(parts)


def _behind(facts: Facts, views: Mapping[str, HostView]) -> Iterator[Problem]:
    since = {
        host.host_id: host.behind_since
        for host in facts.hosts
        if host.behind_since is not None
        and facts.now - host.behind_since >= BEHIND_S
        and views[host.host_id].presence is HostPresence.PRESENT
    }
    if since and facts.leader is not None:
        yield Problem(
            "hosts_behind",
            "degraded",
            f"{len(since)} of {len(facts.hosts)} hosts cannot be brought up to date: {_names(facts, since)}",
            f"answers, and has taken nothing of the ledger for {duration(facts.now - min(since.values()))}; what it "
            "shows is old, and if it votes, one voter fewer can be lost",
            "actorgrid inspect consensus there, its disk, its network for large messages, and its agent.log; if that "
            "does not help: actorgrid restart HOST",
            facts.now,
            min(since.values()),
            tuple(since),
        )


def _snapshot_refused(facts: Facts) -> Iterator[Problem]:
    ledger = facts.ledger
    if ledger is None or ledger.refused is None:
        return
    refused = ledger.refused
    yield Problem(
        "snapshot_refused",
        "degraded" if refused.behind else "note",
        f"this host refused what {_names(facts, (refused.sender,))} sent it, as leader, for the state of the ledger",
        f"{duration(refused.ago_s)} ago: {refused.reason}; "
        + ("what this host shows is of before" if refused.behind else "it has come from another leader since"),
        "on that host: actorgrid ledger verify; if its files are sound, somebody else may have its key: actorgrid leave"
        " --host NAME --force, then let it join again",
        ledger.read_at,
        ledger.read_at - refused.ago_s,
        (facts.here, refused.sender),
    )


def _waiting(facts: Facts) -> Iterator[Problem]:
    near = [bound for bound in facts.waiting if 2 * bound.used_bytes > bound.max_bytes]
    if near:
        used = (f"those of {each.whose} take {100 * each.used_bytes // each.max_bytes} %" for each in near)
        yield Problem(
            "waiting_bytes",
            "note",
            "waiting jobs take more than half of what they may: " + ", ".join(used),
            ", ".join(f"{each.used_bytes} of {each.max_bytes} bytes ({each.setting})" for each in near),
            "more than that is refused: cancel some, give jobs smaller environments, or raise the setting",
            facts.now if facts.ledger is None else facts.ledger.read_at,
        )


def _devices(facts: Facts) -> Iterator[Problem]:
    unfit = [(host, index, why) for host in facts.hosts for index, why in host.unfit]
    if unfit:
        shown = "; ".join(f"{host.name} gpu {index}: {why}" for host, index, why in unfit[:NAMED_MAX])
        more = f" and {len(unfit) - NAMED_MAX} more" if len(unfit) > NAMED_MAX else ""
        yield Problem(
            "gpus_unfit",
            "degraded",
            f"{len(unfit)} of {sum(host.gpus for host in facts.hosts)} GPUs take nothing new",
            shown + more,
            "actorgrid gpus shows their readings",
            facts.now,
            hosts=tuple(dict.fromkeys(host.host_id for host, _, _ in unfit)),
        )


def _certificates(facts: Facts) -> Iterator[Problem]:
    late = [
        host
        for host in facts.hosts
        if host.certificate_until is not None and host.certificate_until - facts.now < CERTIFICATE_LEFT_S
    ]
    if late:
        ids = tuple(host.host_id for host in late)
        least_s = min(host.certificate_until - facts.now for host in late if host.certificate_until is not None)
        yield Problem(
            "certificates_late",
            "degraded",
            f"certificates were not renewed in time: {_names(facts, ids)}",
            f"the first ends in {duration(least_s)}" if least_s > 0 else "one has ended",
            "start those that are off; else actorgrid ca renew there, and their agent.log says why it fails",
            facts.now,
            hosts=ids,
        )


def _names(facts: Facts, ids: Iterable[str]) -> str:
    """The names of hosts, with the beginning of the id where several are called the same."""
    names = {host.host_id: host.name for host in facts.hosts}
    called = list(names.values())
    shown = [names[id] if id in names and called.count(names[id]) == 1 else id for id in ids]
    more = f" and {len(shown) - NAMED_MAX} more" if len(shown) > NAMED_MAX else ""
    return ", ".join(shown[:NAMED_MAX]) + more
