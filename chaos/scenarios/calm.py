"""Nothing goes wrong: what the others are compared with."""

from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.workloads.jobs import JobsWorkload
from actorgrid.chaos.workloads.locks import LocksWorkload
from actorgrid.chaos.workloads.settings import SettingsWorkload

SCENARIO = Scenario(
    says="Nothing goes wrong while clients read, write, lock and submit jobs.",
    faults=(),
    workloads=lambda: (SettingsWorkload(2), JobsWorkload(1), LocksWorkload(2)),
    seconds=3.0,
)
