"""More learners than are told at once: what is committed reaches them in turn, through bad weather and short reigns."""

from actorgrid.chaos.faults.hosts import Crash, LeadersFall, Pause
from actorgrid.chaos.faults.membership import MembershipChange, Transfer
from actorgrid.chaos.faults.network import BadWeather, Partition
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.jobs import JobsWorkload
from actorgrid.chaos.workloads.locks import LocksWorkload
from actorgrid.chaos.workloads.settings import SettingsWorkload

SCENARIO = Scenario(
    says="Six learners, one of them told a tick, run jobs while leaders fall and messages are lost.",
    faults=(
        BadWeather(),
        Partition(1_500),
        Crash(2_000),
        Pause(),
        LeadersFall(2_500),
        MembershipChange(1_500),
        Transfer(),
    ),
    workloads=lambda: (SettingsWorkload(2), JobsWorkload(2), LocksWorkload(1)),
    learners=6,
    swarm=True,
    timing=Timing(snapshot_every=40, log_kept=10, message_entries_max=4, learners_a_tick=1),
)
