"""What is done about a host that goes on failing, from the least to the most; decisions only.

Restart a process, move the work away, restart the node, rebalance the cluster: each when so many failures have counted,
one step at a time, never back until the host is released. The steps are those of recursive restartability (Candea and
Fox, HotOS 2001): first what costs little, and more only where that did not help.
"""

from __future__ import annotations

from dataclasses import dataclass

from actorgrid.actors.ledger.recovery_records import (
    CLUSTER_REBALANCE,
    ESCALATION,
    NODE_RESTART,
    PROCESS_RESTART,
    WORK_REDISTRIBUTION,
)

PATIENCE_S = {PROCESS_RESTART: 10.0, WORK_REDISTRIBUTION: 30.0, NODE_RESTART: 300.0, CLUSTER_REBALANCE: 600.0}
"""Seconds that an action gets to help, from its end: a server is up in 2 s, a machine boots in minutes."""


@dataclass(frozen=True, slots=True)
class EscalationPolicy:
    """By how many failures each step is taken, and how they are counted."""

    process_restart_at: int = 1
    work_redistribution_at: int = 3
    node_restart_at: int = 6
    cluster_rebalance_at: int = 10
    window_s: float = 3600.0
    """Failures count for so long."""
    half_life_s: float = 900.0
    """Of the penalty for flapping (``flap_damping.py``)."""
    recovered_s: float = 60.0
    """A host is well when nothing failed there for so long."""

    def threshold(self, action: str) -> int:
        """From how many failures on *action* is taken."""
        return {
            PROCESS_RESTART: self.process_restart_at,
            WORK_REDISTRIBUTION: self.work_redistribution_at,
            NODE_RESTART: self.node_restart_at,
            CLUSTER_REBALANCE: self.cluster_rebalance_at,
        }[action]


@dataclass(frozen=True, slots=True)
class Possible:
    """Which actions could help a host now."""

    restart_server: str = ""
    """The server to restart; empty: none that is silent can be."""
    redistribute: bool = False
    """It is there, and there are others to take its work."""
    restart_node: bool = False
    rebalance: bool = False

    def allows(self, action: str) -> bool:
        """Whether *action* is one of them."""
        return {
            PROCESS_RESTART: bool(self.restart_server),
            WORK_REDISTRIBUTION: self.redistribute,
            NODE_RESTART: self.restart_node,
            CLUSTER_REBALANCE: self.rebalance,
        }[action]


def next_step(policy: EscalationPolicy, level: int, failures: int, possible: Possible) -> str:
    """The action that is due at *failures*, after those up to *level*; empty: none.

    The least that is above the level. Restarting a server may be repeated until more is due, as it is cheap and another
    server may be the one that fails now.
    """
    for place, action in enumerate(ESCALATION, 1):
        again = place == level == 1 and failures < policy.work_redistribution_at
        if (place > level or again) and failures >= policy.threshold(action) and possible.allows(action):
            return action
    return ""


def step_after(policy: EscalationPolicy, level: int, failures: int, possible: Possible) -> tuple[str, int]:
    """The next action that could come, and how many more failures it takes; ("", 0) when there is none left."""
    for place, action in enumerate(ESCALATION, 1):
        if place > level and possible.allows(action):
            return action, max(0, policy.threshold(action) - failures)
    return "", 0
