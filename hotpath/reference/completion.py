"""Expected completion: how much of a node's free GPU the tasks that usually arrive would still fill, in plain Python.

Tasks are drawn from the typical mix, one after another; each that fits takes its share, until nothing fits any more.
What they take in all, on the average, is the worth of the node's state. To weigh a task's place by what it costs in
worth goes beyond the next task, which is all that FGD looks at. The state is made coarse, so that tables hold it:

* each partly free device by itself (``share_worth``). Four tenths of its worth are what drawn shares would fill of it;
  six tenths what its rest is worth at the prices of shares packed as well as can be (``share_packing.py``): drawn
  streams alone hold rests worthless that a patient packer would fill, prices alone hold every rest to be filled;
* the CPU that these shares will still ask for. Where there is less, they are worth as much less; eleven sixteenths of
  it are kept for them (not all that may come does), and what is left is for the whole devices;
* whole devices, by the CPU that is left for them (``whole_worth``). To that is added a part of the use that the next
  task has for them, a tenth for tasks of one device and three for tasks of several: so that nodes which these need are
  not broken where all else is equal.

CPU between two buckets is counted with both, by its distance. All is in whole numbers, so that both engines agree.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from ..records import WHOLE_GPU_MILLI

UNIT = 16  # worth is counted in sixteenths of thousandths of a GPU
DRAWN_TENTHS = 4
USE_TENTHS = 1
USE_OF_SEVERAL_TENTHS = 3
CPU_KEPT = 11  # sixteenths
COUNT_UNIT = 256
CPU_MAX = 1 << 30  # thousandths of cores: a task that asks for more is taken to ask for so much
PART_BITS = 10  # of the distance to the next CPU bucket

WeighedTask = tuple[int, int, int, int]  # cpu_milli, gpu_count, gpu_milli, weight


class Shares(NamedTuple):
    """Of a device of which 0, 1, ... 999 thousandths are free.

    ``worth`` in units; ``cpu`` in thousandths of cores is what will be asked for with it. ``taken`` is how many shares
    a whole device will have taken in the end, in COUNT_UNITs, at least one.
    """

    worth: array[int]
    cpu: array[int]
    taken: int


def share_worth(tasks: Sequence[WeighedTask], prices: Sequence[tuple[int, int]]) -> Shares:
    """*prices* are (thousandths, units) of each size of share."""
    ones = [
        (min(cpu, CPU_MAX), milli, weight)
        for cpu, count, milli, weight in tasks
        if count == 1 and milli < WHOLE_GPU_MILLI and weight
    ]
    drawn = [0] * (WHOLE_GPU_MILLI + 1)
    asked = [0] * (WHOLE_GPU_MILLI + 1)
    counts = [0] * (WHOLE_GPU_MILLI + 1)
    packed = [0] * (WHOLE_GPU_MILLI + 1)
    for free in range(1, WHOLE_GPU_MILLI + 1):
        mass = worth = cpu_asked = count_taken = 0
        for cpu, milli, weight in ones:
            if milli <= free:
                mass += weight
                worth += weight * (milli * UNIT + drawn[free - milli])
                cpu_asked += weight * (cpu + asked[free - milli])
                count_taken += weight * (COUNT_UNIT + counts[free - milli])
        if mass:
            drawn[free], counts[free] = worth // mass, count_taken // mass
            asked[free] = min(CPU_MAX, cpu_asked // mass)
        packed[free] = packed[free - 1]
        for milli, price in prices:
            if milli <= free:
                packed[free] = max(packed[free], packed[free - milli] + price)
    return Shares(
        array(
            "i",
            (
                (DRAWN_TENTHS * one + (10 - DRAWN_TENTHS) * other) // 10
                for one, other in zip(drawn[:-1], packed[:-1], strict=True)
            ),
        ),
        array("i", asked[:-1]),
        max(COUNT_UNIT, counts[-1]),
    )


def scaled_to_cpu(worth: int, has: int, asked: int) -> int:
    """*worth* of shares that will ask for so much CPU, where there is so much."""
    return worth if has >= asked else worth * ((has << PART_BITS) // asked) >> PART_BITS


def left_by(has: int, asked: int) -> int:
    """The CPU that shares which will ask for so much leave to others."""
    return max(0, has - (asked * CPU_KEPT >> 4))


def between(table: Sequence[int], start: int, cpu_buckets: int, cpu_shift: int, cpu: int) -> int:
    """What *table* has for so much CPU, from *start* on; one beyond the last bucket is taken for the last."""
    at = cpu >> cpu_shift
    if at >= cpu_buckets - 1:
        return table[start + cpu_buckets - 1]
    part = (cpu >> (cpu_shift - PART_BITS)) & ((1 << PART_BITS) - 1)
    return (table[start + at] * ((1 << PART_BITS) - part) + table[start + at + 1] * part) >> PART_BITS


def whole_worth(
    tasks: Sequence[WeighedTask], shares: Shares, cpu_buckets: int, cpu_shift: int, wholes: int, total_weight: int
) -> array[int]:
    """Worth by [whole devices][CPU bucket], flat: (*wholes* + 1) x *cpu_buckets*.

    A CPU bucket is 2 ** *cpu_shift* thousandths of a core, at least 2 ** PART_BITS. A share that comes breaks a whole
    device, and the rest of it is worth what ``shares`` says; so few come as break devices, not all that fill them.
    *total_weight* is that of the mix, tasks without a GPU included.
    """
    streams = array("i", bytes(4 * cpu_buckets * (wholes + 1)))
    for whole in range(1, wholes + 1):
        for bucket in range(cpu_buckets):
            total = mass = 0
            for cpu, count, milli, weight in tasks:
                has = (bucket << cpu_shift) - min(cpu, CPU_MAX)
                if has < 0 or count > whole:
                    continue
                if milli == WHOLE_GPU_MILLI:
                    share = weight * COUNT_UNIT
                    worth, asked = count * WHOLE_GPU_MILLI * UNIT, 0
                else:
                    share = weight * COUNT_UNIT * COUNT_UNIT // shares.taken
                    asked = count * shares.cpu[WHOLE_GPU_MILLI - milli]
                    rest = count * shares.worth[WHOLE_GPU_MILLI - milli]
                    worth = count * milli * UNIT + scaled_to_cpu(rest, has, asked)
                mass += share
                start = (whole - count) * cpu_buckets
                total += share * (worth + between(streams, start, cpu_buckets, cpu_shift, left_by(has, asked)))
            streams[whole * cpu_buckets + bucket] = total // mass if mass else 0
    table = array("i", streams)
    for whole in range(1, wholes + 1):
        for bucket in range(cpu_buckets):
            used = sum(
                weight * (USE_OF_SEVERAL_TENTHS if count > 1 else USE_TENTHS)
                for cpu, count, milli, weight in tasks
                if milli == WHOLE_GPU_MILLI and count <= whole and min(cpu, CPU_MAX) <= bucket << cpu_shift
            )
            use = used * whole * WHOLE_GPU_MILLI * UNIT // (10 * total_weight)
            table[whole * cpu_buckets + bucket] += use
    return table
