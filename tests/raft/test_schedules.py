from __future__ import annotations

import pytest

from tests.raft.schedules import Schedule


@pytest.mark.parametrize("seed", range(150))
def test_raft_keeps_its_laws_and_recovers_whatever_happens(seed: int) -> None:
    Schedule(seed).run(600)


@pytest.mark.soak
def test_raft_keeps_its_laws_over_many_schedules() -> None:
    for seed in range(1_000, 6_000):
        Schedule(seed).run(2_000)
