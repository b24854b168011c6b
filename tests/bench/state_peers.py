"""The same work for the shared state's types and for pycrdt (Yjs in Rust), where that is installed: both in memory, on
one core, whose time is counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module, metadata
from typing import Any

from actorgrid.actors.replication.types import LWWRegister

from .figures import Figure, Skipped, registry
from .gossip import BATCH, DELTAS, KEYS, joined_rate, registers

WORK = f"{DELTAS:,} writes of numbers to {KEYS:,} keys"


@registry.add("state_peers")
def state_peers(runs: int) -> Iterator[Figure]:
    try:
        pycrdt: Any = import_module("pycrdt")
    except ImportError as error:
        raise Skipped("pycrdt is not installed (pip install pycrdt)") from error
    peer = f"pycrdt {metadata.version('pycrdt')}"
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    for _ in range(runs):  # in turn, so that other work on the machine meets both
        ours.append((_written(), joined_rate(registers)))
        theirs.append(_of_pycrdt(pycrdt))
    for name, found in (("actorgrid, lww_register", ours), (f"{peer}, Map", theirs)):
        note = f"{WORK}, a delta of each"
        yield Figure(f"writes: {name}", "writes/s", [one[0] for one in found], True, note=note)
        note = f"the same deltas in another replica, {BATCH} together"
        yield Figure(f"deltas applied: {name}", "deltas/s", [one[1] for one in found], True, note=note)


def _written() -> float:
    """Writes a second, each with its delta's bytes."""
    state: dict[str, LWWRegister] = {}
    deltas: list[tuple[str, bytes]] = []
    began_s = time.process_time()
    for number in range(DELTAS):
        deltas.append(registers(state, number, ("here", 1)))
    return DELTAS / (time.process_time() - began_s)


def _of_pycrdt(pycrdt: Any) -> tuple[float, float]:
    """Writes a second, each a transaction with its update's bytes, and updates a second applied to another document."""
    here, there = pycrdt.Doc(), pycrdt.Doc()
    values = here.get("bench", type=pycrdt.Map)
    updates: list[bytes] = []
    subscription = here.observe(lambda event: updates.append(event.update))
    began_s = time.process_time()
    for number in range(DELTAS):
        values[f"bench/{number % KEYS}"] = number
    written = DELTAS / (time.process_time() - began_s)
    here.unobserve(subscription)
    assert len(updates) == DELTAS
    began_s = time.process_time()
    for start in range(0, DELTAS, BATCH):
        with there.transaction():  # as ours come together, so do these
            for update in updates[start : start + BATCH]:
                there.apply_update(update)
    applied = DELTAS / (time.process_time() - began_s)
    assert there.get("bench", type=pycrdt.Map).to_py() == values.to_py()
    return written, applied
