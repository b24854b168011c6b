"""Commands of the ledger about what is told of jobs."""

from typing import Annotated, Any

from ..command import Command, Proposer, verb
from ..field_checks import Plain, check_fields, is_id, is_text, is_whole, refused

NOTICES_SINCE = 9
"""The version from which jobs tell of their states."""
SETTLED_MAX = 200
"""Of one entry."""
FAILURE_CHARS_MAX = 500


def _is_settled(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= SETTLED_MAX and all(isinstance(each, dict) for each in value)


@verb("settle_notices", Proposer.LEADER, since=NOTICES_SINCE)
class SettleNotices(Command):
    """Note what became of notices: each {notice_id, failure, tries}; an empty *failure*: it was sent.

    Of no term: what was sent was sent, whoever leads by now.
    """

    settled: Annotated[list[Plain], _is_settled]

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check each of them."""
        for each in plain["settled"]:
            check_fields("settled", each, {"notice_id": is_id, "failure": is_text, "tries": is_whole}, {})
            if len(each["failure"]) > FAILURE_CHARS_MAX:
                raise refused(f"a failure is said in {FAILURE_CHARS_MAX} characters", found=str(len(each["failure"])))


@verb("clear_notices", Proposer.DOOR, since=NOTICES_SINCE)
class ClearNotices(Command):
    """Forget notices that were given up: those of *job_id*, or of all jobs where it is empty."""

    job_id: Annotated[str, is_text] = ""
    by: Annotated[str, is_text] = ""
