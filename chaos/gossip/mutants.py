"""Bugs planted in membership, one decision each turned wrong, and the scenario that catches each."""

from __future__ import annotations

from dataclasses import dataclass

from actorgrid.actors.membership.core import MembershipCore
from actorgrid.actors.membership.records import MemberStatus
from actorgrid.actors.membership.replay_window import ReplayWindow
from actorgrid.actors.membership.seal import DatagramSeal
from actorgrid.actors.membership.sited_core import SitedCore

from .scenarios import GossipParts, play
from .simulation import GossipHost


class TakesAnyIncarnation(MembershipCore):
    """An incarnation is taken however far it is ahead: one lie has the last word about its subject."""

    def leaps(self, record: MemberStatus, known: MemberStatus) -> bool:
        """Never."""
        return False


class NeverRefutes(MembershipCore):
    """A host that hears that it is suspected says nothing."""

    def refute(self, record: MemberStatus) -> None:
        """Say nothing."""


class TakesOldWords(MembershipCore):
    """The last word about a member counts, of whichever incarnation it is."""

    def hear(self, record: MemberStatus) -> None:
        """As of the incarnation that is known."""
        known = self.table.records.get(record.name)
        super().hear(record if known is None else record._replace(incarnation=known.incarnation))


class _JudgesAtOnce(MembershipCore):
    def stood_still(self, seconds: float) -> None:
        pass


class _ByTheWallClock(GossipHost):
    __slots__ = ()

    def time(self, now: float) -> float:
        return now + self.clock_s


class _TakesAllAgain(ReplayWindow):
    __slots__ = ()

    def fresh(self, life: int, counter: int) -> bool:
        return life >= self.life


class TakesReplays(DatagramSeal):
    """Datagrams are taken as often as they come."""

    window_class = _TakesAllAgain


class JudgesAfar(SitedCore):
    """Hosts of other sites are probed and judged as those of the own."""

    def _is_near(self, name: str) -> bool:
        return True


class OneMembershipRelay(SitedCore):
    """The same host relays for its site, also when it is dead."""

    def _first(self, order: list[str]) -> list[str]:
        return order[:1]


@dataclass(frozen=True, slots=True)
class GossipMutant:
    """What is wrong, in which part, and the scenario that shows it."""

    says: str
    parts: GossipParts
    scenario: str


MUTANTS = {
    "takes_any_incarnation": GossipMutant(
        (TakesAnyIncarnation.__doc__ or "").strip(), GossipParts(core=TakesAnyIncarnation), "accused"
    ),
    "never_refutes": GossipMutant((NeverRefutes.__doc__ or "").strip(), GossipParts(core=NeverRefutes), "accused"),
    "takes_old_words": GossipMutant(
        (TakesOldWords.__doc__ or "").strip(), GossipParts(core=TakesOldWords), "old_words"
    ),
    "counts_by_the_wall_clock": GossipMutant(
        "Suspicions last by the wall clock, which somebody sets.",
        GossipParts(core=_JudgesAtOnce, host=_ByTheWallClock),
        "clocks_step",
    ),
    "judges_after_sleep": GossipMutant(
        "A host that stood still judges others by the time that it missed.",
        GossipParts(core=_JudgesAtOnce),
        "sleepers",
    ),
    "judges_afar": GossipMutant((JudgesAfar.__doc__ or "").strip(), GossipParts(core=JudgesAfar), "site_cut"),
    "one_membership_relay": GossipMutant(
        (OneMembershipRelay.__doc__ or "").strip(), GossipParts(core=OneMembershipRelay), "site_relays_die"
    ),
    "takes_replays": GossipMutant((TakesReplays.__doc__ or "").strip(), GossipParts(seal=TakesReplays), "replays"),
}


def hunt(name: str, seeds_max: int) -> tuple[int, str]:
    """Play the mutant's scenario from seed 1 on: the seed that caught it, and what was violated; or nothing."""
    mutant = MUTANTS[name]
    for seed in range(1, seeds_max + 1):
        violated = play(mutant.scenario, seed, mutant.parts)
        if violated:
            return seed, violated
    return seeds_max, ""
