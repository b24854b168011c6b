"""The cluster as the search for victims sees it: who runs on each node, what is free there, what is reserved.

The engine stays the truth: a view is read from ``engine.nodes()`` and then follows the scheduler's own starts and
ends. When room comes free is the forecast's business, not the view's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from actorgrid.hotpath import NodeView, PlacementEngine
from actorgrid.hotpath.capacity import Devices, NodeCapacity
from actorgrid.hotpath.records import Shares

if TYPE_CHECKING:
    from .job import ScheduledJob
    from .reservation import Reservation


class NodeOccupancy(NodeCapacity):
    """The occupancy of a node: what is free, who runs there, who has a reservation there."""

    __slots__ = ("rack", "reserved", "runs")

    def __init__(self, view: NodeView, number: int) -> None:
        super().__init__(view, number)
        self.rack = view.rack
        self.runs: dict[str, tuple[ScheduledJob, list[Devices]]] = {}
        self.reserved: dict[str, Reservation] = {}


class PreemptionView:
    """A view of all nodes, read from the engine; *running* are the jobs whose ends the scheduler will tell."""

    def __init__(self, engine: PlacementEngine, running: Iterable[ScheduledJob]) -> None:
        self.nodes = {view.name: NodeOccupancy(view, number) for number, view in enumerate(engine.nodes())}
        for job in running:
            self._note(job)

    def started(self, job: ScheduledJob) -> None:
        """Take note that *job* has its placement."""
        self._note(job)
        self._change(job, -1)

    def ended(self, job: ScheduledJob) -> None:
        """Take note that *job* gives its placement back."""
        self._change(job, 1)
        assert job.placement is not None
        for name, _ in job.placement.shares:
            if name in self.nodes:
                self.nodes[name].runs.pop(job.id, None)

    def keep(self, reservation: Reservation) -> None:
        """Note a reservation, whose place is kept."""
        for name in reservation.nodes:
            if name in self.nodes:
                self.nodes[name].reserved[reservation.job.id] = reservation

    def release(self, reservation: Reservation) -> None:
        """Forget a reservation, whose place is kept no more."""
        for name in reservation.nodes:
            if name in self.nodes:
                self.nodes[name].reserved.pop(reservation.job.id, None)

    def rack_or_node(self, names: Iterable[str]) -> Shares:
        """The nodes of these names and of these racks, whole, as ``within`` has them."""
        wanted = frozenset(names)
        return tuple(
            (node.name, tuple(range(len(node.models))))
            for node in self.nodes.values()
            if node.name in wanted or node.rack in wanted
        )

    def _note(self, job: ScheduledJob) -> None:
        assert job.placement is not None
        for name, indexes in job.placement.shares:
            if name in self.nodes:
                self.nodes[name].runs.setdefault(job.id, (job, []))[1].append(indexes)

    def _change(self, job: ScheduledJob, sign: int) -> None:
        assert job.placement is not None and job.needs is not None
        for name, indexes in job.placement.shares:
            if name in self.nodes:
                self.nodes[name].free.change(job.needs, indexes, sign)


def among(only: Mapping[str, frozenset[int]], shares: Shares) -> Shares:
    """The part of *shares* that is among the *only* devices allowed; empty *only*: all are.

    What is liked narrows what is demanded, and never stands in its place.
    """
    if not only:
        return shares
    kept = ((name, tuple(index for index in indexes if index in only.get(name, ()))) for name, indexes in shares)
    return tuple(share for share in kept if share[1])
