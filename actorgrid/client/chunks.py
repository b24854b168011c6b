"""Runs on workers: many small calls in one task. Imports nothing, so that a worker loads it in no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def call_each(fn: Callable[..., Any], block: list[tuple[Any, ...]]) -> list[Any]:
    """``fn`` over each tuple of arguments, in order."""
    return [fn(*args) for args in block]
