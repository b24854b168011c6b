"""Gangs over hosts that crash and are cut off, granted by leaders that change."""

from actorgrid.chaos.faults.hosts import Crash, CutOffAtCommit
from actorgrid.chaos.faults.membership import Transfer
from actorgrid.chaos.faults.network import BadWeather
from actorgrid.chaos.simulator.clock import MS
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.gangs import GangsWorkload

SCENARIO = Scenario(
    says="Gangs are granted whole, run, fail and are tried again while leaders change and hosts crash.",
    faults=(
        Transfer(400),
        BadWeather(900, lasts_ms=(300, 1_500)),
        CutOffAtCommit(1_200, lasts_ms=(100, 600)),
        Crash(1_000, lasts_ms=(20, 300)),
    ),
    workloads=lambda: (GangsWorkload(4),),
    seconds=5.0,
    timing=Timing(tick_us=20 * MS, election_ticks=8, heartbeat_ticks=2),
)
