"""Services under leaders that fall, hosts and replicas that die, and cuts, while requests run."""

from actorgrid.chaos.faults.hosts import Crash, LeadersFall
from actorgrid.chaos.faults.membership import Transfer
from actorgrid.chaos.faults.network import Partition
from actorgrid.chaos.faults.replicas import ReplicaDies
from actorgrid.chaos.simulator.clock import MS
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.services import GangServicesWorkload, ServicesWorkload

SCENARIO = Scenario(
    says="Services are scaled and exchanged under requests, while leaders fall, hosts and replicas die, links break.",
    faults=(
        Transfer(2_500),
        LeadersFall(5_000, lasts_ms=(200, 1_500)),
        Crash(6_000, lasts_ms=(100, 1_500)),
        Partition(5_000, lasts_ms=(200, 2_000)),
        ReplicaDies(5_000),
    ),
    workloads=lambda: (ServicesWorkload(2), GangServicesWorkload(1)),
    seconds=20.0,
    timing=Timing(tick_us=100 * MS, election_ticks=8, heartbeat_ticks=2),
)
