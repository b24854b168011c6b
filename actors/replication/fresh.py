"""What became durable here and is to be offered to others: by origin, from which sequence on."""

from __future__ import annotations

from collections.abc import Iterable

from .causal import Replica
from .delta_log import DottedDelta
from .peer_choice import PeerChoice
from .retirement import RetiredOrigins
from .version_vector import Vector


class FreshDeltas:
    """*near*: to hosts of this site. *afar*: to other sites, of what was made in this one."""

    def __init__(self) -> None:
        self._near: Vector = {}
        self._afar: Vector = {}
        # Origins of what came from other sites: here nobody but us may have it.
        self._crossed: set[Replica] = set()

    def came_from_afar(self, origins: Iterable[Replica]) -> None:
        """Deltas of them are staged that another site sent."""
        self._crossed.update(origins)

    def add(self, first: DottedDelta, me: Replica, choice: PeerChoice) -> None:
        """Deltas from *first* on are durable. With few hosts, nobody passes on what the origin has sent to all."""
        origin = first.origin
        if origin == me or not choice.few or origin in self._crossed:
            self._near.setdefault(origin, first.sequence)
        if choice.far_sites and not choice.is_far(origin[0]):
            self._afar.setdefault(origin, first.sequence)

    def settled(self) -> None:
        """Nothing is staged any more."""
        self._crossed.clear()

    def take_near(self) -> Vector:
        """What to offer here, once."""
        found, self._near = self._near, {}
        return found

    def take_afar(self) -> Vector:
        """What to bring to other sites, once."""
        found, self._afar = self._afar, {}
        return found

    def retire(self, retired: RetiredOrigins) -> None:
        """Of origins that are retired there is nothing to offer."""
        self._near, self._afar = retired.without(self._near), retired.without(self._afar)
