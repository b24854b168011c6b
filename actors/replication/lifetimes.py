"""Until when a value counts, and what readers see of a key: decided from the states and the time alone.

A value with an end, and a removed register, is written as a plain list that begins with a mark; so the register's own
order (hybrid clock, host, bytes) says which write counts, its end travels with it, and every replica that has the
same states and the same time shows the same. Hosts of the version before take such a value as any other.

    [MARK, until, value]          a value that counts until that time, in microseconds since 1970
    [MARK, at]                    a register that was removed
    [MARK, at, None, counted]     a key that was removed while it was a counter, with what had been counted

A removal takes what it has seen: events of sets, maps and flags by their dots, what a counter had reached by replica,
an earlier write by the clock. What others did without knowing of it stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actorgrid.errors import BadRequest

from .causal import Replica
from .counters import GCounter, PNCounter, shown_count
from .crdt import Crdt
from .dotted import Dotted, MVRegister
from .lww import LWWRegister
from .ormap import ORMap
from .plain import decode_value, encode_value
from .retirement import folded_place, folds_of
from .types import TYPES

MARK = b"\0actorgrid.until"
_MARKED = tuple(bytes((0x90 + parts,)) + encode_value(MARK) for parts in (2, 3, 4))
TTL_MAX_S = 366 * 86400.0
Counted = dict[tuple[str, Replica], tuple[int, int]]
"""By type and replica: what it had counted up, and down."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What readers see of a key. ``until_us``: when that may next change by time alone; ``None``: never."""

    kind: str
    plain: Any
    until_us: int | None = None
    expires_us: int | None = None
    """When the whole key ends, if it does."""


def with_end(value: Any, until_us: int) -> Any:
    """The value to write so that it counts until then."""
    return [MARK, until_us, value]


def removed_at(at_us: int, counted: Counted | None = None) -> Any:
    """The value to write in place of a removed key's."""
    if counted is None:
        return [MARK, at_us]
    return [MARK, at_us, None, [[kind, *replica, *amounts] for (kind, replica), amounts in sorted(counted.items())]]


def check_unmarked(value: Any) -> None:
    """Raises BadRequest for a value that would be taken for one with an end."""
    if isinstance(value, (list, tuple)) and value and value[0] == MARK:
        raise BadRequest("a list may not begin with those bytes", asked=repr(MARK), hint="use ttl_s for a value's end")


def is_marked(data: bytes) -> bool:
    """Whether encoded bytes are of a value with an end, or of a removal."""
    return data.startswith(_MARKED)


def end_of(value: Any) -> tuple[int, bool, Any] | None:
    """Of a marked value: its end, whether it is a removal, and the value itself. ``None``: it has no end.

    What another host sent need not be well formed: then it is a value as any other.
    """
    if not isinstance(value, list) or not 2 <= len(value) <= 4 or value[0] != MARK or type(value[1]) is not int:
        return None
    return value[1], len(value) != 3, value[2] if len(value) == 3 else None


def counted_of(register: Crdt | None) -> Counted:
    """What had been counted when the key was removed, by the removal that counts."""
    if not isinstance(register, LWWRegister) or register.stamp is None:
        return {}
    value = register.value
    if end_of(value) is None or len(value) != 4:
        return {}
    try:
        return {(str(kind), (str(host), int(epoch))): (int(up), int(down)) for kind, host, epoch, up, down in value[3]}
    except (TypeError, ValueError, LookupError):
        return {}


def totals(counter: GCounter | PNCounter) -> Counted:
    """What each replica has counted."""
    return {
        (counter.kind, (host, epoch)): (amounts[0], amounts[1] if len(amounts) > 1 else 0)
        for (host, epoch), *amounts in counter._body()
    }


def aligned(one: Counted, other: Counted) -> tuple[Counted, Counted]:
    """Both by the same names: one may be from before origins of a host were retired, and the other from after."""
    folds = folds_of(replica for _kind, replica in (*one, *other))
    return (_folded(one, folds), _folded(other, folds)) if folds else (one, other)


def _folded(counted: Counted, folds: dict[str, int]) -> Counted:
    found: Counted = {}
    for (kind, replica), (up, down) in counted.items():
        place = kind, folded_place(replica, folds)
        more_up, more_down = found.get(place, (0, 0))
        found[place] = up + more_up, down + more_down
    return found


def shown(kinds: dict[str, Crdt], now_us: int) -> Shown | None:
    """What readers see of a key that holds these states; ``None``: nothing, there is no such key.

    Of a key that became several types it is the first by the order of ``TYPES``; one that was emptied by a removal
    gives way.
    """
    register = kinds.get(LWWRegister.kind)
    if len(kinds) == 1 and isinstance(register, LWWRegister):
        return _shown_register(register, now_us)
    for kind in TYPES:
        state = kinds.get(kind)
        if state is None:
            continue
        found: Shown | None
        match state:
            case LWWRegister():
                found = _shown_register(state, now_us)
            case MVRegister():
                found = _shown_values(state, now_us)
            case GCounter() | PNCounter():
                found = _shown_counter(state, counted_of(register))
            case ORMap():
                found = None if register is not None and not len(state) else _shown_map(state, now_us)
            case Dotted() if register is not None and state.is_empty:
                found = None
            case _:
                found = Shown(kind, state.plain)
        if found is not None:
            return found
    return None


def _shown_register(state: LWWRegister, now_us: int) -> Shown | None:
    if state.stamp is None:
        return None
    value = state.value
    end = end_of(value)
    if end is None:
        return Shown(state.kind, value)
    until_us, removed, inner = end
    if removed or now_us >= until_us:
        return None
    return Shown(state.kind, inner, until_us, until_us)


def _shown_values(state: MVRegister, now_us: int) -> Shown | None:
    values: list[Any] = []
    ends: list[int] = []
    for value in state.value:
        end = end_of(value)
        if end is None:
            values.append(value)
        elif not end[1] and now_us < end[0]:
            values.append(end[2])
            ends.append(end[0])
    if not values:
        return None
    return Shown(state.kind, values, min(ends, default=None), max(ends) if len(ends) == len(values) else None)


def _shown_map(state: ORMap, now_us: int) -> Shown:
    fields: dict[str, Any] = {}
    next_us: int | None = None
    for field, value in state.plain.items():
        end = end_of(value)
        if end is None:
            fields[field] = value
        elif not end[1] and now_us < end[0]:
            fields[field] = end[2]
            next_us = end[0] if next_us is None else min(next_us, end[0])
    return Shown(state.kind, fields, next_us)


def _shown_counter(state: GCounter | PNCounter, counted: Counted) -> Shown | None:
    if not counted:
        return Shown(state.kind, state.plain)
    total, moved = 0, False
    counts, counted = aligned(totals(state), counted)
    for place, (up, down) in counts.items():
        seen_up, seen_down = counted.get(place, (0, 0))
        total += max(0, up - seen_up) - max(0, down - seen_down)
        moved = moved or up > seen_up or down > seen_down
    return Shown(state.kind, shown_count(total)) if moved else None


def ended_register(kinds: dict[str, Crdt], now_us: int) -> int | None:
    """Since when a key is a register that ended or was removed, and nothing else: it may go once all hosts have it."""
    register = kinds.get(LWWRegister.kind)
    if len(kinds) != 1 or not isinstance(register, LWWRegister) or register.stamp is None:
        return None
    end = end_of(register.value)
    if end is None or end[0] > now_us or counted_of(register):
        return None
    return max(end[0], register.stamp[0])


def drop_ended(kinds: dict[str, Crdt], before_us: int) -> bool:
    """Drop fields and concurrent values that ended before; gives whether there were any. Their dots stay seen."""
    dropped = False
    for state in kinds.values():
        if isinstance(state, (ORMap, MVRegister)):
            dropped = state.drop_where(lambda data: _ended(data, before_us)) or dropped
    return dropped


def _ended(data: bytes, before_us: int) -> bool:
    if not is_marked(data):
        return False
    end = end_of(decode_value(data))
    return end is not None and end[0] < before_us
