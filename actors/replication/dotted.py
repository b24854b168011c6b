"""CRDTs made of dotted entries: registers that keep concurrent values, flags, sets.

All of them (and the map, next door) are one structure: live events by their dots, each event with the place it is
about and an immutable content, beside the context of all events seen. One join serves them all: an event goes when
the other side has seen it and no longer holds it; it comes when we have not seen it. As an event's content never
changes, there is nothing else to merge. The place is (head, rest); an index from places to their live dots makes
mutators and small deltas cost what they touch, not what the state holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Self

from actorgrid.errors import BadRequest, MalformedBody
from actorgrid.hotpath import DottedParts

from .causal import CausalContext, Dot, Replica, check_count, replica_from_plain
from .crdt import Crdt
from .plain import MAX_ELEMENTS, decode_value, encode_value

Head = str | bytes
Rest = tuple[str | bytes, ...]
Entry = tuple[Head, Rest, Any]
"""What a dot's event is about, and its content: bytes, None, or a tuple of ints and bytes. Never changes."""


class Dotted(DottedParts, Crdt):
    """Base of the dotted types. An event removed is a dot in the context without an entry: no tombstones."""

    __slots__ = ()

    _context: CausalContext
    _entries: dict[Dot, Entry]
    _index: dict[Head, dict[Rest, tuple[Dot, ...]]]

    def __init__(self) -> None:
        self._context = CausalContext()
        self._entries = {}
        self._index = {}

    @property
    def context(self) -> CausalContext:
        """The context of all events this state knows of, removed ones included. Not to be changed."""
        return self._context

    def join(self, other: Self) -> Self:
        """Take in a delta or a state; costs what *other* mentions, or one pass over ourselves if that is less."""
        self._same_kind(other)
        mine, theirs, seen = self._entries, other._entries, other._context
        gone: list[Dot]
        if seen.size <= len(mine):
            gone = [dot for dot in seen if dot in mine and dot not in theirs]
        else:
            gone = [dot for dot in mine if dot not in theirs and dot in seen]
        context = self._context
        fresh = [item for item in theirs.items() if item[0] not in context]
        for dot in gone:
            self._drop(dot)
        for dot, entry in fresh:
            self._insert(dot, entry)
        context.join(seen)
        return self

    def copy(self) -> Self:
        """An independent copy."""
        twin = type(self)()
        twin._context = self._context.copy()
        twin._entries = dict(self._entries)
        twin._index = {head: dict(rests) for head, rests in self._index.items()}
        return twin

    def highest(self, replica: Replica) -> int:
        """The last of its dots."""
        return self._context.next_dot(replica)[1] - 1

    def values_bytes(self) -> Iterator[bytes]:
        """Elements and contents, of all that is live."""
        for head, rest, content in self._entries.values():
            parts = (head, *rest, *(content if isinstance(content, tuple) else (content,)))
            yield from (part for part in parts if isinstance(part, bytes) and part)

    @property
    def is_empty(self) -> bool:
        """Whether no event is left."""
        return not self._entries

    def clear(self) -> Self:
        """Remove all events seen: what others do at the same time stays."""
        return self._removed(self._entries)

    def drop_where(self, ended: Callable[[bytes], bool]) -> bool:
        """Drop the entries whose content, or the last part of it, *ended*; gives whether there were any.

        No mutator: it makes no delta, so all replicas have to come to the same by themselves, as time does it. The
        dots stay seen, so that nobody brings an entry back.
        """
        gone = []
        for dot, (_head, _rest, content) in self._entries.items():
            data = content[-1] if isinstance(content, tuple) else content
            if isinstance(data, bytes) and ended(data):
                gone.append(dot)
        for dot in gone:
            self._drop(dot)
        return bool(gone)

    # -- for mutators

    def _replace(self, replica: Replica, old: Iterable[Dot], head: Head, rest: Rest, content: Any) -> Self:
        """Put one new event in place of the *old* ones; the delta says just that."""
        dot = self._context.next_dot(replica)
        entry = (head, rest, content)
        delta = self._removed(old)
        self._context.add(dot)
        self._insert(dot, entry)
        delta._context.add(dot)
        delta._insert(dot, entry)
        return delta

    def _removed(self, old: Iterable[Dot]) -> Self:
        """Drop the *old* events; the delta is their dots without entries."""
        delta = type(self)()
        for dot in tuple(old):
            delta._context.add(dot)
            self._drop(dot)
        return delta

    def _at(self, head: Head, rest: Rest = ()) -> tuple[Dot, ...]:
        """Live dots of one place: one, or as many as there were concurrent writers."""
        rests = self._index.get(head)
        return rests.get(rest, ()) if rests else ()

    def _insert(self, dot: Dot, entry: Entry) -> None:
        self._entries[dot] = entry
        head, rest, _ = entry
        rests = self._index.get(head)
        if rests is None:
            self._index[head] = {rest: (dot,)}
        else:
            rests[rest] = (*rests.get(rest, ()), dot)

    def _drop(self, dot: Dot) -> None:
        head, rest, _ = self._entries.pop(dot)
        rests = self._index[head]
        left = tuple(other for other in rests[rest] if other != dot)
        if left:
            rests[rest] = left
            return
        del rests[rest]
        if not rests:
            del self._index[head]

    # -- encoding

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._context == other._context and self._entries == other._entries

    __hash__ = None

    def _body(self) -> list[Any]:
        table = sorted(self._context.replicas())
        number = {replica: place for place, replica in enumerate(table)}
        entries = sorted(
            [number[replica], counter, head, list(rest), list(content) if isinstance(content, tuple) else content]
            for (replica, counter), (head, rest, content) in sorted(self._entries.items(), key=lambda item: item[0])
        )
        return [[list(replica) for replica in table], self._context.to_plain(number), entries]

    @classmethod
    def _from_body(cls, body: list[Any]) -> Self:
        table, context, entries = body
        replicas = [replica_from_plain(plain) for plain in table]
        made = cls()
        made._context = CausalContext.from_plain(context, replicas)
        for number, counter, head, rest, content in entries:
            dot = replicas[check_count(number, 0)], check_count(counter, 1)
            if dot not in made._context or dot in made._entries:
                raise MalformedBody(f"the entry {dot} is outside its context, or there twice")
            if not isinstance(head, (str, bytes)) or not all(isinstance(part, (str, bytes)) for part in rest):
                raise MalformedBody(f"the entry {dot} has no place")
            place = tuple(rest)
            made._insert(dot, (head, place, cls._content(head, place, content)))
        return made

    @classmethod
    def _content(cls, head: Head, rest: Rest, plain: Any) -> Any:
        """The content of a decoded entry, checked. Raises MalformedBody."""
        if rest != ():
            raise MalformedBody(f"a {cls.kind} has no inner places")
        return plain


class MVRegister(Dotted):
    """A register that keeps every concurrent write.

    ``value`` is a list: empty, one, or the concurrent in byte order.
    """

    __slots__ = ()
    kind: ClassVar[str] = "mv_register"

    @property
    def value(self) -> list[Any]:
        """The values nobody has overwritten yet; equal ones once."""
        return [decode_value(data) for data in sorted({entry[2] for entry in self._entries.values()})]

    def put(self, replica: Replica, value: Any) -> Self:
        """Overwrite what this replica has seen; concurrent writes stay beside it."""
        data = encode_value(value)
        return self._replace(replica, self._at(b""), b"", (), data)

    @classmethod
    def _content(cls, head: Head, rest: Rest, plain: Any) -> Any:
        if head != b"" or rest != () or not isinstance(plain, bytes):
            raise MalformedBody("not an entry of an mv_register")
        decode_value(plain)
        return plain


class EWFlag(Dotted):
    """A flag, on or off; of a concurrent enable and disable, enable wins. ``value`` is a bool."""

    __slots__ = ()
    kind: ClassVar[str] = "ew_flag"

    @property
    def value(self) -> bool:
        """Whether an enable is left that no disable has seen."""
        return bool(self._entries)

    def enable(self, replica: Replica) -> Self:
        """Switch on."""
        return self._replace(replica, self._at(b""), b"", (), None)

    def disable(self, replica: Replica) -> Self:
        """Switch off what has been seen of it."""
        return self._removed(self._at(b""))

    @classmethod
    def _content(cls, head: Head, rest: Rest, plain: Any) -> Any:
        if head != b"" or rest != () or plain is not None:
            raise MalformedBody("not an entry of an ew_flag")
        return None


class ORSet(Dotted):
    """A set; of a concurrent add and remove of one element, the add wins.

    Elements are plain values other than dicts. 1, 1.0 and True are three elements (they differ on the wire), though
    a Python set shows them as one: ``plain`` lists all, in one order everywhere.
    """

    __slots__ = ()
    kind: ClassVar[str] = "or_set"

    @property
    def value(self) -> frozenset[Any]:
        """The elements; a list among them appears as a tuple."""
        return frozenset(_hashable(decode_value(head)) for head in self._heads())

    @property
    def plain(self) -> list[Any]:
        """The elements as a list: None, booleans, numbers, text, bytes, lists, each sorted."""
        return [decode_value(head) for head in sorted(self._heads(), key=_order)]

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, element: Any) -> bool:
        return _element(element) in self._index

    def add(self, replica: Replica, element: Any) -> Self:
        """Add an element; replaces the dots seen of it, so that adding again does not grow the state."""
        head = _element(element)
        if head not in self._index and len(self._index) >= MAX_ELEMENTS:
            raise BadRequest("the set is full", found=f"{MAX_ELEMENTS} elements", hint="use several keys")
        return self._replace(replica, self._at(head), head, (), None)

    def remove(self, replica: Replica, element: Any) -> Self:
        """Remove an element: the adds seen of it. One that is not in gives an empty delta."""
        return self._removed(self._at(_element(element)))

    def _heads(self) -> Iterator[bytes]:
        return (head for head in self._index if isinstance(head, bytes))

    @classmethod
    def _content(cls, head: Head, rest: Rest, plain: Any) -> Any:
        if not isinstance(head, bytes) or rest != () or plain is not None:
            raise MalformedBody("not an entry of an or_set")
        _hashable(decode_value(head))
        return None


def _element(element: Any) -> bytes:
    data = encode_value(element)
    if isinstance(element, (list, tuple, dict)):
        _hashable(element)
    return data


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        raise BadRequest("a dict cannot be an element of a set", hint="use an or_map, or the dict's JSON text")
    return value


def _order(head: bytes) -> tuple[int, Any, bytes]:
    """The sort key of elements, the same everywhere; the bytes tell 1 from 1.0."""
    value = decode_value(head)
    match value:
        case None:
            return 0, 0, head
        case bool():
            return 1, value, head
        case int() | float():
            return 2, value, head
        case str():
            return 3, value, head
        case bytes():
            return 4, value, head
    return 5, head, head
