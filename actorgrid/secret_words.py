"""Secrets as work asks for them: ``NAME``, a file of that name, or ``NAME:ENV``, in that variable as well."""

from __future__ import annotations

import re
from typing import Any

SECRET_BYTES_MAX = 32 * 1024
"""Of one secret's value."""
OF_A_JOB_MAX = 16
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
FOLDER_VARIABLE = "ACTORGRID_SECRETS"
"""In work: the folder with a file for each secret that it asked for."""
_NAME = re.compile(NAME)
_WISH = re.compile(rf"({NAME})(?::(?!ACTORGRID_)({VARIABLE}))?")


def is_secret_name(value: Any) -> bool:
    """Whether *value* can be the name of a secret: it is also a file's name."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def is_wishes(value: Any) -> bool:
    """Whether *value* is a list of wishes, no two for one secret."""
    if not isinstance(value, list) or len(value) > OF_A_JOB_MAX:
        return False
    if not all(isinstance(each, str) and _WISH.fullmatch(each) for each in value):
        return False
    return len({each.partition(":")[0] for each in value}) == len(value)


def wish_of(text: str) -> tuple[str, str]:
    """The name of the secret that a wish is for, and its variable; empty: none."""
    name, _, variable = text.partition(":")
    return name, variable
