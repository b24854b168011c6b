"""What a host says of how far it keeps work apart.

``off``: nothing is done. ``basic``: what costs work nothing. ``full``: what the kernel keeps off (docs/trust.md).
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from actorgrid.container_words import RUNTIMES
from actorgrid.isolation_words import ASPECTS, ENFORCERS

Level = Literal["off", "basic", "full"]
Setting = Literal["auto", "off", "basic", "full"]
LEVELS: tuple[Level, ...] = ("off", "basic", "full")
SETTINGS: tuple[Setting, ...] = ("auto", "off", "basic", "full")


class KeptApartRecord(TypedDict):
    """What a host says of how it keeps work apart."""

    setting: Setting
    """Its ``work.isolation``."""
    levels: dict[Level, dict[str, str]]
    """Of each level that it has: who enforces what, by aspect (``isolation_words``)."""
    containers: NotRequired[list[str]]
    """The runtimes by which it has containers at ``full``; without it: none."""


def is_kept_apart(value: Any) -> bool:
    """Whether *value* is such a record."""
    return (
        isinstance(value, dict)
        and value.keys() - {"containers"} == {"setting", "levels"}
        and _are_runtimes(value.get("containers", []))
        and value["setting"] in SETTINGS
        and isinstance(value["levels"], dict)
        and bool(value["levels"])
        and value["levels"].keys() <= set(LEVELS)
        and all(
            isinstance(row, dict)
            and row.keys() <= set(ASPECTS)
            and all(isinstance(who, str) and who in ENFORCERS for who in row.values())
            for row in value["levels"].values()
        )
    )


def _are_runtimes(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= len(RUNTIMES) and all(one in RUNTIMES for one in value)
