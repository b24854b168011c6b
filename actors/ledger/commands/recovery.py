"""Commands of the ledger about what is done for hosts in trouble, and about when nothing is."""

from typing import Annotated

from ..command import Command, Proposer, verb
from ..field_checks import Date, Id, Plain, Table, Text, Whole, refused
from ..recovery_records import RECOVERY_ACTIONS, RECOVERY_OUTCOMES

REASON_MAX = 1_000
FOUND_MAX = 2_000
EVIDENCE_MAX = 32
"""Figures of one action."""
_Action = Annotated[str, lambda value: value in RECOVERY_ACTIONS]
_Outcome = Annotated[str, lambda value: value in RECOVERY_OUTCOMES]
_Strategy = Annotated[str, lambda value: isinstance(value, str) and 0 < len(value) <= 64]


def _check_length(plain: Plain, name: str, most: int) -> None:
    if len(plain[name]) > most:
        raise refused(f"{plain['type']}: {name} is too long", found=f"{len(plain[name])} of at most {most}")


@verb("begin_recovery", Proposer.LEADER, since=4)
class BeginRecovery(Command):
    """Begin the *number*-th action about a host: whoever had this committed carries it out, and nobody else.

    Refused when another has begun meanwhile, one has not ended, or the host is under maintenance.
    """

    host: Id
    number: Whole
    action: _Action
    strategy: _Strategy
    reason: Text
    evidence: Table
    failures: Whole
    term: Whole

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the lengths of what is kept."""
        _check_length(plain, "reason", REASON_MAX)
        _check_length(plain, "evidence", EVIDENCE_MAX)
        if any(len(value) > REASON_MAX for value in plain["evidence"].values() if isinstance(value, str | list | dict)):
            raise refused("begin_recovery: a piece of evidence is too long", found=f"at most {REASON_MAX}")


@verb("end_recovery", Proposer.LEADER, since=4)
class EndRecovery(Command):
    """End the *number*-th action about a host. A leader of a later term ends with it what an earlier one left open."""

    host: Id
    number: Whole
    outcome: _Outcome
    found: Text
    term: Whole

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the length of what is kept."""
        _check_length(plain, "found", FOUND_MAX)


@verb("set_maintenance", Proposer.DOOR, since=4)
class SetMaintenance(Command):
    """Do nothing about a host until that time; ``None`` ends a maintenance window."""

    host: Id
    until: Date | None
    reason: Text = ""
    by: Text = ""

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the lengths of what is kept."""
        for name in ("reason", "by"):
            if name in plain:
                _check_length(plain, name, REASON_MAX)
