"""Hosts that are cut off, stand still or lose power for longer than their work may go on alone."""

from actorgrid.chaos.faults.away import HostAway
from actorgrid.chaos.faults.disks import SlowDisk
from actorgrid.chaos.faults.hosts import OldLeader
from actorgrid.chaos.faults.network import BadWeather
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.jobs import LongJobsWorkload

SCENARIO = Scenario(
    says="Hosts are away for seconds and come back, clocks 2 % fast or slow, with jobs of much or little patience.",
    faults=(
        HostAway(1_200, (3_200, 7_000)),
        HostAway(1_200, (3_200, 7_000)),
        BadWeather(5_000),
        SlowDisk(3_000),
        OldLeader(6_000, (4_000, 6_000)),
    ),
    workloads=lambda: (LongJobsWorkload(3),),
    voters=(3,),
    learners=4,
    seconds=9.0,
    swarm=True,
    timing=Timing(drift=0.02),
)
