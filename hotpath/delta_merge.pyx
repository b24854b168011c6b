"""Batches of CRDT deltas, compiled. Contract and prose: ``reference/delta_merge.py``.

Reading knows the canonical bytes only, and of values those without lists and dicts in them: for anything else ``read``
gives None, and the types decide. So there is one place that says what is malformed.
"""

from actorgrid.hotpath.dotted_parts cimport ContextParts, DottedParts, compact, insert, see
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp

cdef enum:
    OTHER = -1
    PN_COUNTER = 0
    G_COUNTER = 1
    LWW_REGISTER = 2
    MV_REGISTER = 3
    OR_SET = 4
    OR_MAP = 5
    EW_FLAG = 6
    HOST_BYTES_MAX = 256
    FIELD_BYTES_MAX = 1024
    VALUE_BYTES_MAX = 1 << 20
    FEW_MAX = 16  # dots of a delta that is kept as a row of them
    REPLICAS_KNOWN_MAX = 4096

cdef tuple NAMES = ("pn_counter", "g_counter", "lww_register", "mv_register", "or_set", "or_map", "ew_flag")
cdef tuple NO_REST = ()
cdef tuple LWW_REST = ("lww_register",)
cdef tuple COUNTER_REST = ("pn_counter",)


# -- msgpack, in the one encoding that msgpack's own packer gives; 0: it is something else


cdef inline uint64_t big_endian(const unsigned char* at, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int place
    for place in range(size):
        value = value << 8 | at[place]
    return value


cdef inline bint head_of(Reader* reader, int size, uint64_t least, uint64_t* value) noexcept nogil:
    """A number of *size* bytes behind the first, which needs that many."""
    if reader.end - reader.at < size + 1:
        return False
    value[0] = big_endian(reader.at + 1, size)
    reader.at += size + 1
    return value[0] >= least


cdef inline bint read_array(Reader* reader, Py_ssize_t* count) noexcept nogil:
    cdef uint64_t value = 0
    if reader.at >= reader.end:
        return False
    cdef unsigned char first = reader.at[0]
    if first & 0xF0 == 0x90:
        count[0] = first & 0x0F
        reader.at += 1
        return True
    if first != 0xDC or not head_of(reader, 2, 16, &value):
        return False
    count[0] = <Py_ssize_t> value
    return True


cdef inline bint read_count(Reader* reader, int64_t least, int64_t* count) noexcept nogil:
    cdef uint64_t value = 0
    if reader.at >= reader.end:
        return False
    cdef unsigned char first = reader.at[0]
    if first < 0x80:
        value = first
        reader.at += 1
    elif first == 0xCC:
        if not head_of(reader, 1, 0x80, &value):
            return False
    elif first == 0xCD:
        if not head_of(reader, 2, 0x100, &value):
            return False
    elif first == 0xCE:
        if not head_of(reader, 4, 0x10000, &value):
            return False
    elif first == 0xCF:
        if not head_of(reader, 8, 0x100000000, &value):
            return False
    else:
        return False
    if value >> 63:
        return False
    count[0] = <int64_t> value
    return count[0] >= least


cdef inline bint take(Reader* reader, uint64_t size, const unsigned char** start) noexcept nogil:
    if size > <uint64_t> (reader.end - reader.at):
        return False
    start[0] = reader.at
    reader.at += size
    return True


cdef inline bint read_text(Reader* reader, const unsigned char** start, Py_ssize_t* size) noexcept nogil:
    cdef uint64_t value = 0
    if reader.at >= reader.end:
        return False
    cdef unsigned char first = reader.at[0]
    if first & 0xE0 == 0xA0:
        value = first & 0x1F
        reader.at += 1
    elif first == 0xD9:
        if not head_of(reader, 1, 32, &value):
            return False
    elif first == 0xDA:
        if not head_of(reader, 2, 0x100, &value):
            return False
    elif first == 0xDB:
        if not head_of(reader, 4, 0x10000, &value):
            return False
    else:
        return False
    size[0] = <Py_ssize_t> value
    return take(reader, value, start)


cdef inline bint read_bytes(Reader* reader, const unsigned char** start, Py_ssize_t* size) noexcept nogil:
    cdef uint64_t value = 0
    if reader.at >= reader.end:
        return False
    cdef unsigned char first = reader.at[0]
    if first == 0xC4:
        if not head_of(reader, 1, 0, &value):
            return False
    elif first == 0xC5:
        if not head_of(reader, 2, 0x100, &value):
            return False
    elif first == 0xC6:
        if not head_of(reader, 4, 0x10000, &value):
            return False
    else:
        return False
    size[0] = <Py_ssize_t> value
    return take(reader, value, start)


cdef inline bint ascii(const unsigned char* start, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t place
    for place in range(size):
        if start[place] & 0x80:
            return False
    return True


cdef bint plain_value(const unsigned char* start, Py_ssize_t size) noexcept nogil:
    """Whether these are the canonical bytes of nil, a boolean, an int, a finite float, ASCII text or bytes."""
    cdef Reader reader = Reader(start, start + size)
    cdef const unsigned char* inside
    cdef Py_ssize_t length
    cdef int64_t count
    cdef uint64_t bits
    if size < 1 or size > VALUE_BYTES_MAX:
        return False
    cdef unsigned char first = start[0]
    if first == 0xC0 or first == 0xC2 or first == 0xC3 or first >= 0xE0:
        return size == 1
    if first == 0xCB:
        if size != 9:
            return False
        bits = big_endian(start + 1, 8)
        return (bits >> 52) & 0x7FF != 0x7FF
    if read_count(&reader, 0, &count):
        return reader.at == reader.end
    reader.at = start
    if read_text(&reader, &inside, &length):
        return reader.at == reader.end and ascii(inside, length)
    reader.at = start
    return read_bytes(&reader, &inside, &length) and reader.at == reader.end


# -- joins


cdef inline bint holds(dict vector, dict cloud, tuple dot) except -1:
    """Whether a context has this dot."""
    replica, counter = dot
    highest = vector.get(replica)
    if highest is not None and counter <= highest:
        return True
    if not cloud:
        return False
    beyond = cloud.get(replica)
    return beyond is not None and counter in beyond


cdef int drop(dict entries, dict index, tuple dot) except -1:
    """One live event less, if it is there."""
    cdef tuple entry = entries.pop(dot, None)
    if entry is None:
        return 0
    cdef dict rests = index[entry[0]]
    cdef tuple dots = rests[entry[1]]
    cdef tuple left
    if len(dots) == 2:  # one event in place of another
        rests[entry[1]] = (dots[0] if dots[1] == dot else dots[1],)
        return 0
    if len(dots) > 1:
        left = tuple([other for other in dots if other != dot])
        if left:
            rests[entry[1]] = left
            return 0
    del rests[entry[1]]
    if not rests:
        del index[entry[0]]
    return 0


cdef int join_few(DottedParts known, tuple few) except -1:
    """As ``Dotted.join``, of a delta that is a row of dots and events."""
    cdef dict mine = known.entries, index = known.index
    cdef ContextParts context = <ContextParts?> known.context
    cdef dict vector = context.vector, cloud = context.cloud
    cdef tuple dot
    cdef Py_ssize_t place
    cdef bint removes = False
    # First what comes: most often it takes the place of what goes, and so the index keeps that place.
    for place in range(0, len(few), 2):
        event = few[place + 1]
        if event is None:
            removes = True
            continue
        dot = <tuple> few[place]
        if see(vector, cloud, dot[0], dot[1]):
            insert(mine, index, dot, <tuple> event)
    if not removes:
        return 0
    for place in range(0, len(few), 2):
        if few[place + 1] is None:
            dot = <tuple> few[place]
            if not see(vector, cloud, dot[0], dot[1]):
                drop(mine, index, dot)
    return 0


cdef int join_dotted(DottedParts known, DottedParts delta) except -1:
    """As ``Dotted.join``, between contexts that are vectors and clouds."""
    if known.few is not None:
        known.whole()
    if delta.few is not None:
        return join_few(known, delta.few)
    cdef ContextParts context = <ContextParts?> known.context
    cdef ContextParts seen = <ContextParts?> delta.context
    cdef dict mine = known.entries, theirs = delta.entries, index = known.index
    cdef dict vector = context.vector, cloud = context.cloud
    cdef dict other_vector = seen.vector, other_cloud = seen.cloud
    cdef double size = 0
    cdef list gone = []
    cdef list fresh = []
    cdef tuple dot
    cdef Py_ssize_t counter
    for highest in other_vector.values():
        size += <double> highest
    for beyond in other_cloud.values():
        size += len(beyond)
    if size <= len(mine):
        for replica, highest in other_vector.items():
            for counter in range(1, <Py_ssize_t> highest + 1):
                dot = (replica, counter)
                if dot in mine and dot not in theirs:
                    gone.append(dot)
        for replica, beyond in other_cloud.items():
            for count in beyond:
                dot = (replica, count)
                if dot in mine and dot not in theirs:
                    gone.append(dot)
    else:
        for dot in mine:
            if dot not in theirs and holds(other_vector, other_cloud, dot):
                gone.append(dot)
    for dot in theirs:
        if not holds(vector, cloud, dot):
            fresh.append(dot)
    for dot in gone:
        drop(mine, index, dot)
    for dot in fresh:
        insert(mine, index, dot, theirs[dot])
    for replica, highest in other_vector.items():
        if highest > vector.get(replica, 0):
            vector[replica] = highest
            if cloud and replica in cloud:
                compact(vector, cloud, replica)
    for replica, beyond in other_cloud.items():
        for counted in beyond:
            see(vector, cloud, replica, counted)
    return 0


cdef class DeltaMerge:
    def __init__(self, kinds, context, decode):
        self.classes = tuple([kinds.get(name) for name in NAMES])
        self.numbers = {kind: number for number, kind in enumerate(self.classes) if kind is not None}
        self.context = context
        self.general = decode
        self.last_bytes = b""
        self.last_replica = None
        self.replicas = {}

    def decode(self, pairs, Py_ssize_t start=0):
        cdef list found = []
        cdef Py_ssize_t place
        for place in range(start, len(pairs)):
            data = pairs[place][1]
            delta = self.read(data) if type(data) is bytes else None
            found.append(self.general(data) if delta is None else delta)
        return found

    def first_later(self, deltas, bound_us):
        cdef Py_ssize_t place, inner
        cdef int kind
        cdef tuple few, event
        for place in range(len(deltas)):
            delta = deltas[place]
            few = None
            if isinstance(delta, DottedParts):
                kind = (<DottedParts> delta).kind
                few = (<DottedParts> delta).few
                if kind != OTHER and kind != OR_MAP:
                    continue  # of a type that knows no time
            if few is None:
                if delta.latest_us > bound_us:
                    return place
                continue
            for inner in range(1, len(few), 2):
                if few[inner] is not None:
                    event = <tuple> few[inner]
                    if event[1] is LWW_REST and (<tuple> event[2])[0] > bound_us:
                        return place
        return len(deltas)

    def join(self, dict states, keys, deltas):
        cdef int kind
        cdef Py_ssize_t place
        if len(keys) != len(deltas):
            raise ValueError(f"{len(keys)} keys and {len(deltas)} deltas")
        for place in range(len(keys)):
            key, delta = keys[place], deltas[place]
            kind = (<DottedParts> delta).kind if isinstance(delta, DottedParts) else OTHER
            name = delta.kind if kind == OTHER else NAMES[kind]
            kinds = states.get(key)
            if kinds is None:
                states[key] = {name: delta}
                continue
            known = (<dict?> kinds).get(name)
            if known is None:
                kinds[name] = delta
                continue
            if type(known) is not type(delta):
                kind = OTHER
            elif kind == OTHER:
                kind = self.numbers.get(type(delta), OTHER)
            self.join_one(known, delta, kind)

    cdef int join_one(self, object known, object delta, int kind) except -1:
        cdef dict mine, theirs
        if kind == PN_COUNTER:
            mine, theirs = known._entries, delta._entries
            for replica, totals in theirs.items():
                held = mine.get(replica)
                if held is None:
                    mine[replica] = totals
                else:
                    up, down = totals
                    if up >= held[0] and down >= held[1]:
                        mine[replica] = totals
                    else:
                        mine[replica] = (max(up, held[0]), max(down, held[1]))
        elif kind == G_COUNTER:
            mine, theirs = known._entries, delta._entries
            for replica, total in theirs.items():
                if total > mine.get(replica, 0):
                    mine[replica] = total
        elif kind >= MV_REGISTER:
            join_dotted(<DottedParts?> known, <DottedParts?> delta)
        else:
            known.join(delta)
        return 0

    cdef object read(self, bytes data):
        """The delta of canonical bytes, or None."""
        cdef Reader reader
        cdef const unsigned char* start
        cdef Py_ssize_t size, count
        reader.at = <const unsigned char*> PyBytes_AS_STRING(data)
        reader.end = reader.at + PyBytes_GET_SIZE(data)
        if reader.end - reader.at < 3 or reader.at[0] != 0x93 or reader.at[1] != 1:
            return None
        reader.at += 2
        if not read_text(&reader, &start, &size):
            return None
        cdef int kind = OTHER
        if size == 10 and memcmp(start, b"pn_counter", 10) == 0:
            kind = PN_COUNTER
        elif size == 9 and memcmp(start, b"g_counter", 9) == 0:
            kind = G_COUNTER
        elif size == 12 and memcmp(start, b"lww_register", 12) == 0:
            kind = LWW_REGISTER
        elif size == 11 and memcmp(start, b"mv_register", 11) == 0:
            kind = MV_REGISTER
        elif size == 6 and memcmp(start, b"or_set", 6) == 0:
            kind = OR_SET
        elif size == 6 and memcmp(start, b"or_map", 6) == 0:
            kind = OR_MAP
        elif size == 7 and memcmp(start, b"ew_flag", 7) == 0:
            kind = EW_FLAG
        if kind == OTHER or self.classes[kind] is None:
            return None
        if kind == PN_COUNTER or kind == G_COUNTER:
            made = self.counter(&reader, kind)
        elif kind == LWW_REGISTER:
            made = self.register(&reader)
        else:
            made = self.dotted(&reader, kind)
        return made if reader.at == reader.end else None

    cdef object replica(self, Reader* reader):
        """(host id, epoch), or None; the same object for the same bytes as the last time."""
        cdef const unsigned char* start = reader.at
        cdef const unsigned char* text
        cdef Py_ssize_t size, known = PyBytes_GET_SIZE(self.last_bytes)
        cdef int64_t epoch
        if known and reader.end - start >= known and memcmp(start, PyBytes_AS_STRING(self.last_bytes), known) == 0:
            reader.at += known
            return self.last_replica
        if reader.at >= reader.end or reader.at[0] != 0x92:
            return None
        reader.at += 1
        if not read_text(reader, &text, &size) or size > HOST_BYTES_MAX or not ascii(text, size):
            return None
        if not read_count(reader, 0, &epoch):
            return None
        self.last_bytes = PyBytes_FromStringAndSize(<const char*> start, reader.at - start)
        self.last_replica = self.replicas.get(self.last_bytes)
        if self.last_replica is None:
            if len(self.replicas) >= REPLICAS_KNOWN_MAX:
                self.replicas.clear()
            self.last_replica = (PyUnicode_DecodeUTF8(<const char*> text, size, NULL), epoch)
            self.replicas[self.last_bytes] = self.last_replica
        return self.last_replica

    cdef object counter(self, Reader* reader, int kind):
        cdef Py_ssize_t count, place
        cdef int64_t up, down
        cdef dict entries = {}
        if not read_array(reader, &count):
            return None
        cdef unsigned char item = 0x93 if kind == PN_COUNTER else 0x92
        for place in range(count):
            if reader.at >= reader.end or reader.at[0] != item:
                return None
            reader.at += 1
            replica = self.replica(reader)
            if replica is None:
                return None
            if kind == PN_COUNTER:
                if not read_count(reader, 0, &up) or not read_count(reader, 0, &down):
                    return None
                entries[replica] = (up, down)
            else:
                if not read_count(reader, 1, &up):
                    return None
                entries[replica] = up
        cls = self.classes[kind]
        made = cls.__new__(cls)
        made._entries = entries
        return made

    cdef object register(self, Reader* reader):
        cdef int64_t time_us, count
        cdef const unsigned char* value
        cdef Py_ssize_t size
        if reader.at >= reader.end or reader.at[0] != 0x94:
            return None
        reader.at += 1
        if not read_count(reader, 0, &time_us) or not read_count(reader, 0, &count):
            return None
        replica = self.replica(reader)
        if replica is None or not read_bytes(reader, &value, &size) or not plain_value(value, size):
            return None
        cls = self.classes[LWW_REGISTER]
        made = cls.__new__(cls)
        made._write = (time_us, count, replica, PyBytes_FromStringAndSize(<const char*> value, size))
        return made

    cdef object dotted(self, Reader* reader, int kind):
        cdef Py_ssize_t count, place
        cdef list table = []
        cdef const unsigned char* start
        if reader.at >= reader.end or reader.at[0] != 0x93:
            return None
        reader.at += 1
        if not read_array(reader, &count):
            return None
        for place in range(count):
            replica = self.replica(reader)
            if replica is None:
                return None
            table.append(replica)
        cls = self.classes[kind]
        cdef DottedParts made = <DottedParts?> (<PyTypeObject*> cls).tp_new(cls, <PyObject*> NO_REST, NULL)
        made.kind = kind
        start = reader.at
        made.few = self.few(reader, kind, table)
        if made.few is not None:
            made.context_class = self.context
            return made
        reader.at = start
        cdef dict vector = {}, cloud = {}, entries = {}, index = {}
        if not self.seen(reader, table, vector, cloud) or not read_array(reader, &count):
            return None
        for place in range(count):
            if not self.entry(reader, kind, table, entries, index, vector, cloud):
                return None
        cdef ContextParts context = <ContextParts?> self.context.__new__(self.context)
        context.vector, context.cloud = vector, cloud
        made.entries, made.index, made.context = entries, index, context
        return made

    cdef tuple few(self, Reader* reader, int kind, list table):
        """A row of dots and events, where there are few; None for more, and for all that is odd."""
        cdef int64_t[FEW_MAX] numbers
        cdef int64_t[FEW_MAX] counters
        cdef int64_t number, counter, last = -1
        cdef Py_ssize_t dots = 0, count, place, inner, beyond
        for place in range(1, len(table)):
            if place >= FEW_MAX or not table[place - 1] < table[place]:
                return None
        if reader.at >= reader.end or reader.at[0] != 0x92:
            return None
        reader.at += 1
        if not read_array(reader, &count):
            return None
        for place in range(count):
            if reader.at >= reader.end or reader.at[0] != 0x92:
                return None
            reader.at += 1
            if not read_count(reader, 0, &number) or not last < number < len(table):
                return None
            if not read_count(reader, 1, &counter) or counter > FEW_MAX - dots:
                return None
            last = number
            for inner in range(1, counter + 1):
                numbers[dots] = number
                counters[dots] = inner
                dots += 1
        if not read_array(reader, &count):
            return None
        for place in range(count):
            if reader.at >= reader.end or reader.at[0] != 0x92:
                return None
            reader.at += 1
            if not read_count(reader, 0, &number) or number >= len(table) or not read_array(reader, &beyond):
                return None
            if beyond > FEW_MAX - dots:
                return None
            for inner in range(beyond):
                if not read_count(reader, 1, &counter) or find(numbers, counters, dots, number, counter) >= 0:
                    return None
                numbers[dots] = number
                counters[dots] = counter
                dots += 1
        if not read_array(reader, &count) or count > dots:
            return None
        cdef list row = [None] * (2 * dots)
        for place in range(count):
            if reader.at >= reader.end or reader.at[0] != 0x95:
                return None
            reader.at += 1
            if not read_count(reader, 0, &number) or not read_count(reader, 1, &counter):
                return None
            inner = find(numbers, counters, dots, number, counter)
            if inner < 0 or row[2 * inner + 1] is not None:
                return None
            row[2 * inner + 1] = self.event(reader, kind)
            if row[2 * inner + 1] is None:
                return None
        for place in range(dots):
            row[2 * place] = (table[numbers[place]], counters[place])
        return tuple(row)

    cdef bint seen(self, Reader* reader, list table, dict vector, dict cloud) except -1:
        """The two parts of a causal context."""
        cdef Py_ssize_t count, place, beyond, inner
        cdef int64_t number, counter
        if reader.at >= reader.end or reader.at[0] != 0x92:
            return False
        reader.at += 1
        if not read_array(reader, &count):
            return False
        for place in range(count):
            if reader.at >= reader.end or reader.at[0] != 0x92:
                return False
            reader.at += 1
            if not read_count(reader, 0, &number) or number >= len(table) or not read_count(reader, 1, &counter):
                return False
            vector[table[number]] = counter
        if not read_array(reader, &count):
            return False
        for place in range(count):
            if reader.at >= reader.end or reader.at[0] != 0x92:
                return False
            reader.at += 1
            if not read_count(reader, 0, &number) or number >= len(table) or not read_array(reader, &beyond):
                return False
            for inner in range(beyond):
                if not read_count(reader, 1, &counter):
                    return False
                see(vector, cloud, table[number], counter)
        return True

    cdef bint entry(
        self, Reader* reader, int kind, list table, dict entries, dict index, dict vector, dict cloud
    ) except -1:
        """One live event."""
        cdef int64_t number, counter
        cdef tuple dot, event
        if reader.at >= reader.end or reader.at[0] != 0x95:
            return False
        reader.at += 1
        if not read_count(reader, 0, &number) or number >= len(table) or not read_count(reader, 1, &counter):
            return False
        dot = (table[number], counter)
        if dot in entries or not holds(vector, cloud, dot):
            return False
        event = self.event(reader, kind)
        if event is None:
            return False
        insert(entries, index, dot, event)
        return True

    cdef tuple event(self, Reader* reader, int kind):
        """What a dot's event is about, and its content; None: it is odd."""
        cdef int64_t first, second
        cdef const unsigned char* head
        cdef const unsigned char* inside
        cdef Py_ssize_t head_size, size
        if kind == OR_MAP:
            if not read_text(reader, &head, &head_size) or not 1 <= head_size <= FIELD_BYTES_MAX:
                return None
            if not ascii(head, head_size):
                return None
            if reader.at >= reader.end or reader.at[0] != 0x91:
                return None
            reader.at += 1
            if not read_text(reader, &inside, &size) or reader.at >= reader.end:
                return None
            field = PyUnicode_DecodeUTF8(<const char*> head, head_size, NULL)
            if size == 12 and memcmp(inside, b"lww_register", 12) == 0:
                if reader.at[0] != 0x93:
                    return None
                reader.at += 1
                if not read_count(reader, 0, &first) or not read_count(reader, 0, &second):
                    return None
                if not read_bytes(reader, &inside, &size) or not plain_value(inside, size):
                    return None
                return (field, LWW_REST, (first, second, PyBytes_FromStringAndSize(<const char*> inside, size)))
            if size != 10 or memcmp(inside, b"pn_counter", 10) != 0 or reader.at[0] != 0x92:
                return None
            reader.at += 1
            if not read_count(reader, 0, &first) or not read_count(reader, 0, &second):
                return None
            return (field, COUNTER_REST, (first, second))
        if not read_bytes(reader, &head, &head_size):
            return None
        if (not plain_value(head, head_size)) if kind == OR_SET else head_size:
            return None
        if reader.end - reader.at < 2 or reader.at[0] != 0x90:
            return None
        reader.at += 1
        place = PyBytes_FromStringAndSize(<const char*> head, head_size)
        if kind == MV_REGISTER:
            if not read_bytes(reader, &inside, &size) or not plain_value(inside, size):
                return None
            return (place, NO_REST, PyBytes_FromStringAndSize(<const char*> inside, size))
        if reader.at[0] != 0xC0:
            return None
        reader.at += 1
        return (place, NO_REST, None)


cdef inline Py_ssize_t find(
    const int64_t* numbers, const int64_t* counters, Py_ssize_t dots, int64_t number, int64_t counter
) noexcept nogil:
    """The place of a dot; -1: it is none of them."""
    cdef Py_ssize_t place
    for place in range(dots):
        if numbers[place] == number and counters[place] == counter:
            return place
    return -1


def checked_pairs(plain, Py_ssize_t key_bytes_max):
    cdef Py_ssize_t place, size
    cdef list found
    if not isinstance(plain, (list, tuple)):
        return None
    found = [None] * len(plain)
    for place in range(len(plain)):
        pair = plain[place]
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            return None
        key, data = pair
        if not isinstance(key, str) or not isinstance(data, bytes):
            return None
        size = len(<str> key)
        if not 1 <= size <= key_bytes_max:
            return None
        if not (<str> key).isascii():
            try:
                size = len((<str> key).encode())
            except UnicodeEncodeError:
                return None
            if size > key_bytes_max:
                return None
        found[place] = (key, data)
    return tuple(found)
