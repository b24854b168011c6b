"""Which workers leave an overloaded host, and for where. Decisions only.

A session's lease can move at any time: its worker gets nothing new, ends what it has, and is given back; the client
asks for another. Attempts of jobs stay: to move one is to stop it, which preemption and ``leave --now`` do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from actorgrid.actors.ledger.record_types import AllocationRecord

OVERLOADED = 0.9
"""A host with this load for each CPU is overloaded."""
ROOM = 0.6
"""One with less than that, also with what moves there, takes more."""
MOVES_MAX = 64
"""Moves in one plan: after them, loads are another, and are looked at again."""


class LeaseMove(TypedDict):
    """One worker that is to leave."""

    lease_id: str
    """The lease."""
    home: str
    """The id of the host where its session was opened, which tells the client."""
    host: str
    """The id of the host that it leaves."""
    to: str
    """The id of the host that is tried first for its successor."""
    why: str
    """Why it is to leave."""
    done: bool
    """Whether its client was told: at its next renewal."""


class RebalancePlan(TypedDict):
    """What ``Rebalance`` answers."""

    overloaded: list[str]
    """The ids of the hosts with more load than they should have, and those that were to be emptied."""
    moves: list[LeaseMove]
    """What is to move, ``MOVES_MAX`` at most."""
    stays: int
    """Allocations on those hosts that are not moved: attempts of jobs, and leases for which no host has room."""
    dry_run: bool
    """Whether nothing was done."""


@dataclass(frozen=True, slots=True)
class HostRoom:
    """What is known of one host that may take more."""

    host_id: str
    cpus: int
    load_per_cpu: float | None
    """``None``: not known, and then nothing moves there or away because of load."""
    cpu_milli_free: int
    memory_mib_free: int


def plan_moves(
    hosts: Iterable[HostRoom],
    allocations: Mapping[str, AllocationRecord],
    exclude: Collection[str],
    homes: Mapping[str, str],
) -> RebalancePlan:
    """Moves of leases off hosts that are overloaded, the most loaded first, or in *exclude*, to those with room.

    *homes*: of each lease of a session, the host where that was opened. Leases with GPUs stay: which device is free
    where is the placement's to know. Each goes to the host with the least load for its CPUs that has what it holds
    and is left with less than ``ROOM``; off a host in *exclude* also to a fuller one.
    """
    rooms = {room.host_id: room for room in hosts}
    expected = {id: room.load_per_cpu for id, room in rooms.items() if room.load_per_cpu is not None}
    cpu_free = {id: room.cpu_milli_free for id, room in rooms.items()}
    memory_free = {id: room.memory_mib_free for id, room in rooms.items()}
    over = [id for id in expected if expected[id] >= OVERLOADED and id not in exclude]
    leaving = [*sorted(exclude), *sorted(over, key=lambda id: -expected[id])]
    moves: list[LeaseMove] = []
    stays = 0
    for source in leaving:
        emptied = source in exclude
        for lease_id, held in sorted(allocations.items()):
            if held["host"] != source:
                continue
            if lease_id not in homes or held["gpu_uuids"] or len(moves) >= MOVES_MAX:
                stays += 1
                continue
            if not emptied and expected[source] < OVERLOADED:
                break  # what has moved is enough
            cost = held["cpu_milli"] / 1000
            has_room = [
                id
                for id in expected
                if id not in exclude and cpu_free[id] >= held["cpu_milli"] and memory_free[id] >= held["memory_mib"]
            ]
            fits = [id for id in has_room if expected[id] + cost / rooms[id].cpus < ROOM]
            if emptied and not fits:
                fits = has_room  # it has to go somewhere
            if not fits:
                stays += 1
                continue
            to = min(fits, key=lambda id: (expected[id], id))
            why = "its host is to be emptied" if emptied else f"load {expected[source]:.2f} for each CPU"
            move = LeaseMove(lease_id=lease_id, home=homes[lease_id], host=source, to=to, why=why, done=False)
            moves.append(move)
            expected[to] += cost / rooms[to].cpus
            cpu_free[to] -= held["cpu_milli"]
            memory_free[to] -= held["memory_mib"]
            if source in expected:
                expected[source] -= cost / rooms[source].cpus
    return {"overloaded": leaving, "moves": moves, "stays": stays, "dry_run": True}
