"""Changes of the members, one by one and through joint configurations, while leaders change."""

from actorgrid.chaos.faults.hosts import Crash, LeadersFall
from actorgrid.chaos.faults.membership import HastyOperator, MembershipChange, Transfer
from actorgrid.chaos.faults.network import Partition
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.jobs import JobsWorkload
from actorgrid.chaos.workloads.locks import LocksWorkload
from actorgrid.chaos.workloads.settings import SettingsWorkload

SCENARIO = Scenario(
    says="Voters and learners come, go and change places while leaders fall, hand over and are cut off.",
    faults=(
        MembershipChange(500),
        HastyOperator(1_500),
        Transfer(1_500),
        LeadersFall(2_500),
        Partition(1_500),
        Crash(3_000),
    ),
    workloads=lambda: (SettingsWorkload(2), JobsWorkload(1), LocksWorkload(2)),
    voters=(3, 4, 5),
    timing=Timing(snapshot_every=25, log_kept=8, message_entries_max=4),
)
