"""Commands of the ledger about schedules: written, taken away, paused, and carried out when they are due."""

from ..command import Command, Proposer, verb, version_of
from ..field_checks import Plain, Text, Truth, Whole
from ..schedule_checks import Due, MissedCount, Schedule, ScheduleName, Second, check_schedule, schedule_version

SCHEDULES_SINCE = 9
"""The version from which there are schedules."""


@verb("put_schedule", Proposer.DOOR, since=SCHEDULES_SINCE, new_work=True)
class PutSchedule(Command):
    """Write a schedule. One that is there already is only written over with *replace*, or when nothing would change."""

    schedule: Schedule
    replace: Truth = False

    @property
    def format_version(self) -> int:
        """The lowest ledger version that knows this command with these fields, those of its job included."""
        return max(version_of(PutSchedule), schedule_version(self.schedule))

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the schedule."""
        check_schedule(plain["schedule"])


@verb("remove_schedule", Proposer.DOOR, since=SCHEDULES_SINCE)
class RemoveSchedule(Command):
    """Take a schedule away. What runs of it goes on; what stands in line does not begin."""

    name: ScheduleName
    by: Text = ""


@verb("pause_schedule", Proposer.DOOR, since=SCHEDULES_SINCE)
class PauseSchedule(Command):
    """Let nothing more of a schedule begin, or let it again, from now on: what was due meanwhile is passed over."""

    name: ScheduleName
    paused: Truth
    by: Text = ""


@verb("run_schedule", Proposer.DOOR, since=SCHEDULES_SINCE, new_work=True)
class RunSchedule(Command):
    """Run what a schedule runs now, as if it were due: its overlap policy holds."""

    name: ScheduleName
    by: Text = ""


@verb("fire_schedule", Proposer.LEADER, since=SCHEDULES_SINCE)
class FireSchedule(Command):
    """Decide the due times of a schedule after *after* up to *until*.

    *due* are those that run, oldest first; *missed* others do not, as nobody was there in time. *in_line*: they stand
    in line one after the other, whatever the overlap policy is. What another has decided before is refused: *revision*
    and *after* have to be those of the record.
    """

    name: ScheduleName
    term: Whole
    revision: Whole
    after: Second
    until: Second
    due: Due
    missed: MissedCount = 0
    in_line: Truth = False
