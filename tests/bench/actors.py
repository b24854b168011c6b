"""Actors that are processes: calls, large messages, deaths, restarts, memory; ours, and beside other systems."""

from __future__ import annotations

from collections.abc import Iterator

from .actor_systems import SYSTEMS, actorgrid
from .actor_work import Measured, Work, compared, ours
from .figures import Figure, Skipped, registry


@registry.add("actors")
def actors(runs: int) -> Iterator[Figure]:
    """Ours, against the project's bars."""
    yield from ours([actorgrid(Work()) for _ in range(runs)])


@registry.add("actor_peers")
def actor_peers(runs: int) -> Iterator[Figure]:
    """The same work for each system in turn, round after round, so that each meets the same machine.

    At the end raises Skipped with the reasons of those that did not run.
    """
    work = Work()
    measured: dict[str, list[Measured]] = {name: [] for name in SYSTEMS}
    missing: dict[str, str] = {}
    for _ in range(runs):
        for name, system in SYSTEMS.items():
            if name not in missing:
                try:
                    measured[name].append(system.measure(work))
                except Skipped as reason:
                    missing[name] = str(reason)
    for name, system in SYSTEMS.items():
        if measured[name]:
            title = f"{name} {measured[name][0].get('version', '')}".strip()
            yield from compared(title, measured[name], system.note)
    if missing:
        raise Skipped("; ".join(f"{name}: {reason}" for name, reason in missing.items()))
