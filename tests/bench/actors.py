"""Actors that are processes: calls, large messages, deaths, restarts, memory; ours, and beside other systems."""

from __future__ import annotations

from collections.abc import Iterator

from .actor_systems import SYSTEMS, System, actorgrid
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
    measured: dict[System, list[Measured]] = {system: [] for system in SYSTEMS}
    missing: dict[System, str] = {}
    for _ in range(runs):
        for system in SYSTEMS:
            if system not in missing:
                try:
                    measured[system].append(system.measure(work))
                except Skipped as reason:
                    missing[system] = str(reason)
    for system, found in measured.items():
        if found:
            title = system.title.format(version=found[0].get("version", ""))
            yield from compared(title, found, system.note)
    if missing:
        named = (f"{system.title.replace(' {version}', '')}: {reason}" for system, reason in missing.items())
        raise Skipped("; ".join(named))
