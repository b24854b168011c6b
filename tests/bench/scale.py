"""What a leader spends on clusters of 10, 100 and 1,000 hosts of ten GPUs each: at rest, with leases, at work."""

from __future__ import annotations

from collections.abc import Iterator

from .figures import Figure, registry
from .scale_town import GPUS, TICKS_A_S, Town

SIZES = (10, 100, 1_000)
SECONDS = 5
JOBS_A_TICK = 2
NOTE = "1 process, virtual time, messages as bytes, without TLS and sockets; CPU time of the leader"


def _cpu_us(town: Town) -> float:
    return sum(town.spent_ns.values()) / 1e3 / SECONDS


@registry.add("scale")
def scale(runs: int) -> Iterator[Figure]:
    """Cost per decision flat and cost per host linear: a column for each size."""
    for hosts in SIZES:
        rest, leases, decisions, jobs, sent = [], [], [], [], []
        for _ in range(runs):
            town = Town(hosts)
            town.run(SECONDS * TICKS_A_S)
            rest.append(_cpu_us(town) / hosts)
            town.forget()
            town.run(SECONDS * TICKS_A_S, reads=True)
            leases.append(_cpu_us(town) / hosts)
            town.forget()
            town.run(SECONDS * TICKS_A_S, reads=True, jobs_a_tick=JOBS_A_TICK)
            decisions.append(town.spent_ns["schedule"] / 1e3 / town.decisions)
            jobs.append((_cpu_us(town) - leases[-1] * hosts) * SECONDS / 1e3 / town.decisions)
            sent.append(town.sent["bytes"] / 1e3 / hosts / town.decisions)
        size = f"{hosts:,} hosts, {hosts * GPUS:,} GPUs"
        yield Figure(f"{size}: leader at rest, a second and host", "µs", rest, False, note=NOTE)
        yield Figure(f"{size}: the same, each host reads once a second", "µs", leases, False, note=NOTE)
        yield Figure(
            f"{size}: a placement decision", "µs", decisions, False, note="all that the scheduler does for a job"
        )
        yield Figure(f"{size}: a job, all its leader does", "ms", jobs, False, note="4 entries; 40 jobs/s")
        yield Figure(f"{size}: a job, sent to each host", "kB", sent, False, note=NOTE)
