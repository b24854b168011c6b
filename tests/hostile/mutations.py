"""What a hostile or broken member could write: plain values with something wrong somewhere, from a seed."""

from __future__ import annotations

import os
from random import Random
from typing import Any

ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "1"))
"""How many times as much as in CI; under soak more."""


def nested(depth: int, kind: str = "list") -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    7,
    2**31,
    2**53,
    2**63,
    2**64,
    10**30,
    1.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "a.1",
    "h1",
    "a." + "9" * 5_000,
    "\ud800",
    "\x00",
    "\x1b[31m",
    "a" * 70_000,
    [],
    [[]],
    [None],
    [{}],
    [1, 1],
    ["a", 1],
    {},
    {"": None},
    {"a": []},
    {"a": "\udfff"},
    nested(20),
    nested(20, "dict"),
    nested(70),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every part of *value*, the whole included."""
    found = [path]
    if isinstance(value, dict):
        for name in value:
            found += places(value[name], (*path, name))
    elif isinstance(value, list):
        for number in range(min(len(value), 8)):
            found += places(value[number], (*path, number))
    return found


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of *value* with *new* at *path*."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], new)
    return copy


def without(value: Any, path: tuple[Any, ...]) -> Any:
    """A copy of *value* that lacks what is at *path*."""
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = without(copy[path[0]], path[1:])
    return copy


def mutated(value: Any, dice: Random, odd: tuple[Any, ...] = ODD) -> Any:
    """*value* with one to three things wrong: replaced by something odd, taken away, or put where another belongs."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        path = dice.choice(places(value))
        kind = dice.random()
        if kind < 0.75 or not path:
            value = put(value, path, dice.choice(odd))
        elif kind < 0.9:
            value = without(value, path)
        else:
            donor: Any = value
            for step in dice.choice(places(value)):
                donor = donor[step]
            value = put(value, path, donor)
    return value
