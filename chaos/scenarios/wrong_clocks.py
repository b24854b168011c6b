"""Clocks that run wrong and hosts that stand still."""

from actorgrid.chaos.faults.hosts import ClockSkew, Pause
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.workloads.jobs import JobsWorkload
from actorgrid.chaos.workloads.locks import LocksWorkload
from actorgrid.chaos.workloads.settings import SettingsWorkload

SCENARIO = Scenario(
    says="Timers run fast and slow, wall clocks jump by a minute, hosts stand still and go on.",
    faults=(ClockSkew(600), Pause(800)),
    workloads=lambda: (SettingsWorkload(2), JobsWorkload(1), LocksWorkload(2)),
)
