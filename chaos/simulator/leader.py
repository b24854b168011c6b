"""What a host does while it leads: grants by the real CoordinatorCore, ends of lock leases, and which hosts are lost.

Grants travel like any client's commands, again and again until they are answered: one that was decided under a
leadership may arrive under the next, as in a live cluster, and it is the ledger's guard that must refuse it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from actorgrid.actors.cluster.host_leases import HostLoss, LeaseView, lease_view, losses, next_at
from actorgrid.actors.consensus.last_contact import LastContact
from actorgrid.actors.consensus.lock_expiry import LockExpiry
from actorgrid.actors.gpu.core import CoordinatorCore
from actorgrid.actors.gpu.proposals import Grant
from actorgrid.actors.ledger.commands import ExpireLock
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.raft.messages import Dropped, ReadState
from actorgrid.actors.serving.messages import GatewayTold, ServiceWanted
from actorgrid.models import JobState

from .requests import ClientReply, Requester
from .service_duties import ServiceDuties

if TYPE_CHECKING:
    from .node import SimulatedHost

GRANTS_AT_ONCE = 8
EXPIRIES_AT_ONCE = 4
QUEUE_MAX = 1_000
POLICY = "best_fit"
LOOK_TICKS = 5
ABSENT_S = 2.0
ANSWER_S = 1.0


class LeaderDuties:
    """One leadership, from the first own entry applied: from there on the ledger knows the term.

    What is proposed and not yet answered stays reserved, at most 8 grants.
    """

    last_contact_class: ClassVar[type[LastContact]] = LastContact
    service_duties_class: ClassVar[type[ServiceDuties]] = ServiceDuties

    def __init__(self, node: SimulatedHost, term: int) -> None:
        self._node = node
        self.term = term
        ledger = node.ledger
        self._core = CoordinatorCore(node.host_id, node.boots, POLICY, QUEUE_MAX, lambda: 0)
        self._core.chains.allowed = True
        self._jobs = {id: job for id, job in ledger.jobs.items() if not JobState(job["state"]).final}
        self._allocations = dict(ledger.allocations)
        self._locks = LockExpiry()
        self._locks.lead(ledger.locks, node.monotonic)
        self._core.load(
            self._jobs,
            self._allocations,
            dict(ledger.hosts),
            node.now,
            dict(ledger.quotas.records),
            tenants=ledger.tenants,
            tenant_uses=ledger.quotas.tenants.uses,
        )
        self._asker = Requester(node.world, f"{node.name}/lead{node.boots}.{term}", node.hosts, node.rng)
        self._heard_of = self.last_contact_class()
        self._ticks = self._asked = 0
        self._asking: tuple[bytes, float, LeaseView] | None = None
        self._losing: set[str] = set()
        self._services: ServiceDuties | None = None
        self._heard()

    def tick(self) -> None:
        """Take one tick: end leases of locks, look who is away, schedule what has come due."""
        self._ticks += 1
        if self._ticks % LOOK_TICKS == 0:
            self._look_around()
        for name, owner, renewals in self._locks.due(self._node.monotonic)[:EXPIRIES_AT_ONCE]:
            command = ExpireLock(name, owner, renewals, self.term, at=self._node.now)
            self._asker.write(command, lambda told: None)
        wake = self._core.next_wakeup
        if wake is not None and wake <= self._node.now:
            self._schedule()

    def host_down(self) -> None:
        """Stop, as the host's power is off."""
        self._asker.stop()

    def outcome(self, outcome: Outcome) -> None:
        """Take the outcome of an entry applied on this host."""
        for kind, id, record in outcome.changes:
            if kind == "lock":
                self._locks.changed(id, record, self._node.monotonic)
            else:
                self._mirror(kind, id, record)
        self._core.changed(outcome.changes, self._node.now)

    def applied(self) -> None:
        """Decide, once all that was committed together is applied."""
        self._schedule()
        self._look_at_services()

    # -- services

    def told(self, message: GatewayTold) -> None:
        """Take what a model gateway tells."""
        if self._services is not None:
            self._services.told(message)

    def wanted(self, message: ServiceWanted) -> None:
        """Take that a request waits at a model gateway."""
        if self._services is not None:
            self._services.wanted(message)

    def _look_at_services(self) -> None:
        """A part that is there with the first service: runs without any do not pay for it."""
        if self._services is not None:
            self._services.look()
        elif self._node.ledger.services:
            self._services = self.service_duties_class(self._node, self._asker, self.term, self._leads)

    def _leads(self) -> bool:
        return self._node.up and self._node.leader_duties is self

    # -- hosts that are away

    def hears(self, kind: str, sender: int) -> None:
        """Note a message of another host, before anything is done about it."""
        self._heard_of.message(kind, sender, self._node.boottime)

    def _heard(self) -> dict[str, float]:
        config = self._node.core.status().config
        nodes = {*config.voters, *config.voters_outgoing, *config.learners, *config.learners_next}
        return self._heard_of.of({f"host{id}": id for id in sorted(nodes)}, self._node.id, self._node.boottime)

    def _look_around(self) -> None:
        """Grant nothing to those who are away; when the work of one of them is over, ask to be sure that we lead."""
        now, heard = self._node.boottime, self._heard()
        away = {host_id: at for host_id, at in heard.items() if now - at > ABSENT_S}
        self._core.mirror.set_absent(frozenset(away))
        if self._asking is not None and now < self._asking[1] + ANSWER_S:
            return
        ledger = self._node.ledger
        view = lease_view(ledger.hosts, ledger.allocations.values(), ledger.jobs, self.term, sorted(away))
        at = next_at(view, heard)
        if at is None or at > now:
            return
        self._asked += 1
        context = b"judge %d.%d.%d" % (self._node.id, self._node.boots, self._asked)
        self._asking = (context, now, view)
        if isinstance(self._node.core.read_index(context), Dropped):
            self._asking = None

    def read_ready(self, state: ReadState) -> None:
        """Take the word of a majority that this host led when it asked."""
        if self._asking is None or self._asking[0] != state.context:
            return
        (_, as_of, view), self._asking = self._asking, None
        for loss in losses(view, self._heard(), as_of):
            if loss.host not in self._losing:
                self._losing.add(loss.host)
                self._node.world.trace.add(self._node.name, f"loses {loss}")
                command = replace(loss.command(self._node.now - loss.quiet_s), at=self._node.now)
                self._asker.write(command, partial(self._lost, loss))
                self._node.world.on_loss(int(loss.host.removeprefix("host")))

    def _lost(self, loss: HostLoss, _told: ClientReply) -> None:
        self._losing.discard(loss.host)

    # -- grants

    def _mirror(self, kind: str, id: str, record: Any) -> None:
        if kind == "job":
            if record is None or JobState(record["state"]).final:
                self._jobs.pop(id, None)
            else:
                self._jobs[id] = record
        elif kind == "allocation":
            if record is None:
                self._allocations.pop(id, None)
            else:
                self._allocations[id] = record

    def _schedule(self) -> None:
        room = GRANTS_AT_ONCE - len(self._core.proposals.grants)
        if room <= 0:
            return
        node = self._node
        for grant in self._core.schedule(node.now, room):
            command = replace(grant.command(self.term), at=node.now)
            self._asker.write(command, partial(self._answered, grant))

    def _answered(self, grant: Grant, told: ClientReply) -> None:
        if told.error is not None:
            self._core.refused(grant, self._node.now)
        elif self._node.ledger.index >= told.index:
            self._core.committed(grant, self._node.now)
        # Else the change is still to come, and takes the grant out of flight.
