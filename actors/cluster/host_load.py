"""The load of a host as hosts tell each other, when it is worth telling, and what of it is believed. Decisions only."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from ..replication.namespaces import cluster_key

LOAD_PREFIX = cluster_key("load", "")
"""Keys of the shared state that hosts put their load under: ``_cluster/load/HOST_ID``."""
PUBLISH_S = 1.0
"""A load that changed is told at most this often."""
REFRESH_S = 5.0
"""One that did not is told this often, so that others can tell an idle host from one that is cut off."""
TOLD_A_SECOND_MAX = 100
"""By all hosts together, when all change: every host writes down what each tells. In a larger cluster each tells less
often, and what was told counts for as much longer."""
CHANGE = 0.15
"""A share that moved by so much has changed."""
CPUS_MAX, COUNT_MAX = 1 << 20, 1 << 30


class HostLoad(TypedDict):
    """The load of one host at one time."""

    at: float
    """When it was read, in seconds since the epoch, by that host's clock."""
    cpus: int
    """The CPUs that it has."""
    cpu: float
    """The share of them that was busy since the reading before, 0 to 1."""
    memory: float
    """The share of its memory that is used, 0 to 1."""
    gpu: NotRequired[float | None]
    """The mean utilisation of its GPUs, 0 to 1; ``None``: it has none, or they do not say."""
    attempts: int
    """Attempts of jobs that hold something there."""
    leases: int
    """Workers that are leased to sessions there."""
    waiting: int
    """Requests for a worker that wait at its LoadBalancer."""


def load_in_requests(load: HostLoad) -> float:
    """The load as a number of requests, of which a CPU serves one: what runs or keeps CPUs busy, and what waits."""
    return max(load["cpu"] * load["cpus"], float(load["attempts"])) + load["waiting"]


def times_longer(hosts: int) -> float:
    """How many times longer than ``PUBLISH_S`` and ``REFRESH_S`` each of so many hosts waits before it tells again."""
    return max(1.0, hosts * PUBLISH_S / TOLD_A_SECOND_MAX)


def is_worth_telling(told: HostLoad | None, now: HostLoad, hosts: int) -> bool:
    """Whether to tell *now*, of one of *hosts* that has told *told* last."""
    if told is None:
        return True
    passed_s, longer = now["at"] - told["at"], times_longer(hosts)
    if not 0 <= passed_s < REFRESH_S * longer:  # also when the clock was set back
        return True
    if passed_s < (longer - 0.1) * PUBLISH_S:  # the timer that reads is a little early or late
        return False
    moved = abs(now["cpu"] - told["cpu"]), abs(now["memory"] - told["memory"])
    gpu = abs((now.get("gpu") or 0.0) - (told.get("gpu") or 0.0))
    counts = ("attempts", "leases", "waiting")
    return max(*moved, gpu) >= CHANGE or any(now[name] != told[name] for name in counts)  # type: ignore[literal-required]


def read_load(value: Any) -> HostLoad | None:
    """The load in a value of the shared state, which anybody may have put there; ``None`` for what is none."""
    match value:
        case {
            "at": (int() | float()) as at,
            "cpus": int(cpus),
            "cpu": (int() | float()) as cpu,
            "memory": (int() | float()) as memory,
            "attempts": int(attempts),
            "leases": int(leases),
            "waiting": int(waiting),
            **rest,
        }:
            gpu = rest.get("gpu")
        case _:
            return None
    if gpu is not None and not isinstance(gpu, int | float):
        return None
    shares = (cpu, memory, gpu or 0.0)
    if not (0 <= at < 1e12 and 1 <= cpus <= CPUS_MAX and all(0 <= share <= 1 for share in shares)):
        return None  # also for NaN, which is in no range
    if not all(0 <= count <= COUNT_MAX for count in (attempts, leases, waiting)):
        return None
    return {
        "at": float(at),
        "cpus": int(cpus),  # True counts as 1
        "cpu": float(cpu),
        "memory": float(memory),
        "gpu": None if gpu is None else float(gpu),
        "attempts": int(attempts),
        "leases": int(leases),
        "waiting": int(waiting),
    }
