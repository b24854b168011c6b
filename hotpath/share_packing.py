"""What a share of each size is worth where shares are packed as well as can be: dual prices of a linear program.

Devices are bins of a whole, the typical mix says how often each share comes. How few devices hold all of them, where
every way to fill a device may be used in any amount, is the linear program of cutting stock (Gilmore and Gomory,
"A Linear Programming Approach to the Cutting-Stock Problem", 1961). Its dual gives each size a price, so that no way to
fill a device is worth more than the device: a size that leaves a rest nobody fills costs as much as a whole one.

Solved by column generation: the best filling at the present prices enters the basis, until none is worth more than a
device. Both engines take their prices from here, so that they agree to the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping

from .records import WHOLE_GPU_MILLI

STEP = 10  # thousandths of a device: sizes are told apart no finer
ROUNDS_MAX = 120  # of the column generation; openb's mixes end after 5 to 50
TOLERANCE = 1e-9


def share_prices(demand: Mapping[int, int], whole: int) -> dict[int, int]:
    """The price of a share of each size of *demand* {thousandths: weight}, where a whole device is worth *whole*.

    Sizes count as the next lower multiple of STEP, so that n shares of an n-th fill a device. Takes time with the
    square of the number of sizes, of which there are no more than 100, and at most ROUNDS_MAX rounds; prices that are
    not final then are scaled so that no device is worth more than *whole*. Weights are above 0.
    """
    stepped: dict[int, int] = {}
    for milli, weight in sorted(demand.items()):
        stepped[_steps(milli)] = stepped.get(_steps(milli), 0) + weight
    sizes = list(stepped)
    prices = dict(zip(sizes, _dual_prices(sizes, list(stepped.values())), strict=True))
    return {milli: int(prices[_steps(milli)] * whole) for milli in sorted(demand)}


def _steps(milli: int) -> int:
    return max(1, milli // STEP)


def _dual_prices(sizes: list[int], weights: list[int]) -> list[float]:
    """The dual prices, in devices. The basis begins with each size alone; its inverse is updated at each round."""
    capacity = WHOLE_GPU_MILLI // STEP
    count = len(sizes)
    alone = [capacity // size for size in sizes]
    inverse = [[1.0 / alone[row] if row == column else 0.0 for column in range(count)] for row in range(count)]
    used = [weight / each for weight, each in zip(weights, alone, strict=True)]
    prices = [1.0 / each for each in alone]
    filling, value = _best_filling(sizes, prices, capacity)
    for _ in range(ROUNDS_MAX):
        if value <= 1 + TOLERANCE:
            break
        taken = [sum(line[at] * pieces for at, pieces in filling) for line in inverse]
        leaving, ratio = -1, 0.0
        for row in range(count):
            if taken[row] > TOLERANCE and (leaving < 0 or used[row] / taken[row] < ratio):
                leaving, ratio = row, used[row] / taken[row]
        if leaving < 0:
            break
        pivot = [entry / taken[leaving] for entry in inverse[leaving]]
        for row in range(count):
            if row == leaving:
                inverse[row], used[row] = pivot, ratio
            elif taken[row]:
                factor = taken[row]
                inverse[row] = [entry - factor * other for entry, other in zip(inverse[row], pivot, strict=True)]
                used[row] -= factor * ratio
        prices = [max(0.0, sum(line[column] for line in inverse)) for column in range(count)]
        filling, value = _best_filling(sizes, prices, capacity)
    return [price / max(1.0, value) for price in prices]


def _best_filling(sizes: list[int], prices: list[float], capacity: int) -> tuple[list[tuple[int, int]], float]:
    """The pieces (number of the size, how many) of a device that are worth most, and their worth."""
    best = [0.0] * (capacity + 1)
    last = [-1] * (capacity + 1)
    for room in range(1, capacity + 1):
        most, chosen = best[room - 1], -1
        for at, size in enumerate(sizes):
            if size <= room and best[room - size] + prices[at] > most + TOLERANCE:
                most, chosen = best[room - size] + prices[at], at
        best[room], last[room] = most, chosen
    pieces: dict[int, int] = {}
    room = capacity
    while room:
        at = last[room]
        if at >= 0:
            pieces[at] = pieces.get(at, 0) + 1
        room -= 1 if at < 0 else sizes[at]
    return sorted(pieces.items()), best[capacity]
