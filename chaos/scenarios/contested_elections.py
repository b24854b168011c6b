"""Elections in which several stand, and voters that lose power between two of them."""

from actorgrid.chaos.faults.hosts import Crash, LeadersFall, VotersBlink
from actorgrid.chaos.faults.network import BadWeather
from actorgrid.chaos.simulator.clock import MS
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.settings import SettingsWorkload

SCENARIO = Scenario(
    says="Candidates stand against each other on a slow network, and voters lose power between two votes.",
    faults=(
        VotersBlink(500, lasts_ms=(1_000, 3_000)),
        LeadersFall(1_000, lasts_ms=(1_000, 3_000), within_ms=100, down_ms=(50, 600)),
        BadWeather(600),
        Crash(2_000, lasts_ms=(20, 300)),
    ),
    workloads=lambda: (SettingsWorkload(2),),
    voters=(3, 4, 5),
    seconds=4.0,
    timing=Timing(tick_us=15 * MS, election_ticks=3, heartbeat_ticks=1),
)
