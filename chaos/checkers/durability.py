"""What a leader calls committed is on the disks of a majority: a promise about disks, checked by looking at them."""

from __future__ import annotations

from collections.abc import Mapping

from actorgrid.actors.raft.messages import Entry

from .checker import Checker, Host, Voters


class Durability(Checker):
    """Checks that a majority of each half of the configuration has synced an entry when a leader calls it committed.

    A host whose disk broke since counts: it had synced what it said, and stays down.
    """

    def commits(self, host: Host, entry: Entry, configurations: tuple[Voters, ...], hosts: Mapping[int, Host]) -> None:
        """Look at the disks."""

        def has(id: int) -> bool:
            return not hosts[id].trusted or hosts[id].durable.covers(entry.index, entry.term)

        for voters in configurations:
            if all(2 * sum(map(has, half)) > len(half) for half in voters):
                return
        self.fail(
            "a leader calls an entry committed that a majority has not synced",
            asked=f"host {host.id}: entry {entry.index} of term {entry.term}",
            found=f"on disk at {[id for id in hosts if has(id)]}, voters {[sorted(h) for h in configurations[-1]]}",
        )
