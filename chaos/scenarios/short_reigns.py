"""Leaders that fall as soon as they lead: figure 8 of the Raft paper, and reads that come too early."""

from actorgrid.chaos.faults.disks import SlowDisk
from actorgrid.chaos.faults.hosts import CutOffAtCommit, LeadersFall
from actorgrid.chaos.faults.network import BadWeather
from actorgrid.chaos.simulator.clock import MS
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.settings import SettingsWorkload

SCENARIO = Scenario(
    says="Every leader falls within milliseconds, while entries travel one by one and some disks are slow.",
    faults=(
        LeadersFall(800, lasts_ms=(1_000, 3_000), within_ms=40, down_ms=(20, 400)),
        CutOffAtCommit(500, lasts_ms=(100, 600)),
        SlowDisk(1_000),
        BadWeather(3_000),
    ),
    workloads=lambda: (SettingsWorkload(5),),
    voters=(3, 5),
    seconds=4.0,
    timing=Timing(
        tick_us=15 * MS,
        election_ticks=4,
        heartbeat_ticks=1,
        message_entries_max=1,
        inflight_messages_max=1,
    ),
)
