"""The figures of anti-entropy, as ``/metrics`` and ``inspect`` show them."""

from __future__ import annotations

from typing import Any

from .anti_entropy import AntiEntropy
from .replica import StateReplica

STATUS_PEERS = 100
"""Peers that ``status`` names."""


def gossip_figures(replica: StateReplica) -> dict[str, float]:
    """Counts since our start, and sizes now."""
    gossip = replica.gossip
    lags = gossip.lags().values()
    return {
        **{f"state_gossip_{name}_total": float(count) for name, count in gossip.counts.items()},
        **{f"state_gossip_refused_{name}_total": float(count) for name, count in gossip.refused.items()},
        "state_gossip_passed_over_total": float(replica.passed_over),
        "state_gossip_origins": float(gossip.origins),
        "state_gossip_log_bytes": float(gossip.log_bytes),
        "state_gossip_repairing": float(gossip.walking),
        "state_gossip_peers": float(len(lags)),
        "state_gossip_peers_unheard": float(sum(lag is None for lag in lags)),
        "state_gossip_lag_max": float(max((lag for lag in lags if lag is not None), default=0)),
    }


def gossip_status(gossip: AntiEntropy) -> dict[str, Any]:
    """What ``actorgrid inspect`` shows of it."""
    return {
        "origins": gossip.origins,
        "recent_deltas_bytes": gossip.log_bytes,
        "repairing": gossip.walking,
        "peers": {
            name: "not heard yet" if lag is None else f"{lag} deltas behind us" if lag else "equal"
            for name, lag in sorted(gossip.lags().items())[:STATUS_PEERS]
        },
        "sent_bytes": gossip.counts["sent_bytes"],
        "received_bytes": gossip.counts["received_bytes"],
        "refused": {name: count for name, count in gossip.refused.items() if count},
    }
