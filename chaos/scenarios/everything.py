"""A random half of all faults, another half each seed, under all workloads."""

from actorgrid.chaos.faults.disks import FailedSync, FlippedBit, FullDisk, SlowDisk
from actorgrid.chaos.faults.hosts import ClockSkew, Crash, LeadersFall, Pause
from actorgrid.chaos.faults.membership import HastyOperator, MembershipChange, Transfer
from actorgrid.chaos.faults.network import BadWeather, Partition
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.workloads.jobs import JobsWorkload
from actorgrid.chaos.workloads.locks import LocksWorkload
from actorgrid.chaos.workloads.settings import SettingsWorkload

SCENARIO = Scenario(
    says="A random half of all faults strikes while clients read, write, lock and submit jobs.",
    faults=(
        BadWeather(),
        Partition(),
        Crash(),
        Pause(),
        ClockSkew(),
        LeadersFall(),
        SlowDisk(),
        FullDisk(4_000),
        FailedSync(3_000),
        FlippedBit(5_000),
        MembershipChange(1_500),
        HastyOperator(3_000),
        Transfer(),
    ),
    workloads=lambda: (SettingsWorkload(2), JobsWorkload(1), LocksWorkload(2)),
    swarm=True,
)
