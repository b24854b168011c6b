"""Who enforces what of a grant, in words; and how work asks for no less than some of it (``--min-isolation``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

ASPECTS: Final = ("files", "processes", "memory", "disk", "cpu", "pids", "devices", "gpu_memory", "network")
"""What work is kept from what is not its own in."""
NONE, COOPERATIVE, DRIVER, KERNEL, HARDWARE = "none", "cooperative", "driver", "kernel", "hardware"
ENFORCERS: Final = (NONE, COOPERATIVE, DRIVER, KERNEL, HARDWARE)
"""The weakest first. ``cooperative``: it is told, or hidden from, what is not its own, and can get at it on purpose;
``none``: it is counted, no more."""
APART: Final = ("files", "processes")
"""The aspects that one word alone speaks of: what keeps work apart from other work, whatever it asks for."""
MIN_ISOLATION_TEXT: Final = (
    "run only where no less is enforced: kernel (files and processes by the kernel), or by aspect, as"
    " files=kernel,memory=kernel; aspects: " + ", ".join(ASPECTS) + "; words: " + ", ".join(ENFORCERS)
)
CHARS_MAX: Final = 200


def wanted_parts(text: str) -> dict[str, str]:
    """The least that is asked for, by aspect; of a text that says nothing, nothing. Raises ValueError."""
    found: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, word = (each.strip() for each in part.partition("="))
        names, word = ((name,), word) if equals else (APART, name)
        if word not in ENFORCERS or not set(names) <= set(ASPECTS):
            raise ValueError(
                f"min_isolation: {part[:40]!r} is neither a word ({', '.join(ENFORCERS)})"
                f" nor ASPECT=WORD (aspects: {', '.join(ASPECTS)})"
            )
        for each in names:
            found[each] = max(found.get(each, NONE), word, key=ENFORCERS.index)
    return {name: found[name] for name in ASPECTS if name in found}


def checked_min_isolation(text: str) -> str:
    """*text* in the one spelling for all that ask for the same. Raises ValueError."""
    return ",".join(f"{name}={word}" for name, word in wanted_parts(text).items() if word != NONE)


def is_min_isolation(value: object) -> bool:
    """Whether *value* is that spelling, of something that is asked for."""
    try:
        return isinstance(value, str) and 0 < len(value) <= CHARS_MAX and checked_min_isolation(value) == value
    except ValueError:
        return False


def lacking(asked: str, enforced: Mapping[str, str], *, but: Collection[str] = ()) -> list[str]:
    """Of what is *asked* for, in the one spelling, what is enforced by less: ``files: cooperative, asked kernel``.

    The aspects *but* are looked at elsewhere.
    """
    return [
        f"{name}: {enforced.get(name, NONE)}, asked {word}"
        for name, word in wanted_parts(asked).items()
        if name not in but and ENFORCERS.index(enforced.get(name, NONE)) < ENFORCERS.index(word)
    ]
