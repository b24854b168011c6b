"""Calls that stand behind others on one place, while leaders change and hosts stop, restart and are cut off."""

from actorgrid.chaos.faults.away import HostAway
from actorgrid.chaos.faults.hosts import Crash, CutOffAtCommit
from actorgrid.chaos.faults.membership import Transfer
from actorgrid.chaos.faults.network import BadWeather
from actorgrid.chaos.simulator.scenario import Scenario
from actorgrid.chaos.workloads.jobs import CallsWorkload

SCENARIO = Scenario(
    says="Many short calls have their places before those are free, while leaders hand over and hosts come and go.",
    faults=(
        Transfer(900),
        BadWeather(1_500, lasts_ms=(300, 1_500)),
        CutOffAtCommit(1_500, lasts_ms=(100, 600)),
        Crash(1_500, lasts_ms=(20, 200)),
        HostAway(3_000, (3_200, 5_000)),
    ),
    workloads=lambda: (CallsWorkload(2),),
    voters=(3,),
    learners=1,
    seconds=4.0,
    swarm=True,
)
