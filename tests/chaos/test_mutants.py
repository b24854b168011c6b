"""The simulator finds the bugs planted for it; those it needs long for are hunted in the soak."""

from __future__ import annotations

import pytest

from actorgrid.chaos.mutants import catalogue
from actorgrid.chaos.mutants.catalogue import MUTANTS

SEEDS_MAX = 2_000
FAST_SEEDS_MAX = 60
FAST = [name for name, mutant in MUTANTS.items() if mutant.fast]


@pytest.mark.system
@pytest.mark.parametrize("name", FAST)
def test_a_mutant_is_caught_fast(name: str) -> None:
    hunted = catalogue.hunt(name, FAST_SEEDS_MAX)
    assert hunted.checker, f"not caught in {hunted.seeds} seeds of {hunted.scenario}"


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_within_two_thousand_seeds_wherever_they_begin(name: str) -> None:
    for first in (1, 100_000):
        hunted = catalogue.hunt(name, SEEDS_MAX, first)
        assert hunted.checker, f"not caught in {hunted.seeds} seeds of {hunted.scenario} from {first} on"


def test_the_table_of_mutants_in_the_documentation_is_complete(docs: str) -> None:
    for name, mutant in MUTANTS.items():
        assert f"| `{name}` | {mutant.says} | `{mutant.scenario}` |" in docs, "actorgrid chaos mutants --markdown"
