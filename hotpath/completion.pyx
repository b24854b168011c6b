# cython: cdivision=True
"""Expected completion, compiled. Contract and prose: ``reference/completion.py``."""

from cpython cimport array

from array import array as new_array

from actorgrid.hotpath.reference.completion import UNIT as _UNIT, PARTIAL_SHIFT as _PARTIAL_SHIFT

cdef enum:
    WHOLE = 1000
    TASKS_MAX = 256
    UNIT = 16
    PARTIAL_SHIFT = 11

assert (UNIT, PARTIAL_SHIFT) == (_UNIT, _PARTIAL_SHIFT)

cdef int listed(object tasks, Task* into) except -1:
    cdef int at = 0
    if len(tasks) > TASKS_MAX:
        raise AssertionError(f"{len(tasks)} typical tasks; check_mix leaves no more than {TASKS_MAX}")
    for cpu_milli, count, milli, weight in tasks:
        into[at] = Task(cpu_milli, count, milli, weight)
        at += 1
    return at


def partial_worth(tasks):
    cdef Task ones[TASKS_MAX]
    cdef int count = listed(tasks, ones), at, free
    cdef long long total, mass
    found = new_array("i", bytes(4 * WHOLE))
    cdef int[:] worth = found
    for free in range(1, WHOLE):
        total = mass = 0
        for at in range(count):
            if ones[at].count == 1 and ones[at].milli <= free and ones[at].weight:
                mass += ones[at].weight
                total += ones[at].weight * (ones[at].milli * UNIT + worth[free - ones[at].milli])
        worth[free] = <int>(total // mass) if mass else 0
    return found


def completion(tasks, partials, Py_ssize_t cpu_buckets, int cpu_shift, int wholes, Py_ssize_t buckets):
    cdef Task all[TASKS_MAX]
    cdef Task* task
    cdef int count = listed(tasks, all), at, whole, half, left
    cdef Py_ssize_t cpu, bucket, here, there
    cdef long long total, mass, worth, need, steps, rest, low, part, share, portion
    cdef long long one = 1 << (cpu_shift + PARTIAL_SHIFT)
    cdef long long last = (buckets - 1) << PARTIAL_SHIFT
    cdef const int[:] of_partial = partials
    found = new_array("i", bytes(4 * cpu_buckets * (wholes + 1) * buckets))
    cdef int[:] view = found
    cdef int* table = &view[0]
    with nogil:
        for cpu in range(cpu_buckets):
            for whole in range(wholes + 1):
                for bucket in range(buckets):
                    here = (whole * buckets + bucket) * cpu_buckets + cpu
                    total = mass = 0
                    for at in range(count):
                        task = &all[at]
                        steps = task.cpu >> cpu_shift
                        rest = task.cpu & ((1 << cpu_shift) - 1)
                        if steps + (rest > 0) > cpu:
                            continue
                        left = whole
                        worth = bucket << PARTIAL_SHIFT
                        need = task.count * task.milli * UNIT
                        if task.milli == WHOLE:
                            if left < task.count:
                                continue
                            left -= <int>task.count
                        elif worth >= need:
                            worth -= need
                        elif left >= task.count:
                            left -= <int>task.count
                            worth += task.count * of_partial[WHOLE - task.milli]
                            if worth > last:
                                worth = last
                        else:
                            continue
                        low = worth >> PARTIAL_SHIFT
                        part = worth & ((1 << PARTIAL_SHIFT) - 1)
                        mass += task.weight * one
                        total += task.weight * one * need
                        for half in range(4):
                            share = rest if half & 1 else (1 << cpu_shift) - rest
                            portion = part if half & 2 else (1 << PARTIAL_SHIFT) - part
                            if share and portion:
                                there = (left * buckets + low + (half >> 1)) * cpu_buckets + cpu - steps - (half & 1)
                                if there == here:
                                    mass -= task.weight * share * portion
                                else:
                                    total += task.weight * share * portion * table[there]
                    table[here] = <int>(total // mass) if mass else 0
    return found
