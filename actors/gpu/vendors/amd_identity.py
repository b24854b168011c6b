"""By which name AMD's runtime knows a device, and what its architecture is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_ARCHITECTURES = (
    ("gfx906", "GCN 5"),
    ("gfx908", "CDNA"),
    ("gfx90a", "CDNA 2"),
    ("gfx940", "CDNA 3"),
    ("gfx941", "CDNA 3"),
    ("gfx942", "CDNA 3"),
    ("gfx950", "CDNA 4"),
    ("gfx103", "RDNA 2"),
    ("gfx110", "RDNA 3"),
    ("gfx115", "RDNA 3.5"),
    ("gfx120", "RDNA 4"),
)


def architecture_of(target: str | None) -> str | None:
    """What gfx942 and its like are called by people; ``None`` for one that is not known here."""
    return next((name for start, name in _ARCHITECTURES if target and target.startswith(start)), None)


def runtime_name(serial: str | None) -> str | None:
    """The UUID by which ROCR_VISIBLE_DEVICES takes a device: GPU- and the sixteen digits of its unique number."""
    if not serial:
        return None
    try:
        number = int(serial, 16)
    except ValueError:
        return None
    return f"GPU-{number:016x}" if number else None  # consumers' cards have none, and say 0


def distinct(names: Iterable[tuple[str | None, str, str | None]]) -> list[str]:
    """UUIDs of devices, from (runtime name, bus id, vendor's UUID) of each; no two are the same.

    Parts of one device share its number, so they go by the bus id and their place; so does a device without a number.
    """
    told = list(names)
    often = Counter(name for name, _, _ in told if name)
    seen: Counter[str] = Counter()
    found = []
    for name, bus, uuid in told:
        if name and often[name] == 1:
            found.append(name)
            continue
        own = uuid if uuid and sum(other == uuid for _, _, other in told) == 1 else f"AMD-{bus}"
        seen[own] += 1
        found.append(own if seen[own] == 1 else f"{own}-{seen[own] - 1}")
    return found
