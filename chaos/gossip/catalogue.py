"""All scenarios and planted bugs of gossip by name: those of membership, and of the shared state (``state_…``)."""

from __future__ import annotations

from actorgrid.errors import BadRequest

from .mutants import MUTANTS, hunt
from .scenarios import SCENARIOS, play
from .state_mutants import STATE_MUTANTS, hunt_state
from .state_scenarios import STATE_SCENARIOS
from .state_simulation import StateParts


def scenario_names() -> list[str]:
    """Every scenario."""
    return [*SCENARIOS, *STATE_SCENARIOS]


def scenario_says(name: str) -> str:
    """What happens in a scenario, in a sentence."""
    told = STATE_SCENARIOS[name].__doc__ if name in STATE_SCENARIOS else SCENARIOS[name].__doc__
    return (told or "").partition("\n")[0]


def play_any(name: str, seed: int) -> str:
    """Play that scenario; what was violated, or nothing. Raises BadRequest for a name that there is not."""
    if name in STATE_SCENARIOS:
        return STATE_SCENARIOS[name](seed, StateParts())
    if name not in SCENARIOS:
        known = ", ".join(scenario_names())
        raise BadRequest(f"there is no scenario {name!r}", asked=name, found=f"known: {known}")
    return play(name, seed)


def mutant_names() -> list[str]:
    """Every planted bug."""
    return [*MUTANTS, *STATE_MUTANTS]


def mutant_says(name: str) -> tuple[str, str]:
    """What a planted bug does wrong, and the scenario that shows it."""
    if name in STATE_MUTANTS:
        return STATE_MUTANTS[name].says, STATE_MUTANTS[name].scenario
    return MUTANTS[name].says, MUTANTS[name].scenario


def hunt_any(name: str, seeds_max: int) -> tuple[int, str]:
    """Play a planted bug's scenario from seed 1 on: the seed that caught it, and what was violated; or nothing."""
    return hunt_state(name, seeds_max) if name in STATE_MUTANTS else hunt(name, seeds_max)
