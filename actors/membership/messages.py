"""What the membership server takes from the other servers of its host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateCame:
    """A full state came from another host, over its link: bytes as ``packets.encode_state`` makes them."""

    host_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Reaches:
    """Does this host reach that one, over a link, now? Answer: True or False, within 1.5 s."""

    host_id: str


@dataclass(frozen=True, slots=True)
class ReachedBy:
    """Of hosts that the leader does not hear of, or holds for unreachable: {host id: hosts that said they reach it}.

    Only where the ledger is led; elsewhere, and where membership is off, nothing.
    """
