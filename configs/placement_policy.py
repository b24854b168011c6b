"""The placement policies by name: what the setting may be, and what the engine knows, in the engine's order."""

from typing import Literal, get_args

PlacementPolicy = Literal[
    "completion",
    "fgd",
    "best_fit",
    "packing",
    "spread",
    "first_fit",
    "random",
    "affinity",
    "topology",
    "device_score",
]
POLICIES: tuple[str, ...] = get_args(PlacementPolicy)
