"""What the merge of deltas holds: the types it knows, and the replica that it read last."""


cdef struct Reader:
    const unsigned char* at
    const unsigned char* end


cdef class DeltaMerge:
    cdef tuple classes          # by the number of the kind; None where there is no such type
    cdef dict numbers           # class -> number of its kind
    cdef object context
    cdef object general         # reads whatever is not read here
    cdef bytes last_bytes       # the encoding of the replica read last, and the replica
    cdef object last_replica
    cdef dict replicas          # by their encodings: the same replica is the same object

    cdef object read(self, bytes data)
    cdef object replica(self, Reader* reader)
    cdef object counter(self, Reader* reader, int kind)
    cdef object register(self, Reader* reader)
    cdef object dotted(self, Reader* reader, int kind)
    cdef tuple few(self, Reader* reader, int kind, list table)
    cdef bint seen(self, Reader* reader, list table, dict vector, dict cloud) except -1
    cdef bint entry(
        self, Reader* reader, int kind, list table, dict entries, dict index, dict vector, dict cloud
    ) except -1
    cdef tuple event(self, Reader* reader, int kind)
    cdef int join_one(self, object known, object delta, int kind) except -1
