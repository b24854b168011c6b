"""How many hosts may be acted upon at once: a bound that holds whatever the checks say; decisions only.

Automation that acts on many hosts at once is more dangerous than the faults it acts on. So at most one host or a tenth
of all is dealt with at a time; and when most hosts look faulty, none is: then it is this host, the network, or what
all of them run, and restarting them one after the other would be an outage. (Autoscalers and cluster managers have the
same two rules, as ``maxUnhealthy`` and zone-wide disruption of Kubernetes' node lifecycle controller.)
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.1
MAJORITY_OF = 3
"""With fewer hosts one that is faulty may be half of them, which says nothing about the others."""


@dataclass(frozen=True, slots=True)
class Fuse:
    """The fuse for *hosts* hosts of which *faulty* look so, *engaged* of them being dealt with."""

    hosts: int
    faulty: int
    engaged: int

    @property
    def at_once_max(self) -> int:
        """How many hosts may be dealt with at a time."""
        return max(1, int(SHARE * self.hosts))

    def blown(self, engaged_already: bool) -> str:
        """Why a host may not be dealt with; empty where it may. *engaged_already*: it is one of those that are."""
        if self.hosts >= MAJORITY_OF and 2 * self.faulty > self.hosts:
            return (
                f"{self.faulty} of {self.hosts} hosts look faulty: that is the network or all of them, not these hosts"
            )
        others = self.engaged - engaged_already
        if others >= self.at_once_max:
            return f"{others} of {self.hosts} hosts are being dealt with, at most {self.at_once_max} at once"
        return ""
