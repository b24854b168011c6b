"""An allocator that may be another package's: what it raises is kept from the server, and is no opinion."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from actorgrid.dag.allocators import Allocator
from actorgrid.dag.hosts import ResourceTracker
from actorgrid.dag.model import Graph
from actorgrid.errors import InvalidGraph


class GuardedAllocator:
    """Does as another one does, as long as that does well. How long it takes is not bounded: who installs one trusts
    it so far."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self.by_plan = bool(allocator.by_plan)
        self.holds_back = bool(allocator.holds_back)

    def prepare(self, graph: Graph, tracker: ResourceTracker) -> Sequence[float] | None:
        """As in Allocator. Raises whatever the other raises, InvalidGraph for what is no urgency of each step."""
        urgency = self._allocator.prepare(graph, tracker)
        if urgency is None:
            return None
        found = [float(each) for each in urgency]
        if len(found) != len(graph) or any(map(math.isnan, found)):
            raise InvalidGraph("the urgency is no number for each step", found=f"{len(found)} of {len(graph)} steps")
        return found

    def allocate(self, ready: Sequence[int], tracker: ResourceTracker, now_s: float) -> None:
        """As in Allocator; where the other raises, what it has claimed before stands."""
        with contextlib.suppress(Exception):
            self._allocator.allocate(ready, tracker, now_s)

    def hint(self, step: int) -> str:
        """As in Allocator."""
        try:
            return str(self._allocator.hint(step))
        except Exception:  # noqa: BLE001 - whatever it is, it has no opinion
            return ""
