"""The least isolation as requests for work name it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from .isolation_words import CHARS_MAX, MIN_ISOLATION_TEXT, checked_min_isolation

MinIsolation = Annotated[
    str,
    Field(max_length=CHARS_MAX, description=MIN_ISOLATION_TEXT),
    AfterValidator(checked_min_isolation),
]
