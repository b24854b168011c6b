"""The address and key of a member that links to it go by: where the ledger says that it listens, and by which key it is
known."""

from __future__ import annotations

from datetime import UTC, datetime

from actorgrid.actors.ledger.record_types import MemberRecord, RemovedRecord


def addresses_of(member: MemberRecord | None, service: str) -> list[tuple[str, int]]:
    """The addresses where a member listens for *service* (raft, calls, join), best first; none if unknown."""
    where = "" if member is None else str(member["addresses"].get(service, ""))
    address, _, port = where.rpartition(":")
    return [(address.strip("[]"), int(port))] if address and port.isdecimal() else []


REMOVED = " was removed from the cluster"
"""By these words a host that comes back knows that it is no member any more, not only unknown to a member that lags."""


ANOTHER_KEY = " has another certificate than the ledger knows"
"""Its key was replaced by a new one: by this very host, or by a copy of it that was started elsewhere."""


def refusal(
    host_id: str, member: MemberRecord | None, fingerprint: str, removed: RemovedRecord | None = None
) -> str | None:
    """Why a host is refused whose certificate is good and says that it is *host_id*; ``None`` when it is not."""
    if member is None and removed is not None:
        return f"{host_id}{REMOVED} at {_shown(removed['at'])} by {removed['by'] or 'request'}"
    if member is None:
        return f"{host_id} is no member of the cluster"
    if fingerprint and fingerprint not in member["fingerprints"]:
        return f"{host_id}{ANOTHER_KEY}"
    return None


def _shown(at: float) -> str:
    """A time as text, by the clock of whoever removed the host: it may have said anything."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{at:g} s"
