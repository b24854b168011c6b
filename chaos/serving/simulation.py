"""Gateways that route chat traffic to replicas, on virtual time: the router is the real one.

Each request meets a gateway at random, which is the hard case: nobody sees a whole session. What a gateway tells the
others of prompts and loads arrives ``news_s`` later.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from actorgrid.actors.serving.prefix_index import BLOCK_BYTES, PrefixIndex
from actorgrid.actors.serving.routing import BYTES_OF_TOKEN, Assignment, PromptHead, ReplicaLoad, ReplicaRouter
from actorgrid.actors.serving.table import ReplicaEndpoint, ReplicaState, RoutingStrategy

from .chat_traffic import ChatSession, sessions
from .replica import TOKENS_OF_BLOCK, RunningPrompt, SimulatedReplica

REPLICAS = 8
BLOCKS_OF_HASH = BLOCK_BYTES // BYTES_OF_TOKEN // TOKENS_OF_BLOCK
"""Blocks of a replica's cache in one of the router's."""


class RoutingFigures(NamedTuple):
    """What came of it: the share of prompts' blocks that caches had, the time to first tokens, and requests in all."""

    hit_ratio: float
    first_token_p50_s: float
    first_token_p99_s: float
    requests: int
    left_over: int
    """Requests that routers count for running when none is: load that was not given back."""


@dataclass(slots=True)
class _Request:
    session: ChatSession
    arrived: float
    blocks: list[int]
    answer_blocks: int
    gateway: int
    assignment: Assignment
    is_answered: bool = field(default=False)


class RoutingSimulation:
    """One run: *gateways* before eight replicas. *news_s*: how late they hear of each other; ``None``: never."""

    def __init__(
        self, strategy: RoutingStrategy, rate: float, gateways: int, news_s: float | None, seconds: float, seed: int
    ) -> None:
        self._random = Random(seed)
        self._news_s, self._seconds = news_s, seconds
        self._numbers = itertools.count()
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._replicas = [SimulatedReplica() for _ in range(REPLICAS)]
        endpoints = [
            ReplicaEndpoint(f"r{at}", f"h{at}", f"r{at}.1", "v1", ReplicaState.READY, 8000) for at in range(REPLICAS)
        ]
        self._indexes = [PrefixIndex() for _ in range(gateways)]
        self._routers = [ReplicaRouter(strategy, index) for index in self._indexes]
        for router in self._routers:
            router.use(strategy, endpoints, ())
        self._requests: dict[int, _Request] = {}
        self._first_tokens_s: list[float] = []
        self._warm_s = seconds / 3
        self._sessions = sessions(rate, seconds, seed, self._numbers)

    def run(self) -> RoutingFigures:
        """Play it to its end."""
        for session in self._sessions:
            self._at(session.at, partial(self._ask, session))
        if self._news_s is not None and len(self._routers) > 1:
            self._at(self._news_s, self._tell_loads)
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
        ranked = sorted(self._first_tokens_s) or [0.0]
        asked = sum(replica.asked_blocks for replica in self._replicas)
        return RoutingFigures(
            sum(replica.hit_blocks for replica in self._replicas) / max(1, asked),
            ranked[len(ranked) // 2],
            ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))],
            len(ranked),
            sum(load.requests + load.tokens for router in self._routers for load in router.loads.values()),
        )

    def _at(self, at: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), event))

    def _ask(self, session: ChatSession, now: float) -> None:
        if now > self._seconds:
            return
        turn = session.turns.pop(0)
        session.blocks += itertools.islice(self._numbers, turn.asked_blocks)
        if not session.key:
            session.key = session.blocks[-1]
        prompt = PromptHead(
            str(session.key),
            chain=_chain(session.blocks),
            size_bytes=len(session.blocks) * TOKENS_OF_BLOCK * BYTES_OF_TOKEN,
        )
        gateway = self._random.randrange(len(self._routers))
        assignment = self._routers[gateway].choose(prompt, now, self._random.randrange)
        assert assignment is not None, "all replicas are ready"
        number = next(self._order)
        blocks = list(session.blocks)
        self._requests[number] = _Request(session, now, blocks, turn.answer_blocks, gateway, assignment)
        if assignment.new_blocks and self._news_s is not None:
            attempt, new = assignment.replica.attempt, assignment.new_blocks
            self._at(now + self._news_s, lambda _: self._hear_blocks(gateway, attempt, new))
        replica = int(assignment.replica.replica_id[1:])
        self._replicas[replica].take(RunningPrompt(number, blocks, turn.answer_blocks * TOKENS_OF_BLOCK))
        if not self._replicas[replica].is_stepping:
            self._replicas[replica].is_stepping = True
            self._at(now, partial(self._step, replica))

    def _step(self, replica: int, now: float) -> None:
        step = self._replicas[replica].step()
        if step is None:
            self._replicas[replica].is_stepping = False
            return
        then = now + step.took_s
        for number in step.first:
            request = self._requests[number]
            self._routers[request.gateway].answered(request.assignment)
            if request.arrived > self._warm_s:
                self._first_tokens_s.append(then - request.arrived)
        for number in step.ended:
            request = self._requests.pop(number)
            self._routers[request.gateway].release(request.assignment, then)
            session = request.session
            session.blocks += itertools.islice(self._numbers, request.answer_blocks)
            self._replicas[replica].cache.touch(session.blocks)
            if session.turns:
                self._at(then + session.turns[0].after_s, partial(self._ask, session))
        self._at(then, partial(self._step, replica))

    def _hear_blocks(self, gateway: int, attempt: str, blocks: tuple[int, ...]) -> None:
        for at, index in enumerate(self._indexes):
            if at != gateway:
                index.add(attempt, blocks[::-1])

    def _tell_loads(self, now: float) -> None:
        for at, router in enumerate(self._routers):
            loads = {
                attempt: ReplicaLoad(load.requests, load.tokens, load.pending_tokens)
                for attempt, load in router.loads.items()
            }
            for other, listener in enumerate(self._routers):
                if other != at:
                    listener.hear(f"g{at}", loads, now)
        if self._requests or now < self._seconds:
            assert self._news_s is not None
            self._at(now + self._news_s, self._tell_loads)


def _chain(blocks: list[int]) -> tuple[int, ...]:
    found: list[int] = []
    last = b""
    for at in range(0, len(blocks) - BLOCKS_OF_HASH + 1, BLOCKS_OF_HASH):
        part = ",".join(map(str, blocks[at : at + BLOCKS_OF_HASH])).encode()
        last = blake2b(last + part, digest_size=8).digest()
        found.append(int.from_bytes(last, "big"))
    return tuple(found)


def simulate(
    strategy: RoutingStrategy,
    rate: float,
    gateways: int = 1,
    news_s: float | None = None,
    seconds: float = 150.0,
    seed: int = 1,
) -> RoutingFigures:
    """The figures of one run; the first third of the time is not counted for times to first tokens."""
    return RoutingSimulation(strategy, rate, gateways, news_s, seconds, seed).run()
