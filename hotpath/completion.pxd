"""A task of the typical mix, as the table of expected completion reckons with it."""


cdef struct Task:
    long long cpu
    long long count
    long long milli
    long long weight


cdef int listed(object tasks, Task* into) except -1
