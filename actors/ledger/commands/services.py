"""Commands of the ledger about services: written, scaled, taken back, removed, and led on."""

from ..command import Command, Proposer, verb, version_of
from ..field_checks import Plain, Text, Token, Truth, Whole, refused
from ..service_checks import (
    Percent,
    Port,
    ReplicaIds,
    Replicas,
    ReplicaState,
    Revisions,
    RolloutOutcome,
    ServedModel,
    Service,
    ServiceName,
    ServiceReason,
    ServiceSeconds,
    check_service,
    service_version,
)

SERVICES_SINCE = 10
"""The version from which there are services."""


@verb("put_service", Proposer.DOOR, since=SERVICES_SINCE, new_work=True)
class PutService(Command):
    """Write a service. What its replicas run is another *revision* where it differs from what they do: then they are
    exchanged, unless it is refused for lack of *replace*. *canary*: that percentage of requests goes to the new ones
    first, for *canary_s*.
    """

    service: Service
    replace: Truth = False
    canary: Percent = 0
    canary_s: ServiceSeconds = 300.0

    @property
    def format_version(self) -> int:
        """The lowest ledger version that knows this command with these fields, those of its job included."""
        return max(version_of(PutService), service_version(self.service))

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the service."""
        check_service(plain["service"])


@verb("scale_service", Proposer.DOOR, since=SERVICES_SINCE)
class ScaleService(Command):
    """Say how many replicas there are to be."""

    name: ServiceName
    least: Replicas
    most: Replicas
    by: Text = ""

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check that there are no more at least than at most."""
        if not max(1, plain["least"]) <= plain["most"]:
            raise refused(
                "a service has no more replicas at least than at most, and one at most or more",
                found=f"{plain['least']}:{plain['most']}",
            )


@verb("roll_back_service", Proposer.DOOR, since=SERVICES_SINCE, new_work=True)
class RollBackService(Command):
    """Give up the exchange of a service's replicas that goes on, or else go back to what served before."""

    name: ServiceName
    by: Text = ""


@verb("remove_service", Proposer.DOOR, since=SERVICES_SINCE)
class RemoveService(Command):
    """Take a service away, and end its replicas: those that answer finish what they have, for as long as they may take
    to leave; *at_once*, or where it is being taken away already: now."""

    name: ServiceName
    by: Text = ""
    at_once: Truth = False


@verb("advance_service", Proposer.LEADER, since=SERVICES_SINCE)
class AdvanceService(Command):
    """Lead a service on: what was decided about the record of the entry *seen*, and of no later one.

    *start*: the revision of each replica to make; *drain*: those that get no more requests; *end*: those that are to
    end now. *outcome*: what becomes of the exchange that goes on, for that *reason*; *widened*: its first part is over.
    *problem*: why there are fewer replicas than there are to be.
    """

    name: ServiceName
    term: Whole
    seen: Whole
    target: Replicas
    start: Revisions
    drain: ReplicaIds
    end: ReplicaIds
    outcome: RolloutOutcome = ""
    reason: ServiceReason = ""
    widened: Truth = False
    problem: ServiceReason = ""


@verb("report_replica", Proposer.ITS_WORK, since=SERVICES_SINCE)
class ReportReplica(Command):
    """Tell the state of a replica that runs here: the attempt (of a gang: its first member) that answers at *port*."""

    attempt_id: Text
    token: Token
    state: ReplicaState
    port: Port
    model: ServedModel = ""
    reason: ServiceReason = ""
