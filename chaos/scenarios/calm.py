"""Nothing goes wrong: what the others are compared with."""

from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.workloads.jobs import Jobs
from actorgrid.chaos.workloads.settings import Settings

SCENARIO = Scenario(
    says="Nothing goes wrong while clients read, write and submit jobs.",
    faults=(),
    workloads=lambda: (Settings(3), Jobs(1)),
    seconds=3.0,
)
