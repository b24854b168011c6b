"""Messages and signals for another shard as one pickle, of which nothing is lost but what cannot be pickled.

What stands in a module goes by its name. Classes and functions that came to this process with their code (a client's
own script) go on with it, as they came.
"""

from __future__ import annotations

import logging
import pickle  # nosec B403 - between shards that proved a secret to each other
from collections.abc import Callable
from typing import Any

from actorgrid.errors import BadRequest
from actorgrid.hotpath.light import ShardAddress

from ..exits import ExitReason

log = logging.getLogger("actorgrid.process")

RefuseCall = Callable[[int, BaseException], None]
"""Fails a call of ours that cannot be sent."""


def packed(
    items: list[tuple[Any, ...]], address: ShardAddress, refuse_call: RefuseCall, by_value: bool = False
) -> bytes:
    """The items as one pickle. One that cannot be pickled is left out and logged; a call gets that as its answer.

    With *by_value*, what cannot be named is pickled with its code.
    """
    try:
        return pickle.dumps(items, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - whatever the user's own classes raise; the loop finds whose it is
        if by_value:
            import cloudpickle  # only where it is needed: it is slow to load

            dumps = cloudpickle.dumps
        else:
            dumps = pickle.dumps
        fit = [found for item in items if (found := _fit(item, address, refuse_call, dumps)) is not None]
        whole: bytes = dumps(fit, protocol=pickle.HIGHEST_PROTOCOL)
        return whole


def _fit(
    item: tuple[Any, ...], address: ShardAddress, refuse_call: RefuseCall, dumps: Callable[..., bytes]
) -> tuple[Any, ...] | None:
    """The item, or what says in its place that it cannot be sent."""
    try:
        dumps(item, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
        said = f"it cannot be sent to another shard: {type(error).__name__}: {error}"
        log.warning(
            "%s is not sent to shard %s: %s", item[0] if isinstance(item[0], str) else "a message", address, said
        )
        if item[0] == "answer":
            return ("answer", item[1], None, BadRequest(f"the answer: {said}"))
        if item[0] == "call":
            refuse_call(item[2], BadRequest(f"the request: {said}"))
        if item[0] in ("down", "linked_exit", "exit"):
            return (*item[:-1], ExitReason(item[-1].kind, str(item[-1].message)))
        return None
    return item
