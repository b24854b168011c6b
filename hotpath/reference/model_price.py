"""What a share of each GPU model costs beyond itself: the price that keeps work which can run anywhere off models that
other work needs, in plain Python.

Demand that names models is spread over what is free of the models it names. Where it is more than a model's part of
all that is free, the rest of it will find no room: that is the shortage, summed over models. Up to a hundredth of what
is free it costs nothing, since no order of placing fills the last few hundredths anyway, and to keep work off a model
has a price too: it goes where it fits less well. Beyond that, a model costs ten times the excess, and no more than a
fifth of what is asked of it; less where what names it would fill less than eight tenths of it, nothing below seven.

The price is in DEMAND_UNITs of each thousandth of a device. It is found anew every PRICED_FOR placements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..typical_mix import DEMAND_UNIT

PRICED_FOR = 16  # placements: what is free changes little in between
SHORTAGE_FREE = DEMAND_UNIT // 100
PRICE_SLOPE = 10
PRICE_MAX = DEMAND_UNIT // 5
FILLED_TENTHS = 7
PRICE_SHIFT = 20  # price x thousandths >> PRICE_SHIFT is in steps of a score: of 16 thousandths


def model_prices(
    named: Sequence[tuple[Sequence[int], int]], free: Mapping[int, int], total_free: int
) -> dict[int, int]:
    """The price of each kind in *free* {kind: free thousandths}; *total_free* is that of all devices.

    *named* are (kinds, part of the demand) as in ``Mix.named``.
    """
    expected = dict.fromkeys(free, 0)
    for kinds, demand in named:
        room = sum(free[kind] for kind in kinds)
        for kind in kinds:
            expected[kind] += demand * free[kind] // room if room else 0
    part = {kind: amount * DEMAND_UNIT // total_free if total_free else 0 for kind, amount in free.items()}
    shortage = sum(max(0, expected[kind] - part[kind]) for kind in free)
    level = min(PRICE_MAX, PRICE_SLOPE * max(0, shortage - SHORTAGE_FREE))
    return {
        kind: level * max(0, min(part[kind], 10 * expected[kind] - FILLED_TENTHS * part[kind])) // part[kind]
        if part[kind]
        else 0
        for kind in free
    }


def surcharge(price: int, milli: int) -> int:
    """By how much a score falls for *milli* of a device of a model of that price."""
    return price * milli >> PRICE_SHIFT
