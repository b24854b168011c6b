"""The servers of this host that follow the ledger: each of its servers that subscribed hears of every change, in order.

What becomes known together is told together: a message to each of a dozen servers costs more than all that it says.
One that missed something is told so as soon as it takes a message again, and subscribes anew. Bound: as many as a
host has servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import time

from actorgrid.actors.ledger.messages import Applied, JobsWanted
from actorgrid.actors.ledger.outcome import Change, Outcome
from actorgrid.actors.ledger.record_checks import JOB_FILES
from actorgrid.actors.ledger.tables.jobs import QUEUED
from actorgrid.supervisors.envelope import Batch
from actorgrid.supervisors.server import Server

RESYNC_S = 0.5
RESYNC_TRIES = 120
"""How often, and how many times, a server that missed something is told so; then it is taken to be gone."""
RESYNC = "resync"
UNTOLD = ("renew_lock",)
"""Changes that nobody but the ledger counts: a lock's record may name a thousand holders, each renewing it often."""
LEADERSHIP = "leadership"
TOLD_OF_WAITING = (
    "job_id",
    "state",
    "name",
    "user_id",
    "cancel_requested",
    "error",
    "attempts",
    *JOB_FILES,
)
"""Of a job that waits for its first attempt, told to who keeps no queue: a batch of 1,000 whole ones is megabytes."""
TOGETHER_MAX = 256
"""Changes that are gathered before they are told."""


class Subscribers:
    """The subscribed servers and how far each was told. *counts*: how many jobs are in each state by now."""

    def __init__(self, server: Server, counts: Callable[[], Mapping[str, int]]) -> None:
        self._server = server
        self._counts = counts
        self._told: dict[str, int] = {}  # up to which index
        self._wanted: dict[str, JobsWanted] = {}
        self._lagging: dict[str, int] = {}
        self._resync_planned = False
        self._index = 0
        self._gathered: list[Applied] = []
        self._gathered_changes = 0

    def __len__(self) -> int:
        return len(self._told)

    @property
    def names(self) -> list[str]:
        """The names of the subscribed servers."""
        return sorted(self._told)

    def subscribed(self, name: str, index: int, jobs: JobsWanted = "all") -> int:
        """Subscribe the server *name*, which holds the state of *index*, to what comes after; of *jobs* as it asked.

        Gives the index to tell it: that of the last entry that changed anything. Entries that change nothing are told
        to nobody, so a follower that came after one must not seem to be further than those before it.
        """
        # What is gathered was applied before: told afterwards, this one would hear of it twice.
        self.flush()
        self._index = self._index or index
        self._told[name] = self._index
        self._wanted[name] = jobs
        self._lagging.pop(name, None)
        return self._index

    def tell(self, outcome: Outcome, at: float, kind: str) -> None:
        """Gather what the entry of type *kind* changed; the subscribers hear of it at the next ``flush``."""
        if not outcome.changes or kind in UNTOLD:
            return
        self._gathered.append(Applied(outcome.index, self._index, at, kind, outcome.changes))
        self._gathered_changes += len(outcome.changes)
        self._index = outcome.index
        if self._gathered_changes >= TOGETHER_MAX:
            self.flush()

    def flush(self) -> None:
        """Let all hear what was gathered, before anyone is answered who may have seen it elsewhere."""
        if not self._gathered:
            return
        gathered, self._gathered, self._gathered_changes = self._gathered, [], 0
        gathered[-1] = replace(gathered[-1], job_counts=dict(self._counts()))
        batches: dict[tuple[JobsWanted, int], Batch] = {}  # what is said to several is pickled once
        by_wish = {wish: concerning(gathered, wish) for wish in set(self._wanted.values())}
        for name, previous in list(self._told.items()):
            told = by_wish[self._wanted[name]]
            if not told:
                continue  # nothing of it concerns this one; what it hears of next follows on what it heard of last
            wish = self._wanted[name], previous
            if wish not in batches:
                first = told[0] if told[0].previous == previous else replace(told[0], previous=previous)
                batches[wish] = Batch((first, *told[1:]))
            if self._server.cast_all(name, batches[wish]):
                self._told[name] = told[-1].index
            else:
                self._lose(name)

    def tell_between(self, change: Change) -> None:
        """Tell all of a *change* that is no entry of the ledger, in order with the entries: who leads, who is there."""
        self.flush()
        for name, index in list(self._told.items()):
            if not self._server.cast(name, Applied(index, index, time(), LEADERSHIP, (change,))):
                self._lose(name)

    def lose_all(self, index: int) -> None:
        """Have everyone subscribe anew: the state was replaced by a snapshot's of *index*."""
        self._gathered.clear()
        self._gathered_changes = 0
        self._index = index
        for name in list(self._told):
            self._lose(name)

    def _lose(self, name: str) -> None:
        """End the subscription of *name*, which missed something; it is told to subscribe anew."""
        del self._told[name], self._wanted[name]
        self._lagging[name] = 0
        self._plan_resync()

    def _tell_lagging(self) -> None:
        self._resync_planned = False
        for name, tries in list(self._lagging.items()):
            if self._server.cast(name, Applied(self._index, -1, 0.0, RESYNC, ())) or tries >= RESYNC_TRIES:
                del self._lagging[name]
            else:
                self._lagging[name] = tries + 1
        self._plan_resync()

    def _plan_resync(self) -> None:
        if self._lagging and not self._resync_planned:
            self._resync_planned = True
            self._server.runtime.after(RESYNC_S, self._tell_lagging)


def concerning(gathered: Sequence[Applied], jobs: JobsWanted) -> list[Applied]:
    """The part of what was *gathered* for a subscriber to these *jobs*; each message follows on the one before."""
    if jobs == "all" and all(change[0] != "steps" for message in gathered for change in message.changes):
        return list(gathered)
    found: list[Applied] = []
    for message in gathered:
        changes = tuple(change for each in message.changes if (change := _as_wanted(each, jobs)) is not None)
        if changes:
            previous = found[-1].index if found else message.previous
            found.append(replace(message, changes=changes, previous=previous))
    return found


def _as_wanted(change: Change, jobs: JobsWanted) -> Change | None:
    kind, identity, job = change
    if kind == "steps":
        return change if jobs == "told" else None
    if kind != "job" or jobs == "all" or job is None or job["state"] != QUEUED or job["attempts"]:
        return None if kind == "job" and jobs == "none" else change
    if jobs != "told":
        return None
    return kind, identity, {name: job.get(name) for name in TOLD_OF_WAITING}
