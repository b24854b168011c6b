"""The placement engine: place and release at saturation of the openb cluster's size."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from actorgrid.hotpath import COMPILED, PlacementEngine

from .figures import Figure, latency, registry

NODES = 1553  # of 8 devices each: 12,424 GPUs
STEPS = 20_000


def _fill(engine: PlacementEngine, dice: random.Random) -> list[object]:
    held: list[object] = []
    refused = 0
    while refused < 50:
        placed = engine.place(**_ask(dice))
        if placed is None:
            refused += 1
        else:
            held.append(placed.id)
    return held


def _ask(dice: random.Random) -> dict[str, int]:
    milli = dice.choice((100, 250, 500, 1000, 1000, 1000))
    count = dice.choice((1, 1, 1, 2, 4, 8)) if milli == 1000 else 1
    return {"cpu_milli": 1000 * count, "memory_mib": 4096 * count, "gpu_count": count, "gpu_milli": milli}


@registry.add("placement")
def placement(runs: int) -> Iterator[Figure]:
    """Successful placements and releases on a full cluster of 12,424 GPUs."""
    placed, released = [], []
    for run in range(runs):
        dice = random.Random(run)
        engine = PlacementEngine(policy="best_fit")
        for number in range(NODES):
            engine.add_node(
                f"n{number}", cpu_milli=128_000, memory_mib=1 << 20, gpu_count=8, gpu_model="H100", gpu_memory_mib=81920
            )
        held = _fill(engine, dice)
        places, releases = [], []
        for _ in range(STEPS):
            at = dice.randrange(len(held))
            held[at], held[-1] = held[-1], held[at]
            victim = held.pop()
            started = time.perf_counter()
            engine.release(victim)
            releases.append(time.perf_counter() - started)
            ask = _ask(dice)
            started = time.perf_counter()
            found = engine.place(**ask)
            took = time.perf_counter() - started
            if found is not None:
                places.append(took)
                held.append(found.id)
            if not held:
                break
        placed.append(places)
        released.append(releases)
    note = "compiled" if COMPILED else "plain Python"
    yield latency("place, 12,424 GPUs at saturation", placed, "µs", 1e6, must=3, stretch=2, note=note)
    yield latency("release", released, "µs", 1e6, note=note)
