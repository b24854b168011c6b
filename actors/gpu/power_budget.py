"""How a budget of power is shared out: among the hosts of a cluster, and on each among its devices. Decisions only.

Max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2): nobody gets more
than it wants while another that has less wants more. Each has its least in any case, as a device cannot be told less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from ..replication.namespaces import cluster_key

POWER_PREFIX = cluster_key("power", "")
"""Keys of the shared state that hosts put their claims under: ``_cluster/power/HOST_ID``."""
WATTS_MAX = 1e9
HEADROOM = 1.1
"""A device that draws less than its limit is given so many times what it draws: it may ask for more at any moment."""
NEAR_LIMIT = 0.95
"""From this share of its limit on a device is held back by it, and wants all that it can draw."""
TELL_AGAIN_S = 30.0
TELL_CHANGE = 0.05


@dataclass(frozen=True, slots=True)
class PowerClaim:
    """What one needs at least, wants now, and could draw at most, in watts."""

    least: float
    wanted: float
    most: float


class HostPower(TypedDict):
    """What a host tells the others of its devices together, in watts."""

    at: float
    """When, in seconds since the epoch, by its own clock."""
    least: float
    wanted: float
    most: float
    limit: float
    """What it lets its devices draw now. It is cut off with that, and goes on with it."""


def wanted_watts(draw: float | None, limit: float, most: float) -> float:
    """What a device wants that draws *draw* under *limit*: all, where the limit holds it back or it does not tell."""
    if draw is None or draw >= NEAR_LIMIT * limit:
        return most
    return min(most, HEADROOM * draw)


def share_power(budget: float, claims: Mapping[str, PowerClaim]) -> dict[str, float]:
    """Watts for each claim, together at most *budget*, unless their least alone is more: then each has its least.

    First what all want, evenly; what is left then goes on evenly to those that could draw more.
    """
    shares = {name: claim.least for name, claim in claims.items()}
    for upto in ("wanted", "most"):
        ends = {name: max(getattr(claim, upto), shares[name]) for name, claim in claims.items()}
        level = _level(shares, ends, budget - sum(shares.values()))
        shares = {name: min(max(share, level), ends[name]) for name, share in shares.items()}
    return shares


def _level(shares: Mapping[str, float], ends: Mapping[str, float], left: float) -> float:
    """To which level *left* watts raise the lowest of *shares* together, where none is raised above its end."""
    steps = sorted([(share, 1) for share in shares.values()] + [(end, -1) for end in ends.values()])
    level, rising = 0.0, 0
    for at, change in steps:
        if left <= 0:
            return level
        if rising and (at - level) * rising >= left:
            return level + left / rising
        left -= (at - level) * rising
        level, rising = at, rising + change
    return level


def host_budget(budget: float, me: str, own: PowerClaim, others: Mapping[str, HostPower], limit: float) -> float:
    """What host *me* may let its devices draw of the cluster's *budget*; *limit*: what it lets them draw now.

    It gives up at once what is not its own, and takes more only when the others have said that they let go of it: so
    that the sum stays within the budget while hosts make room for each other.
    """
    claims = {name: PowerClaim(one["least"], one["wanted"], one["most"]) for name, one in others.items()}
    share = share_power(budget, {**claims, me: own})[me]
    if share <= limit:
        return share
    free = budget - sum(one["limit"] for one in others.values())
    return max(own.least, min(share, max(limit, free)))


def is_worth_telling(told: HostPower | None, now: HostPower) -> bool:
    """Whether to tell *now*, when *told* was told last."""
    if told is None or not 0 <= now["at"] - told["at"] < TELL_AGAIN_S:
        return True
    change = TELL_CHANGE * max(1.0, now["most"])
    return any(abs(now[name] - told[name]) >= change for name in ("least", "wanted", "most")) or (
        abs(now["limit"] - told["limit"]) >= 1.0
    )


def read_power(value: Any) -> HostPower | None:
    """The claim in a value of the shared state, which anybody may have put there; ``None`` for what is none."""
    if not isinstance(value, Mapping):
        return None
    numbers = [value.get(name) for name in ("at", "least", "wanted", "most", "limit")]
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
        return None
    at, least, wanted, most, limit = (float(one) for one in numbers if one is not None)
    if not (0 <= at < 1e12 and 0 <= least <= most < WATTS_MAX and 0 <= wanted < WATTS_MAX and 0 <= limit < WATTS_MAX):
        return None  # also for NaN, which is in no range
    return {"at": at, "least": least, "wanted": min(wanted, most), "most": most, "limit": limit}
