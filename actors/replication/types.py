"""The CRDT types, by the names that cross doors.

Two hosts may, unseen by each other, use one key as two types. Then both values are kept, and both go on merging;
shown is the first in the order of ``TYPES``. A host that sees one type refuses local mutators of another.
"""

from __future__ import annotations

from typing import Any

from actorgrid.errors import BadRequest, MalformedBody
from actorgrid.hotpath import DeltaMerge

from .causal import CausalContext, Dot, Replica
from .counters import GCounter, PNCounter
from .crdt import MAX_DRIFT_US, Crdt, split
from .dotted import Dotted, EWFlag, MVRegister, ORSet
from .lww import LWWRegister, Stamp
from .ormap import ORMap
from .plain import MAX_ELEMENTS, MAX_KEY_BYTES, MAX_VALUE_BYTES, check_key, decode_value, encode_value

__all__ = [
    "DELTAS",
    "MAX_DRIFT_US",
    "MAX_ELEMENTS",
    "MAX_KEY_BYTES",
    "MAX_VALUE_BYTES",
    "OPERATIONS",
    "TYPES",
    "CausalContext",
    "Crdt",
    "Dot",
    "Dotted",
    "EWFlag",
    "GCounter",
    "LWWRegister",
    "MVRegister",
    "ORMap",
    "ORSet",
    "PNCounter",
    "Replica",
    "Stamp",
    "check_key",
    "decode",
    "decode_foreign",
    "mutate",
    "new",
]

TYPES: dict[str, type[Crdt]] = {
    kind.kind: kind for kind in (ORMap, ORSet, PNCounter, GCounter, MVRegister, EWFlag, LWWRegister)
}
"""All types; their order is the precedence on a key that became several."""

OPERATIONS: dict[str, tuple[str, ...]] = {
    "lww_register": ("put",),
    "mv_register": ("put",),
    "g_counter": ("increment",),
    "pn_counter": ("increment", "decrement"),
    "or_set": ("add", "remove"),
    "or_map": ("put_field", "remove_field"),
    "ew_flag": ("enable", "disable"),
}
"""What ``mutate`` takes for each type."""


def new(kind: str) -> Crdt:
    """An empty value of a type. Raises BadRequest for an unknown name."""
    if kind not in TYPES:
        raise BadRequest(f"there is no type {kind!r}", asked=kind, found=", ".join(TYPES), hint="use one of these")
    return TYPES[kind]()


def decode(data: bytes) -> Crdt:
    """The state or delta of ``to_bytes``, whatever its type. Raises MalformedBody, or BadRequest for its type."""
    kind, body = split(data)
    return type(new(kind))._of(body)


def decode_foreign(data: bytes) -> Crdt:
    """``decode`` of what another host sent: every value in it is looked at too. Raises MalformedBody.

    A value that is not plain, or not in its canonical bytes, would be found out only when somebody reads it, or never:
    two encodings of one element are two elements.
    """
    try:
        found = decode(data)
        for value in found.values_bytes():
            if encode_value(decode_value(value)) != value:
                raise MalformedBody(f"a {found.kind} holds a value that is not in its canonical bytes")
        return found
    except MalformedBody:
        raise
    except (BadRequest, RecursionError) as error:
        raise MalformedBody(f"not the bytes of a CRDT: {error}") from error


DELTAS = DeltaMerge(TYPES, CausalContext, decode_foreign)
"""Reads and joins deltas by the hundred."""


def mutate(
    state: Crdt, replica: Replica, operation: str, value: Any = None, field: str | None = None, now_us: int = 0
) -> Crdt:
    """Apply one mutator by name; gives its delta. Raises BadRequest and changes nothing when it does not fit.

    ``value`` is what is put, added or removed, or the amount of a counter (None: 1).
    """
    if operation not in OPERATIONS[state.kind]:
        allowed = ", ".join(OPERATIONS[state.kind])
        raise BadRequest(
            f"a {state.kind} has no {operation!r}", asked=operation, found=allowed, hint="use one of these"
        )
    if (field is None) == operation.endswith("_field"):
        needed = "needs a field" if field is None else "takes no field"
        raise BadRequest(f"{operation} on a {state.kind} {needed}", asked=f"field={field!r}")
    amount = 1 if value is None else value
    match state:
        case LWWRegister():
            return state.put(replica, value, now_us)
        case MVRegister():
            return state.put(replica, value)
        case GCounter():
            return state.increment(replica, amount)
        case PNCounter():
            return state.increment(replica, amount) if operation == "increment" else state.decrement(replica, amount)
        case ORSet():
            return state.add(replica, value) if operation == "add" else state.remove(replica, value)
        case ORMap():
            if operation == "put_field":
                return state.put(replica, field or "", value, now_us)
            return state.remove(replica, field or "")
        case EWFlag():
            return state.enable(replica) if operation == "enable" else state.disable(replica)
    raise BadRequest(f"a {state.kind} has no mutators")
