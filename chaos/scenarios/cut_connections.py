"""Connections of those who ask for locks break, now and then leaders fall and clients' messages are lost."""

from actorgrid.chaos.faults.hosts import Crash, LeadersFall, Pause
from actorgrid.chaos.faults.membership import Transfer
from actorgrid.chaos.faults.network import BadWeather, Partition
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.workloads.lock_holders import LockHoldersWorkload

# No wrong clocks: leases hold as long as no clock runs a tenth faster than another.
SCENARIO = Scenario(
    says="Clients' connections break while they ask for locks, wait and renew, and they ask again.",
    faults=(BadWeather(), Partition(), Crash(), Pause(), LeadersFall(), Transfer()),
    workloads=lambda: (LockHoldersWorkload(6),),
    swarm=True,
)
