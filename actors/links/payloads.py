"""Which payloads this host should have and may lack: a voter keeps those of all jobs that are not over.

A job's payloads are on a majority of the voters when it is accepted. Voters change, and a majority of the new ones has
to have them too, or the loss of the old ones would lose the job: who becomes a voter looks for what it lacks.
Decisions only: whether a file is there, and bringing it, is for others. Bound: three digests a live job.
"""

from __future__ import annotations

from collections.abc import Iterable

from actorgrid.actors.ledger.record_checks import JOB_FILES
from actorgrid.actors.ledger.record_types import JobRecord

LOOKS_MAX = 256
"""Digests looked at in one round."""


class Payloads:
    """The payloads still to be looked at, oldest first."""

    def __init__(self) -> None:
        self._votes = False
        self._due: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._due)

    def role(self, votes: bool) -> bool:
        """Take whether this host votes now; one that does not keeps nothing for others.

        ``True``: it has begun to, so what all live jobs name is to be given to ``named``.
        """
        begun = votes and not self._votes
        if not votes:
            self._due.clear()
        self._votes = votes
        return begun

    def named(self, digests: Iterable[str]) -> None:
        """Add the payloads that live jobs name."""
        self._due.update(dict.fromkeys(digests))

    def job(self, job: JobRecord) -> None:
        """Add the payloads of a job that was accepted."""
        self.named(str(job.get(field)) for field in JOB_FILES if job.get(field))

    def restart(self) -> None:
        """Look at everything again, as the ledger was read anew, once it is known that this host votes."""
        self._votes = False
        self._due.clear()

    def next_round(self) -> list[str]:
        """The payloads to look at now; one that is missing and cannot be brought is to be given back to ``again``."""
        if not self._votes:
            return []
        taken = list(self._due)[:LOOKS_MAX]
        for digest in taken:
            del self._due[digest]
        return taken

    def again(self, digest: str) -> None:
        """Take back a payload that could not be brought now."""
        self._due[digest] = None
