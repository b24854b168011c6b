"""What is said of services between the servers of a host, and between hosts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayTold:
    """Take what the gateways of a host tell, where the ledger is led. Answer: None. Raises MalformedMessage.

    ``report``: a DemandReport as JSON (table.py).
    """

    host_id: str
    report: bytes


@dataclass(frozen=True, slots=True)
class ServiceWanted:
    """Take that a request came for a service that has no ready replica. Answer: None."""

    host_id: str
    service: str
