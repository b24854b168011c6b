"""A host under load and under fire: nothing is lost, nothing is given twice, nothing is left behind.

make soak                                                  about four minutes, a new seed each time
SOAK_S=20 SOAK_SEED=7 make soak        as long, and with the dice, of your choice
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.system.soak import Soak, SoakAgent

SHORT_S = 12.0
LONG_S = float(os.environ.get("SOAK_S", "180"))


def soak(tmp_path: Path, lasts_s: float, seed: int) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    replay = f"SOAK_S={lasts_s:g} SOAK_SEED={seed} make soak"
    print(f"replay: {replay}  # commit {commit.stdout.strip() or 'unknown'}", flush=True)
    folder = tmp_path / "work"
    folder.mkdir()
    agent = SoakAgent(tmp_path / "host")
    agent.start()
    try:
        run = Soak(agent, folder, seed, lasts_s)
        run.run()
        print(run.summary(), flush=True)
    finally:
        agent.close()


@pytest.mark.timeout(150)
def test_a_host_survives_a_few_seconds_of_faults(tmp_path: Path) -> None:
    soak(tmp_path, SHORT_S, int(os.environ.get("SOAK_SEED", "1")))


@pytest.mark.soak
@pytest.mark.timeout(LONG_S + 400)
def test_a_host_survives_minutes_of_faults(tmp_path: Path) -> None:
    soak(tmp_path, LONG_S, int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(10**6)))
