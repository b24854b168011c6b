"""A map of fields, each holding a register or another CRDT; removal is observed-remove.

Removing a field takes out the events this replica has seen of it. What others do to the field at the same time
survives, and only that: the field comes back with their events alone.

A field is a last-writer register (``put``), a counter (``increment``, ``decrement``) or a nested MVRegister, EWFlag,
ORSet or ORMap (``update``). All events of all fields share the map's one context, so a removed field leaves nothing.
A counter in a map keeps one event per replica with that replica's totals, replaced at each step; an increment
concurrent with a removal therefore brings back that replica's whole count, not just the last step.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, cast

from actorgrid.errors import BadRequest, MalformedBody, StateTypeConflict

from .causal import Dot, Replica, check_count
from .counters import check_amount, shown_count
from .dotted import Dotted, EWFlag, Head, MVRegister, ORSet, Rest
from .lww import Stamp, next_stamp
from .plain import MAX_ELEMENTS, check_key, decode_value, encode_value

LWW, COUNTER = "lww_register", "pn_counter"
MAX_NESTING = 8
"""Maps within maps."""


class ORMap(Dotted):
    """A map of fields by name. ``value`` is a dict in name order; an absent field is just not there."""

    __slots__ = ()
    kind: ClassVar[str] = "or_map"

    @property
    def value(self) -> dict[str, Any]:
        """All fields, as Python sees them."""
        return {field: self.get(field) for field in self}

    @property
    def plain(self) -> dict[str, Any]:
        """All fields in msgpack and JSON terms."""
        return {field: self._shown(field, plain=True) for field in self}

    def __iter__(self) -> Any:
        return iter(sorted(cast("dict[str, Any]", self._index)))

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, field: str) -> bool:
        return field in self._index

    def get(self, field: str) -> Any:
        """One field's value, or None.

        Two hosts may, unseen by each other, make one field two types. Both stay; shown is the first of or_map,
        or_set, pn_counter, mv_register, ew_flag, lww_register. Removing the field clears all of them.
        """
        return self._shown(field, plain=False)

    def put(self, replica: Replica, field: str, value: Any, now_us: int = 0) -> Self:
        """Write a last-writer field. Raises StateTypeConflict when it is seen to be something else."""
        data = encode_value(value)
        old = self._field(field, LWW)
        latest: Stamp | None = max((self._entries[dot][2][:2] for dot in old), default=None)
        time_us, count = next_stamp(now_us, latest)
        return self._replace(replica, old, field, (LWW,), (time_us, count, data))

    def stamp_of(self, field: str) -> Stamp | None:
        """The stamp of the last write to a last-writer field, if it is one."""
        dots = self._index.get(field, {}).get((LWW,), ())
        return max((self._entries[dot][2][:2] for dot in dots), default=None)

    def increment(self, replica: Replica, field: str, amount: int = 1) -> Self:
        """Count a counter field up."""
        return self._count(replica, field, amount, 0)

    def decrement(self, replica: Replica, field: str, amount: int = 1) -> Self:
        """Count a counter field down."""
        return self._count(replica, field, 0, amount)

    def update(self, replica: Replica, field: str, kind: type[Dotted], mutator: str, *arguments: Any) -> Self:
        """Call a mutator of a nested CRDT: ``m.update(me, "tags", ORSet, "add", "red")``.

        Costs one pass over that field. Raises StateTypeConflict when the field is seen to be something else.
        """
        if kind not in NESTED.values():
            raise BadRequest(f"{kind.__name__} cannot be nested this way", found=", ".join(sorted(NESTED)))
        if mutator not in MUTATORS[kind.kind]:
            raise BadRequest(f"{kind.kind} has no mutator {mutator!r}", found=", ".join(MUTATORS[kind.kind]))
        self._field(field, kind.kind)
        inner = self._nested(field, kind)
        changed = getattr(inner, mutator)(replica, *arguments)
        delta = type(self)()
        delta._context = changed._context
        for dot, (head, rest, content) in changed._entries.items():
            place = (kind.kind, head, *rest)
            if place.count(self.kind) > MAX_NESTING:
                raise BadRequest(f"maps are nested deeper than {MAX_NESTING}", hint="use several keys")
            delta._insert(dot, (field, place, content))
        self.join(delta)
        return delta

    def remove(self, replica: Replica, field: str) -> Self:
        """Remove a field: all events seen of it. One that is not there gives an empty delta."""
        rests = self._index.get(check_key(field, "field"), {})
        return self._removed([dot for dots in rests.values() for dot in dots])

    @property
    def latest_us(self) -> int:
        """The time of the last write to a last-writer field, at any depth."""
        stamps = [content[0] for _, rest, content in self._entries.values() if rest[-1] == LWW]
        return max(stamps, default=0)

    def _field(self, field: str, kind: str) -> tuple[Dot, ...]:
        rests = self._index.get(check_key(field, "field"))
        if rests is None:
            if len(self._index) >= MAX_ELEMENTS:
                raise BadRequest("the map is full", found=f"{MAX_ELEMENTS} fields", hint="use several keys")
            return ()
        for rest in rests:
            if rest[0] != kind:
                raise StateTypeConflict(
                    f"the field {field!r} is a {rest[0]!s}, not a {kind}",
                    asked=kind,
                    found=str(rest[0]),
                    hint="remove the field first, or use another",
                )
        return rests.get((kind,), ())

    def _count(self, replica: Replica, field: str, up: int, down: int) -> Self:
        own = [dot for dot in self._field(field, COUNTER) if dot[0] == replica]
        ups = sum(self._entries[dot][2][0] for dot in own)
        downs = sum(self._entries[dot][2][1] for dot in own)
        check_amount(up or down, ups if up else downs)
        return self._replace(replica, own, field, (COUNTER,), (ups + up, downs + down))

    def _nested(self, field: str, kind: type[Dotted]) -> Dotted:
        """The field as a CRDT of its own, on a copy of the map's context."""
        inner = kind()
        inner._context = self._context.copy()
        for rest, dots in self._index.get(field, {}).items():
            if rest[0] == kind.kind:
                for dot in dots:
                    inner._insert(dot, (rest[1], rest[2:], self._entries[dot][2]))
        return inner

    def _shown(self, field: str, plain: bool) -> Any:
        rests = self._index.get(field)
        if rests is None:
            return None
        if len(rests) == 1 and (LWW,) in rests:
            dots = rests[(LWW,)]
            if len(dots) == 1:
                return decode_value(self._entries[dots[0]][2][2])
        kinds = {rest[0] for rest in rests}
        shown = next(kind for kind in PRECEDENCE if kind in kinds)
        if shown == LWW:
            writes = [(*self._entries[dot][2][:2], dot[0], self._entries[dot][2][2]) for dot in rests[(LWW,)]]
            return decode_value(max(writes)[3])
        if shown == COUNTER:
            totals = [self._entries[dot][2] for dot in rests[(COUNTER,)]]
            return shown_count(sum(up - down for up, down in totals))
        inner = self._nested(field, NESTED[shown])
        return inner.plain if plain else inner.value

    @classmethod
    def _content(cls, head: Head, rest: Rest, plain: Any) -> Any:
        if not isinstance(head, str) or not rest or rest.count(cls.kind) > MAX_NESTING:
            raise MalformedBody("not an entry of an or_map")
        check_key(head, "field")
        if rest == (LWW,):
            time_us, count, data = plain
            if not isinstance(data, bytes):
                raise MalformedBody("not an entry of an or_map: the value must be bytes")
            decode_value(data)
            return check_count(time_us, 0), check_count(count, 0), data
        if rest == (COUNTER,):
            up, down = plain
            return check_count(up, 0), check_count(down, 0)
        inner = NESTED.get(str(rest[0]))
        if inner is None or len(rest) < 2:
            raise MalformedBody(f"an or_map has no fields of the type {rest[0]!r}")
        return inner._content(rest[1], rest[2:], plain)


NESTED: dict[str, type[Dotted]] = {kind.kind: kind for kind in (MVRegister, EWFlag, ORSet, ORMap)}
MUTATORS = {
    "mv_register": ("put",),
    "ew_flag": ("enable", "disable"),
    "or_set": ("add", "remove"),
    "or_map": ("put", "increment", "decrement", "update", "remove"),
}
PRECEDENCE = ("or_map", "or_set", "pn_counter", "mv_register", "ew_flag", "lww_register")
