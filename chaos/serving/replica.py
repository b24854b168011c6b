"""A replica of a language model as it is seen from outside: continuous batching, and a cache of what it has computed.

A step takes 10 ms, 0.2 ms for each sequence that it adds a token to, and 60 µs for each token of a prompt, of which it
computes 2,048 at most; 48 sequences run at once. The cache holds 96,000 tokens in blocks of 32, the least recently used
go first. Those are times of a model of some 8 billion weights on one GPU; only their ratios matter here.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

TOKENS_OF_BLOCK = 32
CACHE_BLOCKS = 3_000
RUNNING_MAX = 48
PREFILL_TOKENS_MAX = 2_048
STEP_S, DECODE_S, PREFILL_S = 0.010, 0.000_2, 0.000_06


class PrefixCache:
    """Blocks of tokens by their number, least recently used first."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, blocks: Sequence[int]) -> int:
        """How many of *blocks* are there, from the first on."""
        for length, block in enumerate(blocks):
            if block not in self._blocks:
                return length
        return len(blocks)

    def touch(self, blocks: Sequence[int]) -> None:
        """Have *blocks*, the first of them as the newest."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > CACHE_BLOCKS:
            self._blocks.popitem(last=False)


@dataclass(slots=True, eq=False)
class RunningPrompt:
    """One request at a replica, with the tokens that are left to compute and to give."""

    request: int
    blocks: list[int]
    answer_tokens: int
    prompt_left: int = 0

    @property
    def cache_blocks(self) -> int:
        """What it takes of the cache while it runs."""
        return len(self.blocks) + self.answer_tokens // TOKENS_OF_BLOCK


class BatchStep(NamedTuple):
    """What a step took, and which requests had their first token, or ended, in it."""

    took_s: float
    first: list[int]
    ended: list[int]


class SimulatedReplica:
    """Takes requests, and gives steps for as long as there are any."""

    def __init__(self) -> None:
        self.cache = PrefixCache()
        self._waiting: deque[RunningPrompt] = deque()
        self._running: list[RunningPrompt] = []
        self.is_stepping = False
        self.hit_blocks = self.asked_blocks = 0

    def take(self, prompt: RunningPrompt) -> None:
        """Have *prompt* wait for its turn."""
        self._waiting.append(prompt)

    def step(self) -> BatchStep | None:
        """One step; ``None`` when there is nothing to do."""
        self._admit()
        if not self._running:
            return None
        budget, computed, decoding = PREFILL_TOKENS_MAX, 0, 0
        first: list[int] = []
        ended: list[RunningPrompt] = []
        for prompt in self._running:
            if prompt.prompt_left > 0:
                part = min(budget, prompt.prompt_left)
                prompt.prompt_left -= part
                budget -= part
                computed += part
                if part and not prompt.prompt_left:
                    first.append(prompt.request)
            else:
                decoding += 1
                prompt.answer_tokens -= 1
                if prompt.answer_tokens <= 0:
                    ended.append(prompt)
        self._running = [prompt for prompt in self._running if prompt not in ended]
        took_s = STEP_S + DECODE_S * decoding + PREFILL_S * computed
        return BatchStep(took_s, first, [prompt.request for prompt in ended])

    def _admit(self) -> None:
        while self._waiting and len(self._running) < RUNNING_MAX:
            prompt = self._waiting[0]
            if sum(each.cache_blocks for each in self._running) + len(prompt.blocks) >= CACHE_BLOCKS and self._running:
                return
            self._waiting.popleft()
            known = self.cache.match(prompt.blocks)
            self.hit_blocks += known
            self.asked_blocks += len(prompt.blocks)
            prompt.prompt_left = (len(prompt.blocks) - known) * TOKENS_OF_BLOCK or 1
            self.cache.touch(prompt.blocks)
            self._running.append(prompt)
