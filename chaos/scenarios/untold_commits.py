"""Commits that clients hear of and followers do not: the next leader must find out before it answers."""

from actorgrid.chaos.faults.disks import SlowDisk
from actorgrid.chaos.faults.hosts import CutOffAtCommit
from actorgrid.chaos.simulator.clock import MS
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.settings import SettingsWorkload

SCENARIO = Scenario(
    says="Leaders are cut off the moment they commit: clients are told, followers are not, and disks are slow.",
    faults=(CutOffAtCommit(300, lasts_ms=(100, 600)), SlowDisk(800)),
    workloads=lambda: (SettingsWorkload(6),),
    seconds=4.0,
    timing=Timing(tick_us=15 * MS, election_ticks=4, heartbeat_ticks=1),
)
