"""GPUs are cut into MIG instances and put together under work that is granted and runs."""

from actorgrid.chaos.faults.hosts import Crash
from actorgrid.chaos.faults.membership import Transfer
from actorgrid.chaos.faults.network import BadWeather
from actorgrid.chaos.simulator.clock import MS
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.instances import InstancesWorkload

SCENARIO = Scenario(
    says="GPUs are cut into instances and put together under work while leaders change and hosts crash.",
    faults=(
        Transfer(500),
        BadWeather(900, lasts_ms=(300, 1_500)),
        Crash(1_000, lasts_ms=(20, 300)),
    ),
    workloads=lambda: (InstancesWorkload(4),),
    seconds=5.0,
    timing=Timing(tick_us=20 * MS, election_ticks=8, heartbeat_ticks=2, cut_us=150 * MS),
)
