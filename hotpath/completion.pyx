# cython: cdivision=True
"""Expected completion, compiled. Contract and prose: ``reference/completion.py``."""

from cpython.array cimport array, clone

from actorgrid.hotpath.reference.completion import (
    COUNT_UNIT as _COUNT_UNIT,
    CPU_KEPT as _CPU_KEPT,
    CPU_MAX as _CPU_MAX,
    DRAWN_TENTHS as _DRAWN_TENTHS,
    PART_BITS as _PART_BITS,
    UNIT as _UNIT,
    USE_OF_SEVERAL_TENTHS as _USE_OF_SEVERAL_TENTHS,
    USE_TENTHS as _USE_TENTHS,
    Shares,
)

cdef enum:
    WHOLE = 1000
    TASKS_MAX = 256
    UNIT = 16
    DRAWN_TENTHS = 4
    USE_TENTHS = 1
    USE_OF_SEVERAL_TENTHS = 3
    COUNT_UNIT = 256
    CPU_MAX = 1 << 30
    PART_BITS = 10

assert (UNIT, DRAWN_TENTHS, USE_TENTHS, USE_OF_SEVERAL_TENTHS, CPU_KEPT, COUNT_UNIT, CPU_MAX, PART_BITS) == (
    _UNIT, _DRAWN_TENTHS, _USE_TENTHS, _USE_OF_SEVERAL_TENTHS, _CPU_KEPT, _COUNT_UNIT, _CPU_MAX, _PART_BITS)

cdef array NO_INTS = array("i")


cdef int listed(object tasks, Task* into) except -1:
    cdef int at = 0
    if len(tasks) > TASKS_MAX:
        raise AssertionError(f"{len(tasks)} typical tasks; check_mix leaves no more than {TASKS_MAX}")
    for cpu_milli, count, milli, weight in tasks:
        into[at] = Task(min(cpu_milli, CPU_MAX), min(count, WHOLE), milli, weight)
        at += 1
    return at


def share_worth(tasks, prices):
    cdef Task ones[TASKS_MAX]
    cdef Task priced[TASKS_MAX]
    cdef long long drawn[WHOLE + 1]
    cdef long long asked[WHOLE + 1]
    cdef long long counts[WHOLE + 1]
    cdef long long packed[WHOLE + 1]
    cdef int count = listed(tasks, ones), sizes = listed([(0, 1, milli, price) for milli, price in prices], priced)
    cdef int at, free
    cdef long long mass, worth, cpu, taken, milli
    drawn[0] = asked[0] = counts[0] = packed[0] = 0
    for free in range(1, WHOLE + 1):
        mass = worth = cpu = taken = 0
        for at in range(count):
            milli = ones[at].milli
            if ones[at].count == 1 and milli < WHOLE and milli <= free and ones[at].weight:
                mass += ones[at].weight
                worth += ones[at].weight * (milli * UNIT + drawn[free - milli])
                cpu += ones[at].weight * (ones[at].cpu + asked[free - milli])
                taken += ones[at].weight * (COUNT_UNIT + counts[free - milli])
        drawn[free] = worth // mass if mass else 0
        counts[free] = taken // mass if mass else 0
        asked[free] = min(<long long>CPU_MAX, cpu // mass) if mass else 0
        packed[free] = packed[free - 1]
        for at in range(sizes):
            if priced[at].milli <= free:
                packed[free] = max(packed[free], packed[free - priced[at].milli] + priced[at].weight)
    cdef array worths = clone(NO_INTS, WHOLE, zero=True), cpus = clone(NO_INTS, WHOLE, zero=True)
    cdef int* of_worth = ints(worths)
    cdef int* of_cpu = ints(cpus)
    for free in range(WHOLE):
        of_worth[free] = <int>((DRAWN_TENTHS * drawn[free] + (10 - DRAWN_TENTHS) * packed[free]) // 10)
        of_cpu[free] = <int>(asked[free])
    return Shares(worths, cpus, max(COUNT_UNIT, counts[WHOLE]))


def whole_worth(tasks, shares, Py_ssize_t cpu_buckets, int cpu_shift, int wholes, long long total_weight):
    cdef Task all[TASKS_MAX]
    cdef Task* task
    cdef int count = listed(tasks, all), at, whole
    cdef Py_ssize_t bucket
    cdef long long total, mass, has, needed, worth, rest, share, shares_taken = shares.taken, used
    cdef array worths = shares.worth, cpus = shares.cpu     # held here while only their ints are used
    cdef const int* share_worths = ints(worths)
    cdef const int* share_cpus = ints(cpus)
    cdef array streams = clone(NO_INTS, cpu_buckets * (wholes + 1), zero=True)
    cdef array found = clone(NO_INTS, cpu_buckets * (wholes + 1), zero=True)
    cdef int* stream = ints(streams)
    cdef int* of_found = ints(found)
    with nogil:
        for whole in range(1, wholes + 1):
            for bucket in range(cpu_buckets):
                total = mass = used = 0
                for at in range(count):
                    task = &all[at]
                    has = (<long long>bucket << cpu_shift) - task.cpu
                    if has < 0 or task.count > whole:
                        continue
                    if task.milli == WHOLE:
                        share = task.weight * COUNT_UNIT
                        worth = task.count * WHOLE * UNIT
                        needed = 0
                        used += task.weight * (USE_OF_SEVERAL_TENTHS if task.count > 1 else USE_TENTHS)
                    else:
                        share = task.weight * COUNT_UNIT * COUNT_UNIT // shares_taken
                        needed = task.count * share_cpus[WHOLE - task.milli]
                        rest = task.count * share_worths[WHOLE - task.milli]
                        if has < needed:
                            rest = rest * ((has << PART_BITS) // needed) >> PART_BITS
                        worth = task.count * task.milli * UNIT + rest
                    mass += share
                    total += share * (worth + worth_between(stream + (whole - task.count) * cpu_buckets, cpu_buckets,
                                                            cpu_shift, max(0, has - (needed * CPU_KEPT >> 4))))
                stream[whole * cpu_buckets + bucket] = <int>(total // mass) if mass else 0
                of_found[whole * cpu_buckets + bucket] = <int>(
                    stream[whole * cpu_buckets + bucket] + used * whole * WHOLE * UNIT // (10 * total_weight)
                )
    return found
