"""All the chance there is in a run: named streams of one seed."""

from __future__ import annotations

from random import Random


def stream(seed: int, name: str) -> Random:
    """The generator called *name* of this seed.

    Each part of a run draws from one of its own, so that a fault left out does not change what another part draws: a
    failing plan can be shrunk. Seeded from text, which does not depend on the process (PYTHONHASHSEED).
    """
    return Random(f"{seed}/{name}")
