"""Leaders that do not know yet that they lead no more, and clients that still ask them."""

from actorgrid.chaos.faults.hosts import OldLeader, Pause
from actorgrid.chaos.faults.membership import Transfer
from actorgrid.chaos.faults.network import Partition
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.workloads.jobs import JobsWorkload
from actorgrid.chaos.workloads.locks import LocksWorkload
from actorgrid.chaos.workloads.settings import SettingsWorkload

SCENARIO = Scenario(
    says="Leaders are cut off, paused and replaced without knowing it, while clients still ask them.",
    faults=(
        OldLeader(1_500, lasts_ms=(500, 3_000)),
        Pause(1_500),
        Partition(2_000),
        Transfer(2_000),
    ),
    workloads=lambda: (SettingsWorkload(2), JobsWorkload(1), LocksWorkload(2)),
)
