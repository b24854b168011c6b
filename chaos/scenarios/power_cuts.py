"""Crashes, and disks that lose what was not synced."""

from actorgrid.chaos.faults.disks import FailedSync, FlippedBit, FullDisk, SlowDisk
from actorgrid.chaos.faults.hosts import Crash
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.simulator.world import Timing
from actorgrid.chaos.workloads.jobs import JobsWorkload
from actorgrid.chaos.workloads.locks import LocksWorkload
from actorgrid.chaos.workloads.settings import SettingsWorkload

SCENARIO = Scenario(
    says="Hosts lose power one by one and all at once, on disks that are slow, full, failing or damaged.",
    faults=(Crash(700, lasts_ms=(50, 1_500)), SlowDisk(1_500), FailedSync(1_500), FullDisk(3_000), FlippedBit(4_000)),
    workloads=lambda: (SettingsWorkload(2), JobsWorkload(1), LocksWorkload(2)),
    timing=Timing(snapshot_every=20, log_kept=5),
)
