"""The scheduling policies that ship, and how others are found: by the entry points of a group."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points

from actorgrid.errors import UnknownPolicy

from .affinity import Affinity
from .backfill import ConservativeBackfill, EasyBackfill, Gang
from .base import SchedulingPolicy
from .edf import EarliestDeadline
from .fifo import Fifo
from .las import LeastAttainedService
from .priority import Priority

GROUP = "actorgrid.scheduling_policies"
BUILT_IN: dict[str, type[SchedulingPolicy]] = {
    each.name: each
    for each in (
        Fifo,
        Priority,
        Affinity,
        Gang,
        EasyBackfill,
        ConservativeBackfill,
        LeastAttainedService,
        EarliestDeadline,
    )
}

__all__ = ["BUILT_IN", "GROUP", "SchedulingPolicy", "find_policy"]


def find_policy(name: str) -> SchedulingPolicy:
    """The policy of that name, with its default settings: one that ships, or one that an installed package offers.

    A package offers one by an entry point of the group ``actorgrid.scheduling_policies``: a class derived from
    :class:`SchedulingPolicy`, or a function that gives one. Names that ship cannot be taken over. Raises
    UnknownPolicy, with the nearest name.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    offered = {each.name: each for each in entry_points(group=GROUP)}
    if name in offered:
        found = offered[name].load()()
        if not isinstance(found, SchedulingPolicy):
            raise UnknownPolicy(
                f"the entry point {name!r} gives no scheduling policy",
                asked=offered[name].value,
                found=type(found).__name__,
                hint="derive the class from actorgrid.actors.scheduling.policies.SchedulingPolicy",
            )
        return found
    names = sorted({*BUILT_IN, *offered})
    close = difflib.get_close_matches(name.lower().replace("-", "_"), names, n=1, cutoff=0.5)
    raise UnknownPolicy(
        f"there is no scheduling policy {name!r}",
        asked=name,
        found=", ".join(names),
        hint=f"did you mean {close[0]}?" if close else f"use one of: {', '.join(names)}",
    )
