"""Commands of the ledger about hosts: how they come up, are measured, drained and lost."""

from typing import Annotated

from ..command import Command, Proposer, verb, version_of
from ..field_checks import Absence, Date, Held, Id, Plain, Text, Truth, Whole, is_table
from ..record_checks import check_host, host_version
from ..record_types import HostFacts, MeasuredFigures


@verb("register_host", Proposer.ITSELF)
class RegisterHost(Command):
    """Register a host that came up, with its devices and memory. Refused for an incarnation below the known one."""

    host: Annotated[HostFacts, is_table]

    @property
    def format_version(self) -> int:
        """The lowest ledger version that knows this command with what it says of devices."""
        return max(version_of(RegisterHost), host_version(self.host))

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the host's record."""
        check_host(plain["host"], plain["v"])

    def about_host(self) -> object:
        """The id of the host that registers."""
        return self.host["host_id"]


@verb("confirm_host", Proposer.ITSELF)
class ConfirmHost(Command):
    """Confirm that a host is up and runs nothing unknown to the ledger; *lost_at*: the entry that lost it, if one did.

    Refused when the ledger has lost it, or found it, since.
    """

    host: Id
    incarnation: Whole
    lost_at: Whole | None


@verb("allow_absence", Proposer.ITSELF)
class AllowAbsence(Command):
    """Wait *absence_s* seconds for a host that is about to restart; 0 ends the wait that *began* at that entry."""

    host: Id
    incarnation: Whole
    absence_s: Absence
    began: Whole | None = None


@verb("lose_host", Proposer.LEADER)
class LoseHost(Command):
    """Declare a host lost, not heard of since *heard_at*: longer than the named work (allocation, token) may go on.

    Refused when the host has said since *seen_index* that it is there.
    """

    host: Id
    incarnation: Whole
    seen_index: Whole
    heard_at: Date
    allocations: Held
    term: Whole


@verb("measure_host", Proposer.ITSELF, new_work=True)
class MeasureHost(Command):
    """Record what a host measured of its disk and network: figures by name, with their units in the names."""

    host: Id
    incarnation: Whole
    measured: Annotated[MeasuredFigures, is_table]


@verb("drain_host", Proposer.DOOR)
class DrainHost(Command):
    """Grant a host nothing new, whatever its incarnation, until the drain is ended; its present work goes on."""

    host: Id
    draining: Truth
    by: Text = ""
