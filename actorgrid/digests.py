"""The digest by which files that travel are named: the SHA-256 of their bytes, in lower-case hexadecimal digits."""

from __future__ import annotations

import re
from typing import TypeGuard

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(value: object) -> TypeGuard[str]:
    """Whether *value* can be such a digest."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None
