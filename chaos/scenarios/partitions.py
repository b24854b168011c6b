"""Partitions of every shape."""

from actorgrid.chaos.faults.network import BadWeather, Partition
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.jobs import JobsWorkload
from actorgrid.chaos.workloads.locks import LocksWorkload
from actorgrid.chaos.workloads.settings import SettingsWorkload

SCENARIO = Scenario(
    says="Partitions, also one-way, come and go on a network that loses, doubles and reorders the codec's bytes.",
    faults=(Partition(900), BadWeather(1_200)),
    workloads=lambda: (SettingsWorkload(2), JobsWorkload(1), LocksWorkload(2)),
    timing=Timing(in_bytes=True),
)
