"""What the memory pool takes and gives besides blocks: its figures, its errors, the vendors' alignments."""

from __future__ import annotations

import operator
from typing import NamedTuple

from actorgrid.errors import BadRequest, InvalidBlock, OutOfDeviceMemory

SIZE_BYTES_MAX = 2**62
ALIGNMENT_BYTES_MAX = 2**40
# What the vendors' own allocators promise, and their copy engines like best.
VENDOR_ALIGNMENT_BYTES = {"nvidia": 256, "amd": 4096, "intel": 64}


class PoolStats(NamedTuple):
    """A pool's figures; everything but counts and ``fragmentation`` is in bytes."""

    size: int
    used: int
    """In blocks, each rounded up to the alignment."""
    free: int
    """``size - used``."""
    held: int
    """The part of ``free`` that an unfinished defragmentation keeps for its moves."""
    largest_free: int
    """The largest block that ``allocate`` would give now."""
    peak_used: int
    fragmentation: float
    """``1 - largest_free / free``: 0 is one hole; 0 also when nothing is free."""
    blocks: int
    holes: int
    moves: int
    """Moves committed, ever."""
    moved_bytes: int


class Segment(NamedTuple):
    """One stretch of the range: ``state`` is ``used``, ``free``, or ``held`` by a defragmentation."""

    offset: int
    size: int
    state: str


def vendor_alignment_bytes(vendor: str) -> int:
    """The alignment for devices of ``nvidia``, ``amd`` or ``intel``. Raises BadRequest for another name."""
    found = VENDOR_ALIGNMENT_BYTES.get(vendor.lower())
    if found is None:
        known = ", ".join(VENDOR_ALIGNMENT_BYTES)
        raise BadRequest(f"no alignment is known for {vendor!r}", asked=vendor, found=known, hint="give it in bytes")
    return found


def whole_number(value: object, what: str, minimum: int) -> int:
    """*value* as an int of at least *minimum*. Raises BadRequest: NaN, fractions, text and bools are no sizes."""
    number = None
    if not isinstance(value, bool):
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            number = None
    if number is None or number < minimum:
        found = f"{number}" if number is not None else f"a {type(value).__name__}"
        raise BadRequest(f"{what} is a whole number of at least {minimum}", asked=f"{value!r:.60}", found=found)
    return number


def geometry(size_bytes: object, alignment_bytes: object) -> tuple[int, int]:
    """(alignment as a shift, size in units of the alignment). Raises BadRequest."""
    alignment = whole_number(alignment_bytes, "an alignment in bytes", 1)
    size = whole_number(size_bytes, "a pool's size in bytes", 1)
    if alignment & (alignment - 1) or alignment > ALIGNMENT_BYTES_MAX:
        raise BadRequest(
            "an alignment is a power of two",
            asked=f"{alignment_bytes!r:.60}",
            found=f"the largest is {ALIGNMENT_BYTES_MAX}",
            hint="256 (NVIDIA), 4096 (AMD) or 64 (Intel)",
        )
    if not alignment <= size <= SIZE_BYTES_MAX:
        raise BadRequest(
            "a pool holds at least one aligned unit and at most 4 EiB", asked=f"{size}", found=f"alignment {alignment}"
        )
    shift = alignment.bit_length() - 1
    return shift, size >> shift


def out_of_memory(asked: int, size: int, free: int, largest: int, held: int) -> OutOfDeviceMemory:
    """The error when *asked* bytes find no hole."""
    if asked > size:
        hint = "ask for less, or use a larger device"
    elif asked > free:
        hint = "free blocks first"
    elif held:
        hint = "finish or close the defragmentation that holds the rest"
    else:
        hint = "defragment(want_bytes=...) makes a hole of that size, then ask again"
    found = f"{free} bytes free of {size}, the largest hole {largest}"
    return OutOfDeviceMemory(
        "no hole of the device's memory is large enough",
        asked=f"{asked} bytes",
        found=found,
        hint=hint,
        asked_bytes=asked,
        free_bytes=free,
        largest_free_bytes=largest,
        held_bytes=held,
    )


def not_a_block(value: object) -> InvalidBlock:
    """The error when something else stands where a block of this pool belongs."""
    return InvalidBlock(
        "this is no block of this pool",
        asked=f"a {type(value).__name__}",
        hint="give what this pool's allocate gave",
    )


def freed_already(position: int = -1) -> InvalidBlock:
    """The error for a block that was freed before; *position* is its place in a batch, if it has one."""
    where = f"block {position} of the batch" if position >= 0 else "the block"
    return InvalidBlock(f"{where} was freed already", found="nothing was changed", hint="free each block once")


def stale_move(why: str) -> InvalidBlock:
    """The error for a move that cannot be committed or cancelled (any more)."""
    return InvalidBlock(
        f"the move is stale: {why}", found="nothing was changed", hint="take moves from a new defragment()"
    )
