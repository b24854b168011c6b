"""What dotted CRDTs are made of, compiled. Contract and prose: ``reference/dotted_parts.py``."""


cdef class ContextParts:
    @property
    def _vector(self):
        return self.vector

    @_vector.setter
    def _vector(self, dict value not None):
        self.vector = value

    @property
    def _cloud(self):
        return self.cloud

    @_cloud.setter
    def _cloud(self, dict value not None):
        self.cloud = value


cdef class DottedParts:
    def __cinit__(self):
        self.kind = -1

    @property
    def _entries(self):
        if self.few is not None:
            self.whole()
        return self.entries

    @_entries.setter
    def _entries(self, dict value not None):
        if self.few is not None:
            self.whole()
        self.entries = value

    @property
    def _index(self):
        if self.few is not None:
            self.whole()
        return self.index

    @_index.setter
    def _index(self, dict value not None):
        if self.few is not None:
            self.whole()
        self.index = value

    @property
    def _context(self):
        if self.few is not None:
            self.whole()
        return self.context

    @_context.setter
    def _context(self, value):
        if self.few is not None:
            self.whole()
        self.context = value

    cdef int whole(self) except -1:
        """Make the parts of a row of dots and events."""
        cdef dict vector = {}, cloud = {}, entries = {}, index = {}
        cdef tuple few = self.few, dot
        cdef Py_ssize_t place
        for place in range(0, len(few), 2):
            dot = <tuple> few[place]
            see(vector, cloud, dot[0], dot[1])
            if few[place + 1] is not None:
                insert(entries, index, dot, <tuple> few[place + 1])
        cdef ContextParts context = <ContextParts?> self.context_class.__new__(self.context_class)
        context.vector, context.cloud = vector, cloud
        self.entries, self.index, self.context = entries, index, context
        self.few = None
        return 0


cdef int compact(dict vector, dict cloud, object replica) except -1:
    cdef set beyond = cloud[replica]
    highest = vector.get(replica, 0)
    while highest + 1 in beyond:
        highest += 1
    vector[replica] = highest
    rest = {counter for counter in beyond if counter > highest}
    if rest:
        cloud[replica] = rest
    else:
        del cloud[replica]
    return 0


cdef bint see(dict vector, dict cloud, object replica, object counter) except -1:
    """Put a dot into a context; whether it was not in before."""
    highest = vector.get(replica)
    if highest is None:
        highest = 0
    elif counter <= highest:
        return False
    if counter > highest + 1:
        beyond = cloud.get(replica)
        if beyond is None:
            cloud[replica] = {counter}
            return True
        if counter in <set> beyond:
            return False
        (<set> beyond).add(counter)
        return True
    vector[replica] = counter
    if cloud and replica in cloud:
        compact(vector, cloud, replica)
    return True


cdef int insert(dict entries, dict index, tuple dot, tuple entry) except -1:
    """One more live event."""
    entries[dot] = entry
    head = entry[0]
    rest = entry[1]
    rests = index.get(head)
    if rests is None:
        index[head] = {rest: (dot,)}
        return 0
    others = (<dict> rests).get(rest)
    (<dict> rests)[rest] = (dot,) if others is None else <tuple> others + (dot,)
    return 0
