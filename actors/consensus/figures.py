"""The metrics of a host's ledger, as Prometheus is told them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from .replica import Replica

TIMES_KEPT = 1024


class CommitTimes:
    """How long the latest proposals of this host waited for their commit, in seconds: the last 1,024."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=TIMES_KEPT)

    def note(self, seconds: float) -> None:
        """One more was committed."""
        self._times.append(seconds)

    @property
    def median_ms(self) -> float | None:
        """Half of them waited no longer; ``None`` before the first."""
        median_s = self.percentile_s(50)
        return None if median_s is None else 1000 * median_s

    def percentile_s(self, percent: int) -> float | None:
        """So many of a hundred waited no longer; ``None`` before the first."""
        if not self._times:
            return None
        ordered = sorted(self._times)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def ledger_figures(replica: Replica, commit_times: CommitTimes, refused: Mapping[str, int]) -> dict[str, float]:
    """Figures of the log and the state, of how long proposals waited, and of how many were *refused*, by error."""
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


def nodes_sent_to(replica: Replica) -> list[int]:
    """All nodes of Raft's configuration: whoever is not among them is sent nothing of the log any more."""
    config = replica.members
    return sorted({*config.voters, *config.voters_outgoing, *config.learners, *config.learners_next})
