"""Grants on their way from one leadership into the next, and to hosts that have started again since."""

from actorgrid.chaos.faults.hosts import Crash, CutOffAtCommit
from actorgrid.chaos.faults.membership import Transfer
from actorgrid.chaos.faults.network import BadWeather
from actorgrid.chaos.simulator.clock import MS
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.jobs import JobsWorkload

SCENARIO = Scenario(
    says="Leaders hand over all the time on a slow network while many jobs are granted and hosts restart.",
    faults=(
        Transfer(250),
        BadWeather(700, lasts_ms=(300, 1_500)),
        CutOffAtCommit(900, lasts_ms=(100, 600)),
        Crash(1_200, lasts_ms=(20, 200)),
    ),
    workloads=lambda: (JobsWorkload(5),),
    seconds=5.0,
    timing=Timing(tick_us=20 * MS, election_ticks=8, heartbeat_ticks=2),
)
