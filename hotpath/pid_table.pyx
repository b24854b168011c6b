# cython: binding=False, cdivision=True
"""Who has which number, compiled. Contract and prose: ``reference/pid_table.py``."""

cimport cython
from libc.stdlib cimport free, realloc

from actorgrid.errors import BadRequest, TooManyActors

LIMIT_MAX = 1 << 28


@cython.final
cdef class PidTable:
    def __cinit__(self, limit):
        if not 1 <= limit <= LIMIT_MAX:
            raise BadRequest("a limit out of range", asked=str(limit), hint=f"1 to {LIMIT_MAX}")
        self.limit = limit
        self.items = []
        self.free_head = -1

    def __dealloc__(self):
        free(self.generations)
        free(self.following)

    def __len__(self):
        return self.count

    def add(self, item):
        """Give *item* (not ``None``) a number; gives (number, generation). Raises TooManyActors at the limit."""
        cdef int place = self.put(item)
        return place, self.generations[place]

    def get(self, long long place, unsigned long long generation):
        """The item that has that number in that generation, or ``None``."""
        return self.find(place, generation)

    def remove(self, long long place, unsigned long long generation):
        """Free the number; ``False`` when it was not in use in that generation."""
        return self.drop(place, generation) == 1

    def __iter__(self):
        """All items by their numbers, as of now."""
        return iter([item for item in self.items if item is not None])

    cdef int put(self, object item) except -1:
        cdef int place = self.free_head
        if place >= 0:
            self.free_head = self.following[place]
            self.items[place] = item
        else:
            if self.used == self.limit:
                raise TooManyActors(
                    f"{self.count} processes live here, as many as may", hint="end some, or start another shard"
                )
            if self.used == self.capacity:
                self.grow()
            place = self.used
            self.items.append(item)
            self.used += 1
            self.generations[place] = 0
        self.generations[place] += 1
        self.count += 1
        return place

    cdef object find(self, long long place, unsigned long long generation):
        if 0 <= place < self.used and self.generations[place] == generation:
            return self.items[place]
        return None

    cdef int drop(self, long long place, unsigned long long generation) except -1:
        if self.find(place, generation) is None:
            return 0
        self.following[place] = self.free_head
        self.free_head = <int>place
        self.count -= 1
        self.items[place] = None
        return 1

    cdef int grow(self) except -1:
        cdef int capacity = 2 * self.capacity if self.capacity else 64
        cdef unsigned long long* generations
        cdef int* following
        generations = <unsigned long long*>realloc(self.generations, capacity * sizeof(unsigned long long))
        if generations == NULL:
            raise MemoryError
        self.generations = generations
        following = <int*>realloc(self.following, capacity * sizeof(int))
        if following == NULL:
            raise MemoryError
        self.following = following
        self.capacity = capacity
        return 0
