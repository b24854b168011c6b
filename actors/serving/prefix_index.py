"""Which replica has computed which beginnings of prompts, as far as the requests tell that went there.

A prompt is a chain of 64-bit hashes, one for each 1,024 bytes, each over everything before it too. What replicas really
have in their caches nobody is asked: what went to a replica is taken to be there until it is the least recently used
here. Gateways tell each other what is new (12 bytes for each kilobyte of new prompt), since an index that each learns
for itself falls back to chance as soon as there are several.

Bound: 280,000 blocks, some 64 MB; of each, the replicas as bits of a number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

BLOCK_BYTES = 1_024
BLOCKS_MAX = 280_000
BLOCKS_OF_PROMPT_MAX = 4_096
"""Of a prompt of over 4 MiB the rest is not looked at."""
NUMBERS_MAX = 1_024
"""Replicas that get a number before those that are gone are swept out."""


def chain_of(text: bytes, salt: bytes = b"") -> tuple[int, ...]:
    """The hashes of the whole blocks of *text*. Chains of other salts (model, adapter, tenant) have none in common."""
    found: list[int] = []
    last = blake2b(salt, digest_size=8).digest()
    for at in range(0, min(len(text), BLOCKS_OF_PROMPT_MAX * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        last = blake2b(last + text[at : at + BLOCK_BYTES], digest_size=8).digest()
        found.append(int.from_bytes(last, "big"))
    return tuple(found)


class PrefixIndex:
    """Blocks and the replicas that have them, least recently used first."""

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks: OrderedDict[int, int] = OrderedDict()
        self._blocks_max = blocks_max
        self._numbers: dict[str, int] = {}  # of attempts of replicas
        self._next = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def keep(self, attempts: Iterable[str]) -> None:
        """Forget all attempts but these: the cache of one that was started again is empty."""
        kept = set(attempts)
        self._numbers = {attempt: number for attempt, number in self._numbers.items() if attempt in kept}

    def matches(self, chain: Sequence[int], attempts: Iterable[str]) -> Mapping[str, int]:
        """Of each of *attempts*, how many blocks of *chain* it has, from the first on; those without are left out."""
        bits = {1 << number: attempt for attempt in attempts if (number := self._numbers.get(attempt)) is not None}
        have = sum(bits)
        found: dict[str, int] = {}
        blocks = self._blocks
        for length, block in enumerate(chain):
            if not have:
                break
            there = blocks.get(block, 0)
            left = have & ~there
            have &= there
            while left:
                bit = left & -left
                left ^= bit
                if length:
                    found[bits[bit]] = length
        while have:
            bit = have & -have
            have ^= bit
            found[bits[bit]] = len(chain)
        return found

    def add(self, attempt: str, chain: Sequence[int]) -> tuple[int, ...]:
        """Note that a prompt went to *attempt*. Gives the blocks that were new there: what others have to be told."""
        bit = 1 << self._number_of(attempt)
        blocks = self._blocks
        new: list[int] = []
        for block in reversed(chain):  # the beginning of a prompt is used by more than its end, and goes last
            there = blocks.get(block, 0)
            if not there & bit:
                new.append(block)
                blocks[block] = there | bit
            blocks.move_to_end(block)
        while len(blocks) > self._blocks_max:
            blocks.popitem(last=False)
        return tuple(new)

    def _number_of(self, attempt: str) -> int:
        number = self._numbers.get(attempt)
        if number is None:
            if self._next >= NUMBERS_MAX:
                self._sweep()
            number = self._numbers[attempt] = self._next
            self._next += 1
        return number

    def _sweep(self) -> None:
        """Number those that are there anew, and drop the bits of all that are gone: once in a thousand starts."""
        moved = {1 << number: 1 << at for at, number in enumerate(self._numbers.values())}
        self._numbers = {attempt: at for at, attempt in enumerate(self._numbers)}
        self._next = len(self._numbers)
        swept: OrderedDict[int, int] = OrderedDict()
        for block, there in self._blocks.items():
            kept = sum(new for old, new in moved.items() if there & old)
            if kept:
                swept[block] = kept
        self._blocks = swept
