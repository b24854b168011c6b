"""Whether the ledger is to hold a host for unreachable: by the witnesses that did not reach it, and those that do.

``dead`` is what one host heard. Before the leader writes it down, others are asked to try by themselves, over links.
One that reaches the host is enough to write nothing: then it is a way that is broken, not the host.

Decisions only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from actorgrid.actors.ledger.record_types import HostRecord

from .records import DEAD, LIFE_BITS, SUSPECT, MemberStatus

WITNESSES_NEEDED = 2
ASKED_MAX = 4
"""Hosts that are asked about one: of more, the same answers would come."""
AT_ONCE_MAX = 16
"""Hosts that others are asked about together."""


def witnesses_needed(reachable: int) -> int:
    """How many hosts must have failed to reach one: two, where there are two others that are *reachable*, the leader
    among them. With fewer there is nobody to ask."""
    return max(1, min(WITNESSES_NEEDED, reachable))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a host that is held for dead: who did not reach it, and who said that it does."""

    witnesses: tuple[str, ...]
    reached_by: tuple[str, ...]

    def suffices(self, reachable: int) -> bool:
        """Whether it may be written down, in a cluster with so many *reachable* hosts besides it."""
        return not self.reached_by and len(self.witnesses) >= witnesses_needed(reachable)


def gathered(gossip: Iterable[str], answers: Mapping[str, bool], accused: str) -> Evidence:
    """The evidence of *gossip*'s accusers, and of hosts that tried for themselves: {host: whether it reached it}.

    Whoever tried counts by what it found now, whatever it said before; the accused is nobody's witness.
    """
    failed = [host for host, reached in answers.items() if not reached]
    witnesses = dict.fromkeys([*(host for host in gossip if not answers.get(host, False)), *failed])
    witnesses.pop(accused, None)
    return Evidence(tuple(witnesses), tuple(host for host, reached in answers.items() if reached))


def open_cases(
    hosts: Mapping[str, HostRecord], members: Mapping[str, MemberStatus]
) -> Iterator[tuple[str, Literal["accused", "reached"]]]:
    """Where ledger and membership say different things: hosts that are dead and not marked, and marked ones that are
    alive. A word about an earlier start of a host is none about this one."""
    for host_id, host in hosts.items():
        status = members.get(host_id)
        if status is None:
            continue
        marked = host.get("unreachable") is not None
        life = status.incarnation >> LIFE_BITS
        if status.state == DEAD and not marked and life == host["incarnation"]:
            yield host_id, "accused"
        elif status.state < SUSPECT and marked and life >= host["incarnation"]:
            yield host_id, "reached"
