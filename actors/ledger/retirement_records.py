"""What the ledger keeps of the shared state: which openings of its store are gone for good, by host.

Plain maps of JSON values, as in ``record_types.py``.
"""

from __future__ import annotations

from typing import TypedDict

INCARNATION_GONE = 2**32 - 1
"""The floor of a host that is no member any more: all of its openings are gone."""


class RetirementRecord(TypedDict):
    """Of one host: all that its openings below a floor ever wrote is held by every member."""

    host_id: str
    """Its id; it need be no member any more."""
    floor: int
    """Openings of earlier incarnations are retired."""
    level: int
    """The number of this retirement among those of all hosts, from 1."""
    base: int
    """The level at which all members told what they hold. Who has not come so far cannot know by the finals alone
    whether it has all: those of earlier retirements are not kept."""
    finals: list[list[int]]
    """Of the openings that are retired with it, and were not at the base, each (incarnation, chance, last sequence)."""
