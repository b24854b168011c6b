"""What a leader calls committed is on the disks of a majority: a promise about disks, checked by looking at them."""

from __future__ import annotations

from collections.abc import Mapping

from actorgrid.actors.consensus.raft.messages import Entry

from .checker import Checker, Host


class Durability(Checker):
    """At the moment a leader finds an entry committed, a majority of each half of its configuration has synced it.

    A host whose disk broke since counts: it had synced what it said, and stays down.
    """

    def commits(self, host: Host, entry: Entry, voters: tuple[frozenset[int], ...], hosts: Mapping[int, Host]) -> None:
        """Look at the disks."""
        for half in voters:
            have = sum(not hosts[id].trusted or hosts[id].durable.covers(entry.index, entry.term) for id in half)
            if 2 * have <= len(half):
                self.fail(
                    "a leader calls an entry committed that a majority has not synced",
                    asked=f"host {host.id}: entry {entry.index} of term {entry.term} by voters {sorted(half)}",
                    found=f"{have} of {len(half)} have it on disk",
                )
