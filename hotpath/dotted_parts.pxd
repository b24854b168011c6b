"""What the parts of dotted CRDTs hold, for the merge of deltas."""


cdef class ContextParts:
    cdef dict vector
    cdef dict cloud


cdef class DottedParts:
    cdef dict entries
    cdef dict index
    cdef object context
    cdef tuple few              # of a delta that was just read: dot, event, dot, event; None where a dot was removed
    cdef object context_class   # of which its context is made
    cdef int kind               # by which DeltaMerge knows its type; -1: it did not read it

    cdef int whole(self) except -1


cdef int compact(dict vector, dict cloud, object replica) except -1
cdef bint see(dict vector, dict cloud, object replica, object counter) except -1
cdef int insert(dict entries, dict index, tuple dot, tuple entry) except -1
