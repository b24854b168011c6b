"""What a request changes: from a key's states and the request to deltas. Decides only; all or nothing for each request.

A removal of a key (``delete``) takes what this replica has seen of it, whatever its type: see ``lifetimes``.
"""

from __future__ import annotations

import json
from typing import Any

from actorgrid.errors import BadRequest, StateCompareFailed, StateTypeConflict, UnknownKey

from .causal import Replica
from .counters import GCounter, PNCounter
from .crdt import Crdt
from .dotted import Dotted, MVRegister
from .lifetimes import TTL_MAX_S, Counted, aligned, check_unmarked, counted_of, removed_at, shown, totals, with_end
from .lww import LWWRegister, Stamp
from .messages import Mutate
from .ormap import ORMap
from .plain import encode_value
from .types import TYPES, check_key, mutate, new

MAX_BATCH = 1000
"""Mutations of one MutateBatch."""
MAX_WITHIN_S = 60.0
DURABILITIES = ("host", "majority")
SHRINKING = frozenset({"remove", "remove_field", "disable", "delete"})
"""What needs no room."""
PUTS = frozenset({"put", "put_field", "compare_and_put"})


def apply_mutation(kinds: dict[str, Crdt], asked: Mutate, me: Replica, now_us: int) -> list[bytes]:
    """Change a key's states, in place; gives the deltas (none: nothing changed).

    Raises StateTypeConflict, StateCompareFailed, BadRequest, or UnknownKey, and then has changed nothing.
    """
    seen = shown(kinds, now_us) if kinds else None
    if seen is None and asked.operation in SHRINKING:
        raise unknown_key(asked.key)
    if asked.operation == "delete":
        return _delete(kinds, me, now_us)
    _check_type(kinds, None if seen is None else seen.kind, asked)
    if asked.operation == "compare_and_put":
        _compare(asked, None if seen is None else (seen.plain,))
    value, operation = asked.value, asked.operation
    if operation in PUTS:
        check_unmarked(value)
    elif asked.ttl_s is not None:
        raise BadRequest(
            f"{operation} takes no ttl_s", asked=f"{asked.ttl_s:g} s", hint="registers and fields of maps may end"
        )
    if asked.ttl_s is not None:
        if not 0 < asked.ttl_s <= TTL_MAX_S:
            raise BadRequest("ttl_s is out of range", asked=f"{asked.ttl_s!r}", found=f"above 0, to {TTL_MAX_S:.0f} s")
        value = with_end(value, max(now_us, _latest_us(kinds, asked)) + int(asked.ttl_s * 1e6))
    known = kinds.get(asked.type)
    state = known if known is not None else new(asked.type)
    delta = mutate(state, me, "put" if operation == "compare_and_put" else operation, value, asked.field, now_us)
    data = delta.to_bytes()
    if data == new(asked.type).to_bytes():
        return []
    kinds[asked.type] = state
    return [data]


def _check_type(kinds: dict[str, Crdt], seen: str | None, asked: Mutate) -> None:
    """Raises StateTypeConflict, BadRequest for an operation that is not of the type or its arguments."""
    if asked.operation == "compare_and_put" and asked.type != LWWRegister.kind:
        raise BadRequest("only an lww_register can be compared", asked=asked.type, hint="leave the type out")
    held = seen
    if held is None:
        # A counter that was removed stays one: what it had counted is written where a register would be.
        held = next((state.kind for state in kinds.values() if isinstance(state, (GCounter, PNCounter))), None)
    if held is not None and held != asked.type:
        raise StateTypeConflict(
            f"{asked.key!r} holds {held}, not {asked.type}", asked=asked.type, found=held, hint="use another key"
        )


def _compare(asked: Mutate, seen: tuple[Any, ...] | None) -> None:
    expected = asked.expected
    if expected is None:
        raise BadRequest("compare_and_put needs the expected value", hint="or absent, for a key that is not there")
    same = seen is None if not expected else seen is not None and encode_value(seen[0]) == encode_value(expected[0])
    if not same:
        raise StateCompareFailed(
            f"{asked.key!r} is not what was expected, on this host",
            asked="no such key" if not expected else _short(expected[0]),
            found="no such key" if seen is None else _short(seen[0]),
            hint="read it again; what may not happen twice in the cluster needs a lock",
        )


def _short(value: Any) -> str:
    text = json.dumps(value, default=lambda _: "bytes")
    return text if len(text) <= 200 else text[:200] + " ..."


def _latest_us(kinds: dict[str, Crdt], asked: Mutate) -> int:
    """The time of the last write that this one replaces, which it has to come after: its hybrid clock."""
    state = kinds.get(asked.type)
    stamp: Stamp | None = None
    if isinstance(state, LWWRegister):
        stamp = state.stamp
    elif isinstance(state, ORMap) and asked.field is not None:
        stamp = state.stamp_of(asked.field)
    return 0 if stamp is None else stamp[0]


def _delete(kinds: dict[str, Crdt], me: Replica, now_us: int) -> list[bytes]:
    deltas: list[bytes] = []
    counted: Counted = {}
    empties = True
    for state in list(kinds.values()):
        match state:
            case GCounter() | PNCounter():
                counted |= totals(state)
            case Dotted():
                deltas.append(state.clear().to_bytes())
                empties = empties and isinstance(state, MVRegister)
    register = kinds.get(LWWRegister.kind)
    if register is None and not counted and empties:
        return deltas  # registers of several values are gone with their values
    counted, before = aligned(counted, counted_of(register))
    for place, (up, down) in before.items():
        more_up, more_down = counted.get(place, (0, 0))
        counted[place] = max(up, more_up), max(down, more_down)
    if not isinstance(register, LWWRegister):
        register = LWWRegister()
    gone = removed_at(now_us, counted or None)
    deltas.append(register.put(me, gone, now_us).to_bytes())
    kinds[LWWRegister.kind] = register
    return deltas


def check_asked(request: Mutate) -> None:
    """Raises BadRequest for a type or a key that is none."""
    if request.operation != "delete" and request.type not in TYPES:
        new(request.type)
    check_key(request.key)


def check_limit(limit: int) -> None:
    """Raises BadRequest for less than none."""
    if limit < 0:
        raise BadRequest("the limit is negative", asked=str(limit))


def check_durability(durability: str, within_s: float) -> None:
    """Raises BadRequest for a durability that is none, or too long a wait for it."""
    if durability not in DURABILITIES or not 0 < within_s <= MAX_WITHIN_S:
        raise BadRequest(
            "there is no such durability",
            asked=f"{durability[:80]!r} within {within_s:g} s",
            found=f"{' or '.join(DURABILITIES)}, within {MAX_WITHIN_S:g} s at most",
        )


def check_batch(count: int) -> None:
    """Raises BadRequest for a batch of so many mutations, where that is too many, or none."""
    if not 1 <= count <= MAX_BATCH:
        raise BadRequest(
            "a batch has too many mutations, or none",
            asked=str(count),
            found=f"1 to {MAX_BATCH}",
            hint="send several",
        )


def unknown_key(key: str) -> UnknownKey:
    """The error of a key that is not there."""
    return UnknownKey(f"the shared state has no {key!r}", asked=key, hint="actorgrid state list shows what there is")
