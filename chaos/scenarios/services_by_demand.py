"""Services that go to none and come back by what is asked of them, while leaders fall, hosts and replicas die."""

from actorgrid.chaos.faults.hosts import Crash, LeadersFall
from actorgrid.chaos.faults.membership import Transfer
from actorgrid.chaos.faults.network import Partition
from actorgrid.chaos.faults.replicas import ReplicaDies
from actorgrid.chaos.simulator.clock import MS
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.services import DemandServicesWorkload

SCENARIO = Scenario(
    says="Services are asked for in bursts and go to none again, while leaders fall, hosts and replicas die.",
    faults=(
        Transfer(150_000),
        LeadersFall(150_000, lasts_ms=(200, 1_500)),
        Crash(40_000, lasts_ms=(1_000, 20_000)),
        Partition(40_000, lasts_ms=(1_000, 10_000)),
        ReplicaDies(15_000),
    ),
    workloads=lambda: (DemandServicesWorkload(2),),
    seconds=400.0,
    timing=Timing(tick_us=200 * MS, election_ticks=8, heartbeat_ticks=2),
)
