"""Retired openings of the shared state, between the ledger's words and those of its server."""

from __future__ import annotations

from collections.abc import Mapping

from ..ledger.commands import RetireOrigins
from ..ledger.retirement_records import RetirementRecord
from ..replication.messages import RetiredOpenings


def openings_of(records: Mapping[str, RetirementRecord]) -> tuple[RetiredOpenings, ...]:
    """What the ledger has, for the shared state's server."""
    return tuple(
        RetiredOpenings(
            host_id,
            record["floor"],
            record["level"],
            record["base"],
            tuple((incarnation, chance, last) for incarnation, chance, last in record["finals"]),
        )
        for host_id, record in sorted(records.items())
    )


def command_of(openings: RetiredOpenings, by: str) -> RetireOrigins:
    """The command that retires them, found by that host."""
    finals = [list(final) for final in openings.finals]
    return RetireOrigins(openings.host_id, openings.floor, finals, openings.level, openings.base, by)
