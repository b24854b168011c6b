"""Balancer: targets, what was heard of their hosts' load, what we sent since then, and the choice among them.

No clock and no dice: both are arguments. Load that is gossiped is old: what this balancer itself has sent since the
load was taken is added to it, so that the next request does not go where the last ten went.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable

from actorgrid.configs.balancing_policy import BalancingPolicy
from actorgrid.errors import BadRequest, NoSuitableTarget

from .load_history import LoadHistory
from .policies import Chooser, Draw, SmoothWeightedRoundRobin, TargetLoads, chooser_of
from .targets import MAX_TARGETS, RouteTarget, RoutingChoice, RoutingRequest

STALE_S = 15.0
"""A load this old says nothing: three publications were missed, or the host is cut off."""
FADE_S = 1.0
"""A load that was heard of counts for a third after this time, and the mean of all for the rest (in the manner of
Dahlin: Interpreting Stale Load Information, 1999). Old loads at their face value send everybody to whoever was idle
then: worse than chance, in tests/balancing/queue_simulation.py; with 0.3 to 2 s the 99th percentile there moves by a
tenth."""
CHANGES_MAX = 512
"""Changes of what we have in flight on a host that are remembered, to know what a load that was heard of counted."""
UNSUITABLE_SHOWN = 5


class _SentHere:
    """What we have in flight on one host, now and a while ago."""

    __slots__ = ("changes", "count")

    def __init__(self) -> None:
        self.count = 0
        self.changes: deque[tuple[float, int]] = deque(maxlen=CHANGES_MAX)

    def change(self, by: int, now: float) -> None:
        self.count = max(0, self.count + by)
        self.changes.append((now, self.count))

    def at(self, then: float) -> int:
        """The number in flight at *then*; of a time before what is remembered, the first that is."""
        place = bisect_right(self.changes, then, key=lambda change: change[0])
        if place:
            return self.changes[place - 1][1]
        return self.changes[0][1] if len(self.changes) == CHANGES_MAX else 0


class Balancer:
    """Chooses among at most ``MAX_TARGETS`` targets by *policy*, or by another that a request names."""

    def __init__(
        self,
        policy: BalancingPolicy = BalancingPolicy.LEAST_LOADED,
        stale_s: float = STALE_S,
        fade_s: float = FADE_S,
    ) -> None:
        self.policy = policy
        self.targets: dict[str, RouteTarget] = {}
        self.histories: dict[str, LoadHistory] = {}
        """By host."""
        self.unreachable: frozenset[str] = frozenset()
        """Hosts that get a request only when no other is suitable."""
        self.stale_s = stale_s
        """How long what was heard of a host counts for known."""
        self._fade_s = fade_s
        self._sent: dict[str, _SentHere] = {}  # by host
        self._in_flight: dict[str, int] = {}  # by target
        self._choosers: dict[BalancingPolicy, Chooser] = {}

    def set_targets(self, targets: Iterable[RouteTarget]) -> None:
        """Take *targets* for all there are. Raises BadRequest for too many, or two of one id."""
        found: dict[str, RouteTarget] = {}
        for target in targets:
            if target.id in found:
                raise BadRequest("two targets have one id", asked=target.id)
            found[target.id] = target
            if len(found) > MAX_TARGETS:
                raise BadRequest("too many targets", hint=f"{MAX_TARGETS} at most")
        self.targets = found
        hosts = {target.host for target in found.values()}
        self.histories = {host: history for host, history in self.histories.items() if host in hosts}
        self._sent = {host: sent for host, sent in self._sent.items() if host in hosts}
        self._in_flight = {id: count for id, count in self._in_flight.items() if id in found}
        for chooser in self._choosers.values():
            if isinstance(chooser, SmoothWeightedRoundRobin):
                chooser.forget(found)

    def heard(self, host: str, load: float, taken_at: float) -> bool:
        """Take the load of a host: what it had in flight and waiting at *taken_at*, for whomever, in requests.

        ``False`` for one that is not newer than what is known, or of a host without targets.
        """
        if not any(target.host == host for target in self.targets.values()):
            return False
        return self.histories.setdefault(host, LoadHistory()).record(taken_at, load)

    def began(self, target_id: str, now: float) -> None:
        """Note that a request was sent to a target."""
        self._change(target_id, 1, now)

    def ended(self, target_id: str, now: float) -> None:
        """Note that a request to a target has ended, however."""
        self._change(target_id, -1, now)

    def _change(self, target_id: str, by: int, now: float) -> None:
        target = self.targets.get(target_id)
        if target is None:
            return
        self._in_flight[target_id] = max(0, self._in_flight.get(target_id, 0) + by)
        self._sent.setdefault(target.host, _SentHere()).change(by, now)

    def in_flight(self, target_id: str) -> int:
        """What this balancer sent to a target that has not ended."""
        return self._in_flight.get(target_id, 0)

    def is_known(self, host: str, now: float) -> bool:
        """Whether the host's load was heard of lately."""
        history = self.histories.get(host)
        newest = None if history is None else history.newest
        return newest is not None and now - newest.at <= self.stale_s

    def host_load(self, host: str, now: float) -> float | None:
        """The load to expect on a host: what was predicted, and what we have sent since; ``None``: not known."""
        if not self.is_known(host, now):
            return None
        history = self.histories[host]
        newest, sent = history.newest, self._sent.get(host)
        since = 0 if sent is None or newest is None else sent.count - sent.at(newest.at)
        return max(0.0, history.predict(now) + since)

    def loads(self, suitable: Iterable[RouteTarget], now: float) -> TargetLoads:
        """The loads of targets: that of the host, shared among its targets by what we have in flight there.

        What others have on a host is as it was heard of, the less so the older that is, and else as it is in the mean:
        an unknown host is neither shunned nor drowned.
        """
        suitable = list(suitable)
        weights: dict[str, int] = {}
        for target in suitable:
            weights[target.host] = weights.get(target.host, 0) + target.weight
        known = {host: load for host in weights if (load := self.host_load(host, now)) is not None}
        if not known:
            return TargetLoads({target.id: self.in_flight(target.id) for target in suitable}, exact=True)
        ours = dict.fromkeys(weights, 0)
        for target in suitable:
            ours[target.host] += self.in_flight(target.id)
        theirs = sum(max(0.0, load - ours[host]) for host, load in known.items())
        mean = theirs / sum(weights[host] for host in known)  # of what others have there, for each unit of weight
        found: dict[str, float] = {}
        for target in suitable:
            host = target.host
            others = mean * weights[host]
            if host in known:
                age_s = now - self.histories[host].samples[-1].at
                others += (max(0.0, known[host] - ours[host]) - others) * math.exp(-age_s / self._fade_s)
            found[target.id] = self.in_flight(target.id) + max(0.0, others) * target.weight / weights[host]
        return TargetLoads(found, exact=False)

    def choose(
        self, request: RoutingRequest, now: float, draw: Draw, policy: BalancingPolicy | None = None
    ) -> RoutingChoice:
        """The target for *request*; tell ``began`` when it was sent. Raises NoSuitableTarget."""
        policy = policy or self.policy
        suitable, why_not = self._suitable(request)
        if not suitable:
            shown = "; ".join(f"{id}: {why}" for id, why in list(why_not.items())[:UNSUITABLE_SHOWN])
            more = f" and {len(why_not) - UNSUITABLE_SHOWN} more" if len(why_not) > UNSUITABLE_SHOWN else ""
            raise NoSuitableTarget(
                "no target is suitable" if why_not else "there is no target",
                found=shown + more,
                hint="ask for less, drop a required rule, or add a target that has it",
            )
        reachable = [target for target in suitable if target.host not in self.unreachable]
        candidates = reachable or suitable
        chooser = self._choosers.get(policy)
        if chooser is None:
            chooser = self._choosers[policy] = chooser_of(policy)
        loads = self.loads(candidates, now)
        chosen = chooser.choose(candidates, request, loads, draw)
        load = loads.in_flight.get(chosen.id, 0.0)
        why = f"{policy}: load {load:.2f} at weight {chosen.weight}, {'known' if loads.exact else 'heard of'}"
        return RoutingChoice(chosen, policy, why if reachable else f"{why}; no host can be reached", len(candidates))

    def _suitable(self, request: RoutingRequest) -> tuple[list[RouteTarget], dict[str, str]]:
        suitable: list[RouteTarget] = []
        why_not: dict[str, str] = {}
        required = [rule for rule in request.rules if rule.required]
        for target in self.targets.values():
            why = target.lacks(request.needs)
            if not why and (target.id in request.exclude or target.host in request.exclude):
                why = "excluded"
            if not why and not all(rule.kept_by(target) for rule in required):
                why = "a required rule is not kept"
            if why:
                why_not[target.id] = why
            else:
                suitable.append(target)
        return suitable, why_not
