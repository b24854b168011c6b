"""The ways in which one of several targets is chosen, by name: what a setting, a pool or a request may say."""

from enum import StrEnum


class BalancingPolicy(StrEnum):
    """How one of several targets is chosen."""

    ROUND_ROBIN = "round_robin"
    WEIGHTED_ROUND_ROBIN = "weighted_round_robin"
    LEAST_LOADED = "least_loaded"
    CAPABILITY_BASED = "capability_based"
    AFFINITY_AWARE = "affinity_aware"
