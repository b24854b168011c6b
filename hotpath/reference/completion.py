"""Expected completion: how much of a node's free GPU the tasks that usually arrive would still fill, in plain Python.

Tasks are drawn from the typical mix, one after another; each that fits takes its share, until nothing fits any more.
What they take in all, on the average, is the worth of the node's state. To weigh a task's place by what it costs in
worth goes beyond the next task, which is all that FGD looks at. The state is made coarse, so that a table holds it:

* the CPU that is left, in buckets;
* how many whole devices are left;
* what the partly free devices are worth, each by itself (``partial_worth``), summed, in buckets.

A task that falls between two buckets is counted with both, by its distance. A share goes to a partly free device if
these are worth as much, else it breaks a whole one. All is in whole numbers, so that both engines agree.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ..records import WHOLE_GPU_MILLI

UNIT = 16  # worth is counted in sixteenths of thousandths of a GPU
PARTIAL_SHIFT = 11  # a bucket of partial worth: 2,048 units, 128 thousandths

WeighedTask = tuple[int, int, int, int]  # cpu_milli, gpu_count, gpu_milli, weight


def partial_worth(tasks: Sequence[WeighedTask]) -> array[int]:
    """Worth of a device of which 0, 1, ... 999 thousandths are free; CPU is not looked at."""
    ones = [(milli, weight) for _, count, milli, weight in tasks if count == 1 and milli < WHOLE_GPU_MILLI and weight]
    worth = array("i", bytes(4 * WHOLE_GPU_MILLI))
    for free in range(1, WHOLE_GPU_MILLI):
        total = mass = 0
        for milli, weight in ones:
            if milli <= free:
                mass += weight
                total += weight * (milli * UNIT + worth[free - milli])
        worth[free] = total // mass if mass else 0
    return worth


def completion(
    tasks: Sequence[WeighedTask], partials: array[int], cpu_buckets: int, cpu_shift: int, wholes: int, buckets: int
) -> array[int]:
    """Worth by [whole devices][bucket of partial worth][CPU bucket], flat: (*wholes* + 1) x *buckets* x *cpu_buckets*.

    What is looked up together, for one state of the devices and many amounts of CPU, is so side by side.

    A CPU bucket is 2 ** *cpu_shift* thousandths of a core.
    """
    table = array("i", bytes(4 * cpu_buckets * (wholes + 1) * buckets))
    one = 1 << (cpu_shift + PARTIAL_SHIFT)
    last = (buckets - 1) << PARTIAL_SHIFT
    for cpu in range(cpu_buckets):
        for whole in range(wholes + 1):
            for bucket in range(buckets):
                here = (whole * buckets + bucket) * cpu_buckets + cpu
                total = mass = 0
                for cpu_milli, count, milli, weight in tasks:
                    steps, rest = cpu_milli >> cpu_shift, cpu_milli & ((1 << cpu_shift) - 1)
                    if steps + (rest > 0) > cpu:
                        continue
                    left, worth = whole, bucket << PARTIAL_SHIFT
                    if milli == WHOLE_GPU_MILLI:
                        if left < count:
                            continue
                        left -= count
                    elif worth >= count * milli * UNIT:
                        worth -= count * milli * UNIT
                    elif left >= count:
                        left -= count
                        worth = min(last, worth + count * partials[WHOLE_GPU_MILLI - milli])
                    else:
                        continue
                    low, part = worth >> PARTIAL_SHIFT, worth & ((1 << PARTIAL_SHIFT) - 1)
                    mass += weight * one
                    total += weight * one * count * milli * UNIT
                    for back, share in ((steps, (1 << cpu_shift) - rest), (steps + 1, rest)):
                        for up, portion in ((0, (1 << PARTIAL_SHIFT) - part), (1, part)):
                            if share and portion:
                                there = (left * buckets + low + up) * cpu_buckets + cpu - back
                                if there == here:
                                    mass -= weight * share * portion
                                else:
                                    total += weight * share * portion * table[there]
                table[here] = total // mass if mass else 0
    return table
