"""The metrics of a host's ledger, as Prometheus is told them."""

from __future__ import annotations

from collections.abc import Mapping

from .commit_times import CommitTimes
from .replica import Replica


def ledger_figures(replica: Replica, commit_times: CommitTimes, refused: Mapping[str, int]) -> dict[str, float]:
    """Of the log and the state, of how long proposals waited, and of how many were *refused*, by error."""
    found: dict[str, float] = {
        "ledger_batches_total": replica.batches_total,
        "ledger_commit_seconds_p50": commit_times.percentile_s(50) or 0.0,
        "ledger_commit_seconds_p99": commit_times.percentile_s(99) or 0.0,
        "ledger_last_index": replica.ledger.index,
        "ledger_snapshot_index": replica.snapshot_index,
        "ledger_term": replica.ledger.term,
        "ledger_bytes": replica.log.size_bytes,
        "ledger_segments": replica.log.segment_count,
        "ledger_locks": len(replica.ledger.locks),
        "ledger_waiting_job_bytes": replica.ledger.waiting_bytes,
        "ledger_messages_not_counted_total": sum(replica.messages_refused.values()),
        "ledger_refused_total": sum(refused.values()),
    }
    for code, count in refused.items():
        found[f"ledger_refused_{code}_total"] = count
    return found
