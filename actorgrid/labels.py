"""Labels of jobs: short words by which they are found again (``ps --label team=vision``).

A key and a value have at most 63 characters: letters, digits and ``- _ . /`` (not at the ends); a value may be empty. A
job has at most 16. What is longer, or only read by people, is an annotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

LABELS_MAX = 16
LABEL_CHARS_MAX = 63
CHANGES_MAX = 32
"""Labels that one edit gives and takes away."""
LABELS_TEXT = "words by which it is found, key=value: letters, digits, '-', '_', '.', '/', 63 characters each"
_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")


def is_labels(value: Any) -> TypeGuard[dict[str, str]]:
    """Whether *value* is the labels of a job."""
    return isinstance(value, Mapping) and len(value) <= LABELS_MAX and all(map(is_label, value.items()))


def is_label_changes(value: Any) -> TypeGuard[dict[str, str | None]]:
    """Whether *value* is labels to be set, and with ``None`` those to be taken away."""
    return (
        isinstance(value, Mapping)
        and len(value) <= CHANGES_MAX
        and all(is_label((key, "" if text is None else text)) for key, text in value.items())
    )


def is_label(pair: tuple[Any, Any]) -> bool:
    """Whether *pair* is a key and a value."""
    key, value = pair
    return (
        isinstance(key, str)
        and isinstance(value, str)
        and _WORD.fullmatch(key) is not None
        and (not value or _WORD.fullmatch(value) is not None)
    )


def labels_of(texts: Iterable[str]) -> dict[str, str]:
    """Labels as people write them, ``key=value``. Raises ValueError that says what a label is."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not is_label((key, value)):
            raise ValueError(
                f"{text[:80]!r} is not a label; write key=value, both of letters, digits, '-', '_', '.' and '/', at"
                f" most {LABEL_CHARS_MAX} characters"
            )
        found[key] = value
    if len(found) > LABELS_MAX:
        raise ValueError(f"{len(found)} labels are too many: a job has at most {LABELS_MAX}")
    return found


def checked_labels(found: dict[str, str]) -> dict[str, str]:
    """The same labels. Raises ValueError for what are none."""
    if not is_labels(found):
        labels_of(f"{key}={value}" for key, value in found.items())
    return found


def checked_changes(found: dict[str, str | None]) -> dict[str, str | None]:
    """The same changes of labels. Raises ValueError for what are none."""
    if not is_label_changes(found):
        for key, text in found.items():
            labels_of([f"{key}={text or ''}"])
        raise ValueError(f"{len(found)} changes of labels are too many: at most {CHANGES_MAX} at once")
    return found
