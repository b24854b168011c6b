"""The hosts of a cluster by site: how many there are, are there, and vote. Decides only."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TypedDict

from actorgrid.actors.ledger.record_types import MemberRecord


class SiteCounts(TypedDict):
    """The hosts of one site."""

    hosts: int
    """How many belong to the cluster."""
    present: int
    """How many of them are there, as far as this host knows."""
    voters: int
    """How many of them vote on the ledger."""


def hosts_by_site(
    members: Mapping[str, MemberRecord], absent: Container[str], voters: Container[int]
) -> dict[str, SiteCounts]:
    """Count the *members* by site; of those that said none under an empty name. Nothing where nobody said one.

    *absent*: ids of hosts that are away; *voters*: the nodes that vote.
    """
    found: dict[str, SiteCounts] = {}
    for host_id, member in members.items():
        counts = found.setdefault(member.get("site", ""), {"hosts": 0, "present": 0, "voters": 0})
        counts["hosts"] += 1
        counts["present"] += host_id not in absent
        counts["voters"] += member["node"] in voters
    return {} if set(found) == {""} else dict(sorted(found.items()))
