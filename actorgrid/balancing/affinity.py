"""Which targets a request wants or avoids, and which target a key belongs to.

A key's target is found by rendezvous hashing (Thaler, Ravishankar: A Name-Based Mapping Scheme for Rendezvous, 1996),
weighted as in Schindelhauer, Schomaker: Weighted Distributed Hash Tables, 2005. When a target goes, only its keys move.
With bounded loads (Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded Loads, 2018) a target that has more
than its share passes requests to the next in the key's order, so that one busy key cannot drown its target.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

from actorgrid.errors import BadRequest

if TYPE_CHECKING:
    from .targets import RouteTarget

BOUND = 1.25
"""A target takes at most this many times its share of what is in flight (the paper's 1 + epsilon)."""
OPERATORS = ("in", "not_in", "exists", "does_not_exist")


@dataclass(frozen=True, slots=True)
class AffinityRule:
    """A wish about the target's labels, in the words of Kubernetes' node affinity.

    ``label`` may be ``host`` and ``target`` too, which every target has. A *required* rule that is not kept rules the
    target out; a preferred one that is kept adds its *weight* (1 to 100). Anti-affinity is ``not_in``. Raises
    BadRequest.
    """

    label: str
    operator: Literal["in", "not_in", "exists", "does_not_exist"] = "in"
    values: tuple[str, ...] = ()
    required: bool = False
    weight: int = 1

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise BadRequest("an affinity rule's operator", asked=self.operator, hint="one of " + ", ".join(OPERATORS))
        if not 1 <= self.weight <= 100:
            raise BadRequest("an affinity rule's weight is from 1 to 100", asked=str(self.weight))
        if self.operator in ("in", "not_in") and not self.values:
            raise BadRequest("an affinity rule without values", asked=f"{self.label} {self.operator}")

    def kept_by(self, target: RouteTarget) -> bool:
        """Whether *target* is as the rule says."""
        found = {"host": target.host, "target": target.id}.get(self.label) or target.labels.get(self.label)
        match self.operator:
            case "in":
                return found in self.values
            case "not_in":
                return found not in self.values
            case "exists":
                return found is not None
        return found is None


def preference(target: RouteTarget, rules: Iterable[AffinityRule], data: Iterable[str]) -> int:
    """The weights of the preferred rules that *target* keeps, and 1 for each of *data* that it holds."""
    kept = sum(rule.weight for rule in rules if not rule.required and rule.kept_by(target))
    return kept + sum(name in target.data for name in data)


def rendezvous_order(key: str, weights: Mapping[str, int]) -> list[str]:
    """The ids of *weights* in the order in which *key* wants them; those of more weight are first for more keys."""
    return sorted(weights, key=lambda id: (_score(key, id, weights[id]), id))


def _score(key: str, id: str, weight: int) -> float:
    digest = blake2b(f"{len(key)}:{key}{id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    uniform = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
    # The least of exponentially distributed numbers with rates w is that of i with the probability w_i over their sum.
    return -math.log(uniform) / weight


def first_with_room(order: Sequence[str], weights: Mapping[str, int], in_flight: Mapping[str, float]) -> str:
    """The first of *order* that has not more than its bounded share of what is in flight, with one more request."""
    total = sum(max(0.0, in_flight.get(id, 0.0)) for id in order) + 1
    whole = sum(weights[id] for id in order)
    for id in order:
        if in_flight.get(id, 0.0) + 1 <= math.ceil(BOUND * total * weights[id] / whole):
            return id
    # Not reached while counts are whole: the shares add up to more than the total. Loads that were predicted may be.
    return min(order, key=lambda id: in_flight.get(id, 0.0) / weights[id])
