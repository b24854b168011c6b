# cython: binding=False, cdivision=True
"""Whose turn it is, by priority, compiled. Contract and prose: ``reference/run_queue.py``."""

cimport cython
from cpython.object cimport PyObject
from cpython.list cimport PyList_GET_ITEM, PyList_SET_ITEM
from cpython.ref cimport Py_DECREF, Py_INCREF

from actorgrid.errors import BadRequest

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(PyObject*) noexcept

MAX, HIGH, NORMAL, LOW = 0, 1, 2, 3
NORMAL_TURNS_PER_LOW = 8


@cython.final
cdef class RunQueue:
    def __cinit__(self):
        cdef int priority
        self.rings = [[None] * RING_LENGTH_FIRST for _ in range(PRIORITIES)]

    def __len__(self):
        return self.count

    def push(self, item, priority=NORMAL):
        """Put *item* behind those of its *priority*. Raises BadRequest."""
        if not 0 <= priority < PRIORITIES:
            raise BadRequest("there is no such priority", asked=str(priority), hint="MAX, HIGH, NORMAL or LOW")
        self.put(item, priority)

    def pop(self):
        """Take out the item whose turn it is. Raises IndexError when there is none."""
        if not self.count:
            raise IndexError("nobody is ready")
        return self.take()

    def clear(self):
        """Drop all items."""
        while self.count:
            self.take()
        self.normal_turns = 0

    cdef int put(self, object item, int priority) except -1:
        cdef list ring = <list>PyList_GET_ITEM(self.rings, priority)
        cdef Py_ssize_t place
        if self.counts[priority] == len(ring):
            ring = self.grow(priority)
        place = (self.heads[priority] + self.counts[priority]) & (len(ring) - 1)
        Py_INCREF(item)
        Py_DECREF(None)
        PyList_SET_ITEM(ring, place, item)
        self.counts[priority] += 1
        self.count += 1
        return 0

    cdef object take(self):
        """The item whose turn it is; there must be one."""
        if self.counts[0]:
            return self.take_from(0)
        if self.counts[1]:
            return self.take_from(1)
        if self.counts[2] and (self.normal_turns < NORMAL_TURNS or not self.counts[3]):
            if self.counts[3]:
                self.normal_turns += 1
            return self.take_from(2)
        self.normal_turns = 0
        return self.take_from(3)

    cdef object take_from(self, int priority):
        cdef list ring = <list>PyList_GET_ITEM(self.rings, priority)
        cdef Py_ssize_t head = self.heads[priority]
        item = <object>PyList_GET_ITEM(ring, head)
        # The reference that the ring held is given up for that of None; ``item`` has one of its own.
        Py_INCREF(None)
        PyList_SET_ITEM(ring, head, None)
        Py_DECREF(item)
        self.heads[priority] = (head + 1) & (len(ring) - 1)
        self.counts[priority] -= 1
        self.count -= 1
        return item

    cdef list grow(self, int priority):
        cdef list ring = <list>PyList_GET_ITEM(self.rings, priority)
        cdef Py_ssize_t head = self.heads[priority]
        cdef list larger = ring[head:] + ring[:head] + [None] * len(ring)
        if self.hidden:
            PyObject_GC_UnTrack(<PyObject*>larger)
        self.rings[priority] = larger
        self.heads[priority] = 0
        return larger
