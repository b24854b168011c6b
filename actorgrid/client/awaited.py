"""Verbs of a synchronous object, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")


class Awaiting(Generic[S]):
    """Whose verbs are those of *sync*, awaited."""

    sync: S


def awaited(verb: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[Awaiting[S], P], Coroutine[Any, Any, T]]:
    """The same verb, awaited: it runs in a thread of the loop's default executor."""

    @wraps(verb)
    async def in_thread(self: Awaiting[S], /, *args: P.args, **more: P.kwargs) -> T:
        return await asyncio.to_thread(getattr(self.sync, verb.__name__), *args, **more)

    return in_thread
