"""Nothing goes wrong: what the others are compared with."""

from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.workloads.jobs import Jobs
from actorgrid.chaos.workloads.locks import Locks
from actorgrid.chaos.workloads.settings import Settings

SCENARIO = Scenario(
    says="Nothing goes wrong while clients read, write, lock and submit jobs.",
    faults=(),
    workloads=lambda: (Settings(2), Jobs(1), Locks(2)),
    seconds=3.0,
)
