"""The figures of anti-entropy, as ``/metrics`` and ``inspect`` show them."""

from __future__ import annotations

from typing import Any

from .replica import StateReplica
from .traffic import lags

STATUS_BLOCKING = 8
STATUS_PEERS = 100
"""Peers that ``status`` names."""


def gossip_figures(replica: StateReplica) -> dict[str, float]:
    """Counts since our start, and sizes now."""
    gossip = replica.gossip
    behind = lags(gossip).values()
    return {
        **{f"state_gossip_{name}_total": float(count) for name, count in gossip.counts.items()},
        **{f"state_gossip_refused_{name}_total": float(count) for name, count in gossip.refused.items()},
        "state_gossip_passed_over_total": float(replica.passed_over),
        "state_gossip_origins": float(len(gossip.vector)),
        "state_gossip_level": float(gossip.retired.level),
        "state_gossip_levels_behind": float(gossip.known.level - gossip.retired.level),
        "state_gossip_hosts_retired": float(len(gossip.retired.floors)),
        "state_gossip_retirements_blocked": float(sum(bool(due.blocked_by) for due in replica.watch.due)),
        "state_gossip_log_bytes": float(gossip.log.bytes),
        "state_gossip_repairing": float(gossip.walking),
        "state_gossip_peers": float(len(behind)),
        "state_gossip_peers_unheard": float(sum(lag is None for lag in behind)),
        "state_gossip_lag_max": float(max((lag for lag in behind if lag is not None), default=0)),
    }


def gossip_status(replica: StateReplica) -> dict[str, Any]:
    """What ``actorgrid inspect`` shows of it."""
    gossip = replica.gossip
    return {
        "rounds": gossip.counts["rounds"],
        "origins": len(gossip.vector),
        "retired": {
            "level": gossip.retired.level,
            "level_of_the_ledger": gossip.known.level,
            "hosts": len(gossip.retired.floors),
            "due": {
                due.openings.host_id: "blocked by " + ", ".join(due.blocked_by[:STATUS_BLOCKING])
                if due.blocked_by
                else "all members hold it"
                for due in replica.watch.due[:STATUS_PEERS]
            },
        },
        "recent_deltas_bytes": gossip.log.bytes,
        "repairing": gossip.walking,
        "peers": {
            name: "not heard yet" if lag is None else f"{lag} deltas behind us" if lag else "equal"
            for name, lag in sorted(lags(gossip).items())[:STATUS_PEERS]
        },
        "sent_bytes": gossip.counts["sent_bytes"],
        "received_bytes": gossip.counts["received_bytes"],
        "refused": {name: count for name, count in gossip.refused.items() if count},
    }
