"""Which waiting job waits for which: derived from the job records, never stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actorgrid.errors import WrongState


class Dependencies:
    """The open edges between jobs that are live, both ways."""

    def __init__(self) -> None:
        self._unmet: dict[str, dict[str, None]] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def add(self, job_id: str, unmet: Iterable[str]) -> None:
        """Note what *job_id* waits for; call in order of submission, so that ``leave`` gives that order back."""
        for name in unmet:
            self._unmet.setdefault(job_id, {})[name] = None
            self._dependents.setdefault(name, {})[job_id] = None

    def unmet(self, job_id: str) -> list[str]:
        """The jobs that *job_id* still waits for."""
        return sorted(self._unmet.get(job_id, ()))

    def drop(self, job_id: str) -> None:
        """Forget what *job_id* waited for, because it ended."""
        for name in self._unmet.pop(job_id, ()):
            waiting = self._dependents[name]
            del waiting[job_id]
            if not waiting:
                del self._dependents[name]

    def leave(self, job_id: str) -> list[str]:
        """Release those that waited for *job_id*, which ended; gives them in order of submission."""
        waiting = list(self._dependents.pop(job_id, ()))
        for name in waiting:
            del self._unmet[name][job_id]
            if not self._unmet[name]:
                del self._unmet[name]
        return waiting


def refuse_circles(depends_on: Mapping[str, Iterable[str]]) -> None:
    """Check a batch, whose jobs may depend on each other in any order. Raises WrongState for a circle."""
    open_counts: dict[str, int] = {}
    users: dict[str, list[str]] = {}
    for job_id, names in depends_on.items():
        inside = {name for name in names if name in depends_on}
        open_counts[job_id] = len(inside)
        for name in inside:
            users.setdefault(name, []).append(job_id)
    ready = [job_id for job_id, count in open_counts.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for user in users.get(ready.pop(), ()):
            open_counts[user] -= 1
            if open_counts[user] == 0:
                ready.append(user)
    if done != len(open_counts):
        circle = sorted(job_id for job_id, count in open_counts.items() if count)
        raise WrongState(
            "jobs depend on each other in a circle",
            found=f"among {', '.join(circle[:5])}",
            hint="take one of the dependencies away",
        )
