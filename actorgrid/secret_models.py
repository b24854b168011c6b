"""Secrets as requests for work name them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from .secret_words import NAME, OF_A_JOB_MAX, VARIABLE, is_wishes


def _wishes(value: list[str]) -> list[str]:
    if not is_wishes(value):
        raise ValueError("secrets are NAME or NAME:VARIABLE, each once; variables do not begin with ACTORGRID_")
    return value


SecretWishes = Annotated[
    list[Annotated[str, Field(pattern=rf"^{NAME}(:{VARIABLE})?$")]],
    Field(max_length=OF_A_JOB_MAX, description="secrets that it is given: NAME, or NAME:VARIABLE"),
    AfterValidator(_wishes),
]
