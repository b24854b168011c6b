"""Values that a worker sends: with the frame when they are small, else kept in its host's object store."""

from __future__ import annotations

from typing import Any

from actorgrid.errors import HostUnreachable, ObjectStoreFull
from actorgrid.objects.space import ObjectSpace
from actorgrid.objects.stored import KEPT_BYTES, PickledBeside, large, pack
from actorgrid.transports.task_frames import MAX_BODY_BYTES

from .function_call import ATOMS, dump_value

Gifts = list[list[Any]]
_LARGE_ATOMS = frozenset({bytes, str, int})


def pack_value(value: Any, space: ObjectSpace | None) -> tuple[bytes, Gifts]:
    """A value as a frame has it, and what is kept in *space* for who gets the frame.

    Raises UnpicklableResult when it cannot be pickled, or is too large where there is no store.
    """
    kind = type(value)
    if space is None or (kind in ATOMS and (kind not in _LARGE_ATOMS or _is_small(value))):
        return dump_value(value, MAX_BODY_BYTES), []

    def dump(beside: PickledBeside | None) -> bytes:
        if beside is None:
            return dump_value(value, MAX_BODY_BYTES)
        return dump_value(large(value), None, beside)

    try:
        packed = pack(dump, lambda: space)
    except (ObjectStoreFull, HostUnreachable) as error:
        try:
            return dump_value(value, MAX_BODY_BYTES), []  # it goes along, if it is not too large for that
        except Exception:  # noqa: BLE001 - the store's error says more
            raise error from None
    # Given before this process lets go of them, over one connection: at no time nobody refers to them.
    return packed.body, [held.space.give(held.key).to_plain() for held in packed.held]


def _is_small(value: Any) -> bool:
    if type(value) is int:
        return value.bit_length() < KEPT_BYTES
    return len(value) < KEPT_BYTES // 4
