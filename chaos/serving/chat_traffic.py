"""Chat traffic: sessions of several turns over shared system prompts, and one-off prompts.

24 system prompts of 512 to 3,072 tokens, chosen by Zipf's law (1.1); sessions arrive at random, have some 5.5 turns,
12 s to think between them, 120 tokens asked and 180 answered in the mean (log-normal). A fifth are one-off prompts of
some 1,800 tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from .replica import TOKENS_OF_BLOCK

SYSTEM_PROMPTS, ZIPF = 24, 1.1
ONE_OFF_SHARE, ONE_OFF_TOKENS, ONE_OFF_ANSWER_TOKENS = 0.2, 1_800, 150
THINK_S, ASKED_TOKENS, ANSWER_TOKENS, MORE_TURNS, TURNS_MAX = 12.0, 120, 180, 5.0, 20


class ChatTurn(NamedTuple):
    """One question: how long after the last answer, and how many blocks are asked and answered."""

    after_s: float
    asked_blocks: int
    answer_blocks: int


@dataclass(slots=True)
class ChatSession:
    """A session: what was said so far, as numbers of blocks, and the turns that are left."""

    at: float
    blocks: list[int]
    turns: list[ChatTurn]
    key: int = 0


def sessions(rate: float, seconds: float, seed: int, numbers: Iterator[int]) -> list[ChatSession]:
    """The sessions that begin in *seconds*, *rate* of them a second. *numbers*: of blocks, never the same twice."""
    random = Random(seed)
    heads = [list(itertools.islice(numbers, random.randint(16, 96))) for _ in range(SYSTEM_PROMPTS)]
    weights = [1 / (rank + 1) ** ZIPF for rank in range(SYSTEM_PROMPTS)]

    def length(mean_tokens: int) -> int:
        return max(1, int(random.lognormvariate(0, 0.7) * mean_tokens / TOKENS_OF_BLOCK))

    found: list[ChatSession] = []
    at = random.expovariate(rate)
    while at < seconds:
        if random.random() < ONE_OFF_SHARE:
            turn = ChatTurn(0.0, length(ONE_OFF_TOKENS), length(ONE_OFF_ANSWER_TOKENS))
            found.append(ChatSession(at, [], [turn]))
        else:
            count = 1 + min(TURNS_MAX - 1, int(random.expovariate(1 / MORE_TURNS)))
            turns = [
                ChatTurn(
                    random.expovariate(1 / THINK_S) if number else 0.0, length(ASKED_TOKENS), length(ANSWER_TOKENS)
                )
                for number in range(count)
            ]
            found.append(ChatSession(at, list(random.choices(heads, weights)[0]), turns))
        at += random.expovariate(rate)
    return found
