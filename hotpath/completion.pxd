"""A task of the typical mix, as the tables of expected completion reckon with it, and how such a table is read."""

from cpython.array cimport array


cdef enum:
    CPU_KEPT = 11               # sixteenths; see reference/completion.py


cdef struct Task:
    long long cpu
    long long count
    long long milli
    long long weight


cdef int listed(object tasks, Task* into) except -1


cdef inline int* ints(array values) except NULL:
    """What is in an array of C ints. A typed memoryview would double the C of each kernel that has one."""
    if values.typecode != "i":
        raise TypeError(f"an array of 'i' is needed, not of {values.typecode!r}")
    return values.data.as_ints


cdef inline long long worth_between(const int* line, Py_ssize_t cpu_buckets, int cpu_shift, long long cpu) noexcept nogil:
    """What *line* has for so much CPU; one beyond the last bucket is taken for the last."""
    cdef long long at = cpu >> cpu_shift, part
    if at >= cpu_buckets - 1:
        return line[cpu_buckets - 1]
    part = (cpu >> (cpu_shift - 10)) & 1023
    return (line[at] * (1024 - part) + line[at + 1] * part) >> 10
