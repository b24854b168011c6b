"""How many tasks each device gets: in proportion to weights, exactly as many as there are, none over its limit.

The method is Hamilton's, of largest remainders: each device gets its quota rounded down, and what is left goes to the
largest fractions, one each, so that nobody is a whole task away from its exact share (Balinski and Young, Fair
Representation, 2nd edition, 2001). A device whose quota is over its limit gets the limit, and what it cannot take
is shared among the others by the same rule. The arithmetic is in whole numbers: no task is lost or made by rounding,
however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from actorgrid.errors import BadRequest, RequestTooLarge

T = TypeVar("T")

TASKS_MAX = 2**53
"""Counts up to here are exact wherever they go."""
WEIGHT_MAX = 1e300


def allot(total: int, weights: Mapping[str, float], limits: Mapping[str, int] | None = None) -> dict[str, int]:
    """How many of *total* each device of *weights* gets; the counts add up to *total*.

    *limits* are the most a device takes; one that is not named there takes any number. A weight of 0 gets nothing.
    Of equal remainders the device named first wins. O(n log n) for n devices.

    Raises RequestTooLarge when the devices that have a weight cannot take *total* between them; BadRequest for
    weights or limits that are not numbers, negative or endless, or for a negative *total*.
    """
    if not _whole(total) or not 0 <= total <= TASKS_MAX:
        raise BadRequest("that is not a number of tasks", asked=repr(total), hint=f"0 to {TASKS_MAX}")
    limits = limits or {}
    for name, limit in limits.items():
        if name not in weights:
            raise BadRequest(f"a limit is set for {name!r}, which is not among the devices", asked=str(name))
        if not _whole(limit) or limit < 0:
            raise BadRequest(f"{name}: {limit!r} is not a limit", asked=repr(limit), hint="a whole number, 0 or more")
    parts = _whole_weights(weights)
    if not limits and any(parts.values()):
        return _allot_freely(total, parts)
    names = [name for name, part in parts.items() if part]
    caps = {name: min(limits.get(name, total), total) for name in names}
    room = sum(caps.values())
    if total > room:
        raise RequestTooLarge(
            "there are more tasks than the devices may take",
            asked=f"{total} tasks",
            found=f"room for {room} on {len(names)} device{'' if len(names) == 1 else 's'}",
            hint="raise max_items_per_device, add devices, or send the rest later",
        )
    counts = dict.fromkeys(weights, 0)
    # Devices that reach their limit, those that do so first first. The order is a float's: where it errs in the last
    # digit, the whole-number test still decides, and the seats below go past a full device.
    order = sorted(names, key=lambda name: caps[name] / weights[name])
    left, weight = total, sum(parts[name] for name in names)
    full = 0
    for name in order:
        if caps[name] * weight > left * parts[name]:
            break
        counts[name] = caps[name]
        left -= caps[name]
        weight -= parts[name]
        full += 1
    still_open = set(order[full:])
    remainders = []
    seats = left
    for place, name in enumerate(names):
        if name in still_open:
            quota, remainder = divmod(left * parts[name], weight)
            counts[name] = min(quota, caps[name])
            seats -= counts[name]
            remainders.append((-remainder, place, name))
    remainders.sort()
    while seats:
        for _, _, name in remainders:
            if seats and counts[name] < caps[name]:
                counts[name] += 1
                seats -= 1
    return counts


def _allot_freely(total: int, parts: dict[str, int]) -> dict[str, int]:
    """``allot`` where no device has a limit: each gets its quota, and the largest remainders one more."""
    weight = sum(parts.values())
    counts = {name: total * part // weight for name, part in parts.items()}
    seats = total - sum(counts.values())
    if seats:
        remainders = {name: total * part % weight for name, part in parts.items()}
        # Of equals the first: those stay in their order.
        for name in sorted(remainders, key=remainders.__getitem__, reverse=True)[:seats]:
            counts[name] += 1
    return counts


def distribute(
    tasks: Sequence[T], weights: Mapping[str, float], limits: Mapping[str, int] | None = None
) -> dict[str, list[T]]:
    """*tasks* split among the devices of *weights* as :func:`allot` says, which also says what it raises.

    Each device gets a run of neighbours, in the order given, so that what belongs together stays together.
    """
    if not isinstance(tasks, Sequence) or isinstance(tasks, str | bytes):
        raise BadRequest("tasks are not a list", asked=type(tasks).__name__, hint="give a list or a tuple of tasks")
    given: dict[str, list[T]] = {}
    start = 0
    for name, count in allot(len(tasks), weights, limits).items():
        given[name] = list(tasks[start : start + count]) if count else []
        start += count
    return given


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """*weights* as whole numbers in the same proportions, exactly: a float is a whole number over a power of two."""
    # Scores are, and most of a split's time would go into what is done with fractions.
    if set(map(type, weights.values())) == {int} and min(weights.values()) >= 0 and max(weights.values()) <= WEIGHT_MAX:
        return cast("dict[str, int]", dict(weights))
    ratios = {}
    for name, weight in weights.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 <= weight <= WEIGHT_MAX:  # also false for a float that is not a number
            raise BadRequest(
                f"{name}: {weight!r:.40} is not a weight",
                asked=f"{weight!r:.40}",
                hint=f"a number from 0 (none of the tasks) to {WEIGHT_MAX:g}",
            )
        ratios[name] = weight.as_integer_ratio()
    scale = max((below for _, below in ratios.values()), default=1)
    return {name: above * (scale // below) for name, (above, below) in ratios.items()}
