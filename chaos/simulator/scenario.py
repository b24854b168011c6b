"""What a scenario is: faults, workloads and timing put together; its file's name is its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules

from actorgrid.chaos.faults.fault import Fault
from actorgrid.chaos.workloads.workload import Workload
from actorgrid.errors import BadRequest

from .world import Timing


@dataclass(frozen=True)
class Scenario:
    """``says`` is the sentence people read; ``voters`` how many there may be at the start, drawn by seed, with
    ``learners`` beside them.

    For ``seconds`` faults strike while clients work; then comes the calm. With ``swarm``, each seed leaves out a
    random half of the faults: what one fault hides another time shows (Groce et al., "Swarm Testing", 2012).
    """

    says: str
    faults: tuple[Fault, ...]
    workloads: Callable[[], tuple[Workload, ...]]
    voters: tuple[int, ...] = (3, 5)
    learners: int = 0
    seconds: float = 6.0
    swarm: bool = False
    timing: Timing = field(default_factory=Timing)


def names() -> list[str]:
    """All scenarios there are."""
    from actorgrid.chaos import scenarios

    return sorted(module.name for module in iter_modules(scenarios.__path__))


def find(name: str) -> Scenario:
    """The scenario of that name. Raises BadRequest."""
    if name not in names():
        raise BadRequest(f"there is no scenario {name!r}", asked=name, found=f"known: {', '.join(names())}")
    found = import_module(f"actorgrid.chaos.scenarios.{name}").SCENARIO
    assert isinstance(found, Scenario), f"{name} holds no scenario"
    return found
