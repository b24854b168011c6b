"""Places for the members of a gang: near each other, or each on a host of its own. Decisions only.

Members talk to each other all the time, so nearness counts for more than what a placement policy would save: one rack
if there is one that holds all, in it as few hosts as can be, and of those that would do the fullest. What no rack
holds goes to the racks with most room, so that as few as possible are used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from typing import Any

from actorgrid.hotpath import NodeView
from actorgrid.hotpath.capacity import Devices, GangNeeds
from actorgrid.hotpath.explain import explain_misfit
from actorgrid.hotpath.records import Shares

from .preemption_view import NodeOccupancy

HOSTS_SHOWN = 10


def choose_places(nodes: Iterable[NodeOccupancy], needs: GangNeeds, closed: Container[str] = ()) -> Shares | None:
    """A place for each member among the *nodes* that are not *closed*, by rank; ``None`` when not all fit."""
    racks: dict[str | None, list[tuple[int, NodeOccupancy]]] = {}
    for node in nodes:
        if node.name not in closed and (count := node.members(node.free, needs, needs.gang)):
            racks.setdefault(node.rack, []).append((count, node))
    room = {rack: sum(count for count, _ in able) for rack, able in racks.items()}
    if sum(room.values()) < needs.gang:
        return None
    enough = [rack for rack in racks if rack is not None and room[rack] >= needs.gang]
    if enough:
        sets = {rack: _fewest(racks[rack], needs.gang) for rack in enough}
        chosen = sets[min(enough, key=lambda rack: (len(sets[rack]), room[rack]))]
    elif len(racks) == 1:
        chosen = _fewest(next(iter(racks.values())), needs.gang)
    else:
        chosen = []
        left = needs.gang
        for rack in sorted(racks, key=lambda rack: -room[rack]):
            if left:
                taken = _fewest(racks[rack], min(left, room[rack]))
                left -= sum(count for count, _ in taken)
                chosen += taken
    shares: list[tuple[str, Devices]] = []
    for count, node in chosen:
        shares += [(node.name, devices) for devices in node.choose(node.free, needs, count)]
    return tuple(shares)


def _fewest(able: Iterable[tuple[int, NodeOccupancy]], wanted: int) -> list[tuple[int, NodeOccupancy]]:
    """The fewest hosts of *able* that hold so many members, with how many each is to have."""
    left = sorted((count, node.free.total, node.number, node) for count, node in able)
    chosen = []
    while wanted:
        # The fullest that holds all that is left, or else one that holds most.
        at = bisect_left(left, (wanted,))
        if at == len(left):
            at = bisect_left(left, (left[-1][0],))
        count, _, _, node = left.pop(at)
        chosen.append((min(count, wanted), node))
        wanted -= chosen[-1][0]
    return chosen


def explain_places(
    nodes: Sequence[NodeOccupancy], views: Iterable[NodeView], needs: GangNeeds, arguments: dict[str, Any]
) -> dict[str, Any]:
    """How many members fit now, and what each host that holds none of them lacks; at most 10 hosts are named."""
    counts = {node.name: node.members(node.free, needs, needs.gang) for node in nodes}
    total = min(needs.gang, sum(counts.values()))
    hosts: list[dict[str, Any]] = []
    alone = {name: value for name, value in arguments.items() if name not in ("gang", "prefer_racks")}
    asked = {"gpu_count": 0, "gpu_milli": 1000, "gpu_memory_mib": 0, "gpu_models": (), "exclude": (), "within": ()}
    for view in views:
        if len(hosts) == HOSTS_SHOWN:
            break
        here: dict[str, Any] = {"host": view.name, "members": counts.get(view.name, 0), "failed": [], "missing": {}}
        if not here["members"]:
            found = explain_misfit([view], **{**asked, **alone})
            here |= {"failed": sorted(found["failed"]), "missing": (found["nearest"] or {}).get("missing", {})}
        hosts.append(here)
    return {"fits": total == needs.gang, "gang": needs.gang, "members_that_fit": total, "hosts": hosts}
