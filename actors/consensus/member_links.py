"""What a link to a member goes by: where the ledger says that it listens, and by which key it is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Member = Mapping[str, Any]


def addresses_of(member: Member | None, service: str) -> list[tuple[str, int]]:
    """Where it listens for *service* (raft, calls, join), best first; none when that is not known."""
    where = "" if member is None else str(member["addresses"].get(service, ""))
    address, _, port = where.rpartition(":")
    return [(address.strip("[]"), int(port))] if address and port.isdecimal() else []


def refusal(host_id: str, member: Member | None, fingerprint: str) -> str | None:
    """What there is against a host whose certificate is good and says that it is *host_id*."""
    if member is None:
        return f"{host_id} is no member of the cluster"
    if fingerprint and fingerprint not in member["fingerprints"]:
        return f"{host_id} has another certificate than the ledger knows"
    return None
