"""Settings of a cluster's membership: intervals, multipliers and bounds, in three profiles; formulas over the size.

All members of a cluster run the same profile. ``lan`` and ``wan`` are memberlist's values; ``lan_fast`` trades
datagrams and patience for time: see docs/membership.md for what each reaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, log10

PUSH_PULL_SCALE_FROM = 32
"""Members up to which full states are exchanged at the profile's pace; with each doubling they come once less often."""


@dataclass(frozen=True, slots=True)
class MembershipProfile:
    """Times in seconds, on a clock that only goes forward.

    * ``probe_interval_s``, ``probe_timeout_s``: a probe's length, and when others are asked to help, unless the link's
      own times say otherwise (never before ``probe_timeout_min_s``)
    * ``indirect_probes``: how many are asked
    * ``suspicion_multiplier``: a suspicion confirmed by ``confirmations`` others lasts this often the logarithm of the
      members, in probe intervals; an unconfirmed one ``suspicion_max_multiplier`` times that
    * ``local_health_max``: the local health multiplier's greatest value
    * ``gossip_interval_s``, ``gossip_members``: to how many news go, how often
    * ``gossip_to_dead_s``: for how long the dead are told, so that they may refute
    * ``retransmit_multiplier``: how often each member passes a word on, times the logarithm of the members
    * ``push_pull_s``: between two exchanges of full states; ``reconnect_s``: between two tries to reach one of the dead
    * ``stall_s``: a core that is woken later than this stood still itself, and judges nobody by that time
    * ``ask_by_link``: who does not answer is asked over a link too, while others are asked to help (``AskByLink``):
      where datagrams are lost, links still pass. For owners that have links
    * ``lifeguard``: local health, confirmed suspicions, nacks and buddies; off is plain SWIM, to compare with
    """

    probe_interval_s: float = 1.0
    probe_timeout_s: float = 0.5
    probe_timeout_min_s: float = 0.2
    indirect_probes: int = 3
    suspicion_multiplier: float = 4.0
    suspicion_max_multiplier: float = 6.0
    confirmations: int = 2
    local_health_max: int = 8
    gossip_interval_s: float = 0.2
    gossip_members: int = 3
    gossip_to_dead_s: float = 30.0
    retransmit_multiplier: int = 4
    push_pull_s: float = 30.0
    reconnect_s: float = 30.0
    stall_s: float = 1.0
    ask_by_link: bool = False
    lifeguard: bool = True
    forgive_stalls: bool = True

    def suspicion_min_s(self, members: int) -> float:
        """How long a suspicion lasts that others have confirmed, in a cluster of that size."""
        return self.suspicion_multiplier * max(1.0, log10(max(1, members))) * self.probe_interval_s

    def retransmit_limit(self, members: int) -> int:
        """How often a member passes one word on."""
        return self.retransmit_multiplier * ceil(log10(members + 1))

    def push_pull_interval_s(self, members: int) -> float:
        """Between two exchanges of full states: longer the more members there are, or all of them would do too many."""
        if members <= PUSH_PULL_SCALE_FROM:
            return self.push_pull_s
        return self.push_pull_s * (ceil(log2(members) - log2(PUSH_PULL_SCALE_FROM)) + 1)


PROFILES = {
    "lan": MembershipProfile(),
    "lan_fast": MembershipProfile(
        probe_interval_s=0.35,
        probe_timeout_s=0.2,
        probe_timeout_min_s=0.1,
        suspicion_multiplier=2.0,
        gossip_interval_s=0.3,
        stall_s=0.4,
    ),
    "wan": MembershipProfile(
        probe_interval_s=5.0,
        probe_timeout_s=3.0,
        probe_timeout_min_s=1.0,
        suspicion_multiplier=6.0,
        confirmations=4,
        gossip_interval_s=0.5,
        gossip_members=4,
        gossip_to_dead_s=60.0,
        push_pull_s=60.0,
        stall_s=5.0,
    ),
}
