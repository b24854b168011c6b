"""The types of work that there are: those that ship, and those of installed packages."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from actorgrid.errors import InvalidWork

from .base import WorkType

GROUP = "actorgrid.work_types"
BUILT_IN = {
    "function": "plain:FunctionWork",
    "command": "plain:CommandWork",
    "container": "plain:ContainerWork",
    "gpu_computation": "gpu_computation:GpuComputation",
    "data_transformation": "data_transformation:DataTransformation",
    "machine_learning_inference": "inference:Inference",
    "neuromorphic_processing": "neuromorphic:NeuromorphicProcessing",
    "blockchain_transaction": "blockchain:BlockchainTransaction",
}
"""Loaded when they are asked for."""


@dataclass(frozen=True, slots=True)
class BrokenWorkType:
    """One of an installed package that cannot be used, and why."""

    name: str
    value: str
    reason: str


def find_work_type(name: str) -> WorkType:
    """The type of that name. Raises InvalidWork for one that is not there, with the nearest name, or is broken."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: WorkType = getattr(import_module(f".{module}", __package__), attribute)()
        return found
    offered = {each.name: each for each in _offered()}
    if name in offered:
        loaded = _load(offered[name])
        if isinstance(loaded, BrokenWorkType):
            raise InvalidWork(
                f"the work type {name!r} of an installed package cannot be used",
                asked=loaded.value,
                found=loaded.reason,
                hint="mend or remove that package",
            )
        return loaded
    names = sorted({*BUILT_IN, *offered})
    near = difflib.get_close_matches(name.lower().replace("-", "_"), names, n=1, cutoff=0.5)
    raise InvalidWork(
        f"there is no work type {name[:80]!r}",
        asked=name[:80],
        found=", ".join(names),
        hint=f"did you mean {near[0]}?" if near else "actorgrid work types lists them",
    )


def work_types() -> tuple[list[WorkType], list[BrokenWorkType]]:
    """All that can be used, those that ship first; and those of installed packages that cannot."""
    types = [find_work_type(name) for name in BUILT_IN]
    broken = []
    for each in sorted(_offered(), key=lambda each: each.name):
        loaded = _load(each)
        if isinstance(loaded, BrokenWorkType):
            broken.append(loaded)
        else:
            types.append(loaded)
    return types, broken


def _offered() -> list[EntryPoint]:
    """Of a name that ships, or that two packages offer, the first one counts: nobody replaces what others count on."""
    offered: dict[str, EntryPoint] = {}
    for each in entry_points(group=GROUP):
        if each.name not in BUILT_IN:
            offered.setdefault(each.name, each)
    return list(offered.values())


def _load(entry: EntryPoint) -> WorkType | BrokenWorkType:
    try:
        made = entry.load()()
        if not isinstance(made, WorkType):
            return BrokenWorkType(entry.name, entry.value, f"it gives a {type(made).__name__}, and no WorkType")
        made.schema()
    except Exception as error:  # noqa: BLE001 - a package may be anybody's, and hides no other
        return BrokenWorkType(entry.name, entry.value, f"{type(error).__name__}: {error}"[:300])
    return made
