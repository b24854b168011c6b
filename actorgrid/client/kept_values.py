"""``client.put`` and ``client.get``: values in the object store and references to them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, TypeVar

from actorgrid.errors import BadRequest, NotSupported
from actorgrid.objects.refs import Ref
from actorgrid.objects.stored import PickledBeside, keep, large

from .futures import LazyFuture
from .pickling import OpenSpace, dumps

T = TypeVar("T")
SMALL_BYTES = 4096
"""A value up to so large goes along with its references: it takes less than asking for it."""


def put(value: T, objects: OpenSpace) -> Ref[T]:
    """Keep a value. Raises what ``Client.put`` does."""
    if isinstance(value, (Ref, LazyFuture)):
        raise BadRequest(
            "a reference or future has its value already",
            asked=repr(value)[:80],
            hint="pass it as an argument; put([ref]) keeps a list with the reference",
        )
    parts = PickledBeside()
    with parts:
        data = dumps(large(value), "the value", beside=parts)
    if len(data) + parts.size <= SMALL_BYTES and not parts.refers:
        return Ref(None, data)
    space = objects()
    if space is None:
        raise NotSupported(
            "this client has no object store to put a value in",
            found="the host has none (objects.enabled), or is another machine",
            hint="pass the value as an argument, up to 64 MiB, or connect() on one of the hosts",
        )
    return Ref(keep(space, [data], parts))


def get(refs: Any, timeout: float | None) -> Any:
    """The value of a reference or future, or those of several. Raises what ``Client.get`` does."""
    if isinstance(refs, (Ref, LazyFuture)):
        return refs.result(timeout)
    if not isinstance(refs, Iterable) or isinstance(refs, (str, bytes)):
        raise BadRequest("get takes references", asked=repr(refs)[:80], hint="client.get(ref), client.get([ref, ref])")
    until = None if timeout is None else time.monotonic() + timeout
    return [get(ref, None if until is None else max(0.0, until - time.monotonic())) for ref in refs]
