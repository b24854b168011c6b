"""The policies. Each chooses one of the targets that are suitable; what it remembers is bounded by them.

Dice are an argument: ``draw(below)`` gives a whole number from 0 to *below* - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from actorgrid.configs.balancing_policy import BalancingPolicy

from .affinity import first_with_room, preference, rendezvous_order
from .targets import RouteTarget, RoutingRequest

Draw = Callable[[int], int]
SCORE_TIE = 1e-9


class TargetLoads:
    """What is known of the load of targets: in requests, by target."""

    def __init__(self, in_flight: Mapping[str, float], exact: bool) -> None:
        self.in_flight = in_flight
        self.exact = exact
        """Whether nobody else sends there, so that it is known and not heard of."""

    def score(self, target: RouteTarget) -> float:
        """The load of *target*, with one more request, for each unit of its weight."""
        return (max(0.0, self.in_flight.get(target.id, 0.0)) + 1) / target.weight


class TurnByTurn:
    """Each in turn, by the order of their ids: who came after the last one that was chosen."""

    def __init__(self) -> None:
        self._last = ""

    def choose(
        self, suitable: Sequence[RouteTarget], _request: RoutingRequest, _loads: TargetLoads, _draw: Draw
    ) -> RouteTarget:
        """The next in turn of those that are suitable."""
        after = [target for target in suitable if target.id > self._last]
        chosen = min(after or suitable, key=lambda target: target.id)
        self._last = chosen.id
        return chosen


class SmoothWeightedRoundRobin:
    """Each as often as its weight says, spread evenly: nginx's smooth weighted round robin.

    (ngx_http_upstream_round_robin.c: each gains its weight, the richest is chosen and pays the sum.)
    """

    def __init__(self) -> None:
        self._credit: dict[str, int] = {}

    def choose(
        self, suitable: Sequence[RouteTarget], _request: RoutingRequest, _loads: TargetLoads, _draw: Draw
    ) -> RouteTarget:
        """The one with the most credit."""
        credit = self._credit
        for target in suitable:
            credit[target.id] = credit.get(target.id, 0) + target.weight
        chosen = max(suitable, key=lambda target: (credit[target.id], target.weight, target.id))
        credit[chosen.id] -= sum(target.weight for target in suitable)
        return chosen

    def forget(self, known: Container[str]) -> None:
        """Forget the credit of targets that are gone."""
        self._credit = {id: credit for id, credit in self._credit.items() if id in known}


class LeastLoaded:
    """The least loaded: of all, where loads are known; of two at random, where they are only heard of.

    The power of two choices (Mitzenmacher: The Power of Two Choices in Randomized Load Balancing, 2001; for loads that
    are old: How Useful Is Old Information?, 2000): whoever takes the least of old loads herds to one host with all the
    others who do. The two are drawn by weight.
    """

    def choose(
        self, suitable: Sequence[RouteTarget], _request: RoutingRequest, loads: TargetLoads, draw: Draw
    ) -> RouteTarget:
        """The less loaded of two, or the least loaded of all."""
        if not loads.exact and len(suitable) > 2:
            suitable = _two_by_weight(suitable, draw)
        return _least(suitable, loads, draw)


class AffinityAware:
    """By key, by preferred rules and by data; least loaded among those that are as good.

    A request with a key goes where its key belongs, with bounded loads. Without one, those that keep the most of what
    is preferred are taken, while none of them has more than its bounded share: data is no reason to wait for ever.
    """

    def __init__(self) -> None:
        self._least_loaded = LeastLoaded()

    def choose(
        self, suitable: Sequence[RouteTarget], request: RoutingRequest, loads: TargetLoads, draw: Draw
    ) -> RouteTarget:
        """The one that the request belongs to most, of those with room."""
        if request.rules or request.data:
            ranked: dict[int, list[RouteTarget]] = {}
            for target in suitable:
                ranked.setdefault(preference(target, request.rules, request.data), []).append(target)
            weights = {target.id: target.weight for target in suitable}
            for rank in sorted(ranked, reverse=True):
                best = ranked[rank]
                with_room = [target for target in best if _has_room(target, weights, loads)]
                if with_room:
                    suitable = with_room
                    break
        if not request.key:
            return self._least_loaded.choose(suitable, request, loads, draw)
        weights = {target.id: target.weight for target in suitable}
        order = rendezvous_order(request.key, weights)
        chosen = first_with_room(order, weights, loads.in_flight)
        return next(target for target in suitable if target.id == chosen)


def _has_room(target: RouteTarget, weights: Mapping[str, int], loads: TargetLoads) -> bool:
    others = [id for id in weights if id != target.id]
    return first_with_room([target.id, *others], weights, loads.in_flight) == target.id


def _two_by_weight(suitable: Sequence[RouteTarget], draw: Draw) -> list[RouteTarget]:
    first = _by_weight(suitable, draw)
    return [first, _by_weight([target for target in suitable if target is not first], draw)]


def _by_weight(suitable: Sequence[RouteTarget], draw: Draw) -> RouteTarget:
    point = draw(sum(target.weight for target in suitable))
    for target in suitable:
        point -= target.weight
        if point < 0:
            return target
    return suitable[-1]


def _least(suitable: Sequence[RouteTarget], loads: TargetLoads, draw: Draw) -> RouteTarget:
    scores = [loads.score(target) for target in suitable]
    least = min(scores)
    ties = [target for target, score in zip(suitable, scores, strict=True) if score <= least + SCORE_TIE]
    # By weight, so that of equally loaded ones the larger is no longer idle the more often.
    return ties[0] if len(ties) == 1 else _by_weight(ties, draw)


Chooser = TurnByTurn | SmoothWeightedRoundRobin | LeastLoaded | AffinityAware


def chooser_of(policy: BalancingPolicy) -> Chooser:
    """A new chooser for *policy*. What a request requires is looked at before, under each policy."""
    match policy:
        case BalancingPolicy.ROUND_ROBIN:
            return TurnByTurn()
        case BalancingPolicy.WEIGHTED_ROUND_ROBIN:
            return SmoothWeightedRoundRobin()
        case BalancingPolicy.AFFINITY_AWARE:
            return AffinityAware()
    return LeastLoaded()
