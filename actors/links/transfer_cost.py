"""What a transfer takes of the processors at both of its ends, and how fast these could do it at most.

The other end is asked over a stream of the link how much its process has used so far, before the transfer and after it:
24 bytes, answered with as many. A host of before sends back what came, which is no answer.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from time import process_time
from typing import NamedTuple, TypedDict

ANSWER = struct.Struct("<dQQ")
QUESTION = bytes(ANSWER.size)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ProcessorUse(NamedTuple):
    """What one end has used so far."""

    cpu_s: float
    """Of its process, all threads."""
    cores: int
    """That the process may run on."""
    machine: int
    """Which machine that is, as a number; 0: not known."""

    def packed(self) -> bytes:
        """For the other end."""
        return ANSWER.pack(*self)


class TransferCost(TypedDict):
    """What a transfer took, and could take, of processors."""

    cpu_s_per_gb_here: float
    """Seconds of CPU of the process that reads, for 1e9 bytes."""
    cpu_s_per_gb_there: float
    cores_here: int
    cores_there: int
    same_machine: bool
    """Both ends have the same cores: they share them."""
    cpu_bound_mb_per_s: float
    """As fast as these cores could do it if they did nothing else, and nothing else were in the way."""


def process_use() -> ProcessorUse:
    """What this process has used."""
    try:
        machine = zlib.crc32(_BOOT_ID.read_bytes())
    except OSError:
        machine = 0
    return ProcessorUse(process_time(), len(os.sched_getaffinity(0)), machine)


def answered(data: bytes) -> ProcessorUse | None:
    """What the other end says; ``None`` where it does not know the question."""
    found = ProcessorUse(*ANSWER.unpack(data)) if len(data) == ANSWER.size else None
    return found if found is not None and found.cores > 0 and found.cpu_s >= 0 else None


def transfer_cost(
    here: tuple[ProcessorUse, ProcessorUse], there: tuple[ProcessorUse, ProcessorUse], count: int
) -> TransferCost | None:
    """The cost of *count* bytes between the first and the second look at both ends; ``None`` of none."""
    if count <= 0:
        return None
    ours, theirs = ((after.cpu_s - before.cpu_s) * 1e9 / count for before, after in (here, there))
    cores, others = here[1].cores, there[1].cores
    same = bool(here[1].machine) and here[1].machine == there[1].machine
    if same:
        most = max(cores, others) / (ours + theirs) if ours + theirs > 0 else 0.0
    else:
        most = min(n / each for n, each in ((cores, ours), (others, theirs)) if each > 0) if ours > 0 < theirs else 0.0
    return {
        "cpu_s_per_gb_here": round(ours, 3),
        "cpu_s_per_gb_there": round(theirs, 3),
        "cores_here": cores,
        "cores_there": others,
        "same_machine": same,
        "cpu_bound_mb_per_s": round(most * 1e3, 1),
    }
