"""What gateway processes tell each other: which prompts went where, what runs where, and what keys have used.

News are told a few times a second, in one message; whoever misses one knows a little less and nothing wrong. A message
that comes in is checked, and what is not as it should be is dropped whole.

Bounds: 20,000 blocks in a message (240 kB), 16,384 replicas, 1,000 keys. Blocks beyond that are not told.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from actorgrid.actors.serving.routing import ReplicaLoad
from actorgrid.errors import MalformedMessage

from .key_gate import KeyCount

BLOCKS_MAX = 20_000
REPLICAS_MAX, KEYS_MAX = 16_384, 1_000
NEWS_BYTES_MAX = 4 * 2**20
COUNT_MAX = 2**53
_BLOCK = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class NewsMessage:
    """What one gateway told. *blocks*: by service and attempt; *loads*: by service and attempt; *keys*: by their id."""

    blocks: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    loads: Mapping[tuple[str, str], ReplicaLoad] = field(default_factory=dict)
    keys: Mapping[str, KeyCount] = field(default_factory=dict)


class GatewayNews:
    """What is to be told next."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, str], list[int]] = {}
        self._count = 0
        self.untold_total = 0

    def blocks(self, service: str, attempt: str, new: tuple[int, ...]) -> None:
        """A prompt went to a replica that did not have these blocks."""
        if self._count + len(new) > BLOCKS_MAX:
            self.untold_total += len(new)
            return
        self._count += len(new)
        self._blocks.setdefault((service, attempt), []).extend(new)

    def take(self, loads: Mapping[tuple[str, str], ReplicaLoad], keys: Mapping[str, KeyCount]) -> bytes:
        """The message, with what runs where and what keys have used by now."""
        blocks, self._blocks, self._count = self._blocks, {}, 0
        body: bytes = msgpack.packb(
            [
                [[*place, b"".join(map(_BLOCK.pack, found))] for place, found in blocks.items()],
                [[*place, load.requests, load.tokens, load.pending_tokens] for place, load in loads.items()],
                [
                    [
                        key_id, each.minute, each.requests, each.tokens, each.requests_before, each.tokens_before,
                    ]
                    for key_id, each in keys.items()
                ],
            ]
        )  # fmt: skip
        return body


def read_news(body: bytes) -> NewsMessage:
    """What a message tells. Raises MalformedMessage."""
    if len(body) > NEWS_BYTES_MAX:
        raise MalformedMessage("news of a gateway are too long", found=str(len(body)))
    try:
        plain = msgpack.unpackb(body, raw=False, max_array_len=REPLICAS_MAX, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedMessage(f"news of a gateway are not msgpack: {type(error).__name__}") from None
    match plain:
        case [list(blocks), list(loads), list(keys)] if len(keys) <= KEYS_MAX:
            return NewsMessage(
                dict(_blocks(row) for row in blocks),
                dict(_load(row) for row in loads),
                dict(_key(row) for row in keys),
            )
    raise MalformedMessage("news of a gateway are not as they should be")


def _blocks(row: Any) -> tuple[tuple[str, str], tuple[int, ...]]:
    match row:
        case [str(service), str(attempt), bytes(packed)] if len(packed) % 8 == 0:
            return (service, attempt), tuple(block for (block,) in _BLOCK.iter_unpack(packed))
    raise MalformedMessage("news of a gateway: blocks")


def _load(row: Any) -> tuple[tuple[str, str], ReplicaLoad]:
    match row:
        case [str(service), str(attempt), int(requests), int(tokens), int(pending)] if (
            0 <= requests <= COUNT_MAX and 0 <= tokens <= COUNT_MAX and 0 <= pending <= COUNT_MAX
        ):
            return (service, attempt), ReplicaLoad(requests, tokens, pending)
    raise MalformedMessage("news of a gateway: loads")


def _key(row: Any) -> tuple[str, KeyCount]:
    match row:
        case [
            str(key_id),
            int(minute),
            int(requests),
            int(tokens),
            int(before),
            int(tokens_before),
        ] if all(0 <= each <= COUNT_MAX for each in (minute, requests, tokens, before, tokens_before)):
            return key_id, KeyCount(minute, requests, tokens, before, tokens_before)
    raise MalformedMessage("news of a gateway: keys")
