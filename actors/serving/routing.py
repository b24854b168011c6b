"""Which replica of a service gets a request. No clock and no dice: both are arguments.

Two strategies are for language models. *prefix_hash*: a session belongs to a replica by rendezvous hashing of its head
(model, adapter, system prompt, first message), which may have up to 1.25 times the mean and 6 requests more. Gateways
that know nothing of each other agree on it; without the 6, one that sees two requests at a time would spill at once.
*prefix_cost*: whoever has the least to compute: prompts that it has not begun to answer, what it lacks of this one
(``prefix_index.py``), and 25 tokens for each request that runs there. A request that names its session, by header or
``prompt_cache_key``, goes by hash under both. The others are those of ``actorgrid/balancing``.

Load is counted when a replica is chosen, in tokens (a quarter of the bytes), and given back once, on every path: load
that is counted late, or not on one path, sends everybody to one replica (facts of routers' bug lists).

Measured by ``chaos/serving``: 8 gateways against one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from actorgrid.balancing.affinity import rendezvous_order
from actorgrid.balancing.core import Balancer
from actorgrid.balancing.targets import MAX_KEY_CHARS, RouteTarget, RoutingRequest
from actorgrid.configs.balancing_policy import BalancingPolicy

from .prefix_index import BLOCK_BYTES, PrefixIndex
from .table import ReplicaEndpoint, ReplicaState, RevisionWeight, RoutingStrategy

BYTES_OF_TOKEN = 4
BOUND, SLACK = 1.25, 6.0
"""With 3 a busy session's replica passes on a sixth of what it could take, and 8 gateways keep 0.86 to 0.93 of one
router's hits (``tests/bench model_routing``, by seed); with 6 0.91 to 0.94, and beyond that only the waits grow."""
RUNNING_TOKENS = 25
"""What one more request that runs somewhere costs this one, in tokens of prompt: it slows each step of decoding."""
ALIKE_TOKENS = 64
"""Costs that differ by so little are the same where other gateways choose too: what these have sent since they told of
their loads is not known, and all who see the same replica as the cheapest would go there at once. Of 14 seeds of 8
gateways (10 sessions/s) the p99 to the first token was then 0.73 to 1.50 times one router's, 1.05 in the mean, instead
of 0.76 to 1.58, 1.18 in the mean, with as many hits; with 128 and more, it was over 1.5 again by some seed."""
ORDERS_MAX = 4_096
"""Heads of sessions whose order of replicas is remembered."""
HEARD_S = 3.0
"""The load that another gateway told of counts for so long: then that gateway is gone, or cannot be heard."""
GATEWAYS_MAX = 4_096
Draw = Callable[[int], int]


class PromptHead(NamedTuple):
    """What of a request says where it belongs."""

    session: str
    """By which it finds its replica again; what a client named is preferred to what was found in the prompt."""
    is_named: bool = False
    """Whether the client named it."""
    chain: tuple[int, ...] = ()
    size_bytes: int = 0

    @property
    def tokens(self) -> int:
        """As they are counted here: nobody loads a tokenizer for that."""
        return self.size_bytes // BYTES_OF_TOKEN + 1


@dataclass(slots=True)
class Assignment:
    """A request at a replica: what it counts for there, until it is given back."""

    replica: ReplicaEndpoint
    tokens: int
    pending_tokens: int
    """Of its prompt, what the replica has to compute and has not, as far as one can tell."""
    new_blocks: tuple[int, ...] = ()
    """Of its prompt, what the replica did not have: other gateways are to be told."""
    is_balanced: bool = False
    """Whether it was counted by the balancer too: by one of its policies."""
    is_released: bool = False


@dataclass(slots=True)
class ReplicaLoad:
    """What is at a replica."""

    requests: int = 0
    tokens: int = 0
    pending_tokens: int = 0


@dataclass(slots=True)
class _Heard:
    at: float
    loads: Mapping[str, ReplicaLoad] = field(default_factory=dict)


class ReplicaRouter:
    """Chooses among the replicas of one service, in one gateway."""

    def __init__(self, strategy: RoutingStrategy, index: PrefixIndex) -> None:
        self._strategy = strategy
        self._index = index
        self.replicas: dict[str, ReplicaEndpoint] = {}
        self._ready: list[ReplicaEndpoint] = []
        self._revisions: Sequence[RevisionWeight] = ()
        self.loads: dict[str, ReplicaLoad] = {}
        """By attempt: what this gateway has there."""
        self._heard: dict[str, _Heard] = {}
        self._sum: Mapping[str, ReplicaLoad] = {}
        self._sum_until = 0.0
        """When the first of what the sum is made of is too old: until then it is not added up anew."""
        self._orders: dict[str, list[str]] = {}
        self._mean_tokens = 256.0  # of requests, by which loads in tokens become loads in requests
        self._balancer = Balancer(_POLICIES.get(strategy, BalancingPolicy.LEAST_LOADED))

    # -- what there is

    def use(
        self, strategy: RoutingStrategy, replicas: Iterable[ReplicaEndpoint], revisions: Sequence[RevisionWeight]
    ) -> None:
        """Take these for all replicas there are."""
        self._strategy = strategy
        self._revisions = revisions
        before = set(self.replicas)
        self.replicas = {each.replica_id: each for each in replicas}
        if before != set(self.replicas):
            self._orders.clear()
        self._ready = [each for each in self.replicas.values() if each.state is ReplicaState.READY]
        attempts = {each.attempt for each in self.replicas.values()}
        self.loads = {attempt: load for attempt, load in self.loads.items() if attempt in attempts or load.requests}
        self._balancer.policy = _POLICIES.get(strategy, BalancingPolicy.LEAST_LOADED)
        self._balancer.set_targets(RouteTarget(each.replica_id, each.host) for each in self.replicas.values())

    def hear(self, gateway: str, loads: Mapping[str, ReplicaLoad], now: float) -> None:
        """Take what another gateway has at replicas, by attempt."""
        self._heard.pop(gateway, None)
        self._heard[gateway] = _Heard(now, loads)
        self._sum_until = -1.0
        while len(self._heard) > GATEWAYS_MAX or (self._heard and now - next(iter(self._heard.values())).at > HEARD_S):
            del self._heard[next(iter(self._heard))]

    def requests_elsewhere(self, now: float) -> int:
        """What other gateways have running, as far as they told."""
        return sum(load.requests for load in self._others(now).values())

    # -- one request

    def choose(
        self, prompt: PromptHead, now: float, draw: Draw, avoid: Collection[str] = (), shunned: Collection[str] = ()
    ) -> Assignment | None:
        """The replica for a request, counted there from now on; ``None`` when there is none to choose.

        *avoid*: ids of replicas that failed it already; *shunned*: of those that get requests only when all do.
        """
        ready = self._ready
        if avoid:
            ready = [each for each in ready if each.replica_id not in avoid]
        if self._revisions:
            revision = self._revision_of(prompt)
            ready = [each for each in ready if each.revision == revision] or ready
        if shunned:
            ready = [each for each in ready if each.replica_id not in shunned] or ready
        if not ready:
            return None
        matches: Mapping[str, int] = {}
        if len(ready) == 1:
            chosen = ready[0]
        elif self._strategy is RoutingStrategy.PREFIX_HASH or (
            prompt.is_named and self._strategy is RoutingStrategy.PREFIX_COST
        ):
            chosen = self._by_hash(prompt, ready, now)
        elif self._strategy is RoutingStrategy.PREFIX_COST:
            matches = self._index.matches(prompt.chain, (each.attempt for each in ready))
            chosen = self._by_cost(prompt, ready, matches, now)
        else:
            chosen = self._by_policy(prompt, ready, now, draw)
        return self._assign(prompt, chosen, matches, now)

    def answered(self, assignment: Assignment) -> None:
        """Note that the replica has begun to answer: the prompt is computed."""
        load = self.loads.get(assignment.replica.attempt)
        if load is not None and not assignment.is_released:
            load.pending_tokens -= assignment.pending_tokens
        assignment.pending_tokens = 0

    def release(self, assignment: Assignment, now: float) -> None:
        """Give back what *assignment* counts for. A second time does nothing."""
        if assignment.is_released:
            return
        self.answered(assignment)
        assignment.is_released = True
        attempt = assignment.replica.attempt
        load = self.loads[attempt]
        load.requests -= 1
        load.tokens -= assignment.tokens
        if assignment.is_balanced:
            self._balancer.ended(assignment.replica.replica_id, now)
        if not load.requests and all(each.attempt != attempt for each in self.replicas.values()):
            del self.loads[attempt]

    def _assign(
        self, prompt: PromptHead, replica: ReplicaEndpoint, matches: Mapping[str, int], now: float
    ) -> Assignment:
        attempt = replica.attempt
        new: tuple[int, ...] = ()
        known = 0
        if self._strategy is RoutingStrategy.PREFIX_COST:
            known = (matches or self._index.matches(prompt.chain, (attempt,))).get(attempt, 0)
            new = self._index.add(attempt, prompt.chain)
        pending = max(1, prompt.tokens - known * (BLOCK_BYTES // BYTES_OF_TOKEN))
        load = self.loads.get(attempt)
        if load is None:
            load = self.loads[attempt] = ReplicaLoad()
        load.requests += 1
        load.tokens += prompt.tokens
        load.pending_tokens += pending
        self._mean_tokens += 0.01 * (prompt.tokens - self._mean_tokens)
        if self._strategy in _POLICIES:
            self._balancer.began(replica.replica_id, now)
        return Assignment(replica, prompt.tokens, pending, new, self._strategy in _POLICIES)

    # -- ways to choose

    def _revision_of(self, prompt: PromptHead) -> str:
        """The revision that this session belongs to while there are several: the same at each gateway."""
        digest = blake2b(b"revision\0" + prompt.session.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        place = int.from_bytes(digest, "big") % 100
        for each in self._revisions:
            place -= each.percent
            if place < 0:
                return each.revision
        return self._revisions[-1].revision

    def _order(self, prompt: PromptHead) -> list[str]:
        order = self._orders.get(prompt.session)
        if order is None:
            if len(self._orders) >= ORDERS_MAX:
                del self._orders[next(iter(self._orders))]
            order = self._orders[prompt.session] = rendezvous_order(prompt.session, dict.fromkeys(self.replicas, 1))
        return order

    def _by_hash(self, prompt: PromptHead, ready: Sequence[ReplicaEndpoint], now: float) -> ReplicaEndpoint:
        by_id = {each.replica_id: each for each in ready}
        heard = self._others(now)
        load_of: dict[str, float] = {}
        for each in ready:
            own, others = self.loads.get(each.attempt, _NONE), heard.get(each.attempt, _NONE)
            # Long prompts count for more than one request, short ones never for less: each takes a place in the batch.
            tokens = (own.tokens + others.tokens) / self._mean_tokens
            load_of[each.replica_id] = max(tokens, own.requests + others.requests)
        limit = BOUND * (sum(load_of.values()) + 1) / len(ready) + SLACK
        order = [id for id in self._order(prompt) if id in by_id]
        for id in order:
            if load_of[id] + 1 <= limit:
                return by_id[id]
        return by_id[min(order, key=lambda id: load_of[id])]

    def _by_cost(
        self, prompt: PromptHead, ready: Sequence[ReplicaEndpoint], matches: Mapping[str, int], now: float
    ) -> ReplicaEndpoint:
        heard = self._others(now)
        costs: list[int] = []
        for each in ready:
            own, others = self.loads.get(each.attempt, _NONE), heard.get(each.attempt, _NONE)
            costs.append(
                own.pending_tokens
                + others.pending_tokens
                - matches.get(each.attempt, 0) * (BLOCK_BYTES // BYTES_OF_TOKEN)
                + RUNNING_TOKENS * (own.requests + others.requests)
            )
        most = min(costs) + (ALIKE_TOKENS if heard else 0)
        best = [each for each, cost in zip(ready, costs, strict=True) if cost <= most]
        if len(best) == 1:
            return best[0]
        # Of those that are as good the one by hash: gateways that meet the same new prompt at once choose the same.
        by_id = {each.replica_id: each for each in best}
        return by_id[next(id for id in self._order(prompt) if id in by_id)]

    def _by_policy(
        self, prompt: PromptHead, ready: Sequence[ReplicaEndpoint], now: float, draw: Draw
    ) -> ReplicaEndpoint:
        allowed = {each.replica_id for each in ready}
        request = RoutingRequest(
            key=prompt.session[:MAX_KEY_CHARS] if self._strategy is RoutingStrategy.AFFINITY_AWARE else "",
            exclude=frozenset(self.replicas.keys() - allowed),
        )
        return self.replicas[self._balancer.choose(request, now, draw).target.id]

    def _others(self, now: float) -> Mapping[str, ReplicaLoad]:
        """What other gateways have at replicas, by attempt."""
        if not self._heard:
            return _NOTHING
        if now <= self._sum_until:
            return self._sum
        fresh = [heard for heard in self._heard.values() if now - heard.at <= HEARD_S]
        self._sum_until = min((heard.at for heard in fresh), default=now) + HEARD_S
        found: dict[str, ReplicaLoad] = {}
        for heard in fresh:
            for attempt, load in heard.loads.items():
                both = found.setdefault(attempt, ReplicaLoad())
                both.requests += load.requests
                both.tokens += load.tokens
                both.pending_tokens += load.pending_tokens
        self._sum = found
        return found


_NOTHING: Mapping[str, ReplicaLoad] = {}
_NONE = ReplicaLoad()
_POLICIES = {
    RoutingStrategy.ROUND_ROBIN: BalancingPolicy.ROUND_ROBIN,
    RoutingStrategy.WEIGHTED_ROUND_ROBIN: BalancingPolicy.WEIGHTED_ROUND_ROBIN,
    RoutingStrategy.LEAST_LOADED: BalancingPolicy.LEAST_LOADED,
    RoutingStrategy.AFFINITY_AWARE: BalancingPolicy.AFFINITY_AWARE,
}
