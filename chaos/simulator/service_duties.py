"""Services on the host that leads: the real ``ServiceLeader``, on virtual time.

Whom it calls is played here: timers, the ledger's client, and who says why a replica waits. Its commands travel like
any client's, and what it awaits it is given when the answer comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.record_types import HostRecord, JobRecord
from actorgrid.actors.ledger.service_records import ServiceRecord
from actorgrid.actors.serving.messages import GatewayTold, ServiceWanted
from actorgrid.actors.serving.service_leader import ServiceLeader
from actorgrid.actors.serving.table import decode_report
from actorgrid.supervisors.server import Server

from .clock import SECOND, SimulatedTimer
from .requests import ClientReply, Requester

if TYPE_CHECKING:
    from .node import SimulatedHost

_SILENT = logging.Logger("actorgrid.chaos.services", logging.CRITICAL)


class ServiceDuties:
    """The services of a cluster, for as long as *leads* says that this host leads it, in *term*."""

    leader_class: ClassVar[type[ServiceLeader]] = ServiceLeader

    def __init__(self, node: SimulatedHost, asker: Requester, term: int, leads: Callable[[], bool]) -> None:
        self._leads = leads
        self._node = node
        server = cast("Server", _PlayedServer(node))
        ledger = cast("LedgerClient", _PlayedLedger(node, asker, term, leads))
        self._leader = self.leader_class(server, ledger, ledger_explains(node), lambda: node.now)
        self._leader.begin()

    def look(self) -> None:
        """Decide what is to be done now."""
        if self._leads():
            self._leader.look()

    def told(self, message: GatewayTold) -> None:
        """Take what the gateway of a host tells."""
        if not self._leads():
            return
        demands = decode_report(message.report).demands
        for each in demands:
            self._heard(each.service, self._node.now if each.in_flight or each.held else each.last_request_at)
        self._leader.took(message.host_id, demands)

    def wanted(self, message: ServiceWanted) -> None:
        """Take that a request waits at a gateway."""
        if self._leads():
            self._heard(message.service, self._node.now)
            self._leader.woke(message.service, message.host_id)

    def _heard(self, service: str, asked_at: float) -> None:
        heard_at = self._node.now
        self._node.world.tell(lambda checker: checker.demand_told(service, heard_at, asked_at))


def unsettled(services: Mapping[str, ServiceRecord]) -> str:
    """What is still to be done about services, in words; empty: nothing."""
    for name, record in services.items():
        if "removed_by" in record:
            return f"service {name} is being removed"
        if record["rollout"] is not None:
            return f"service {name} goes over to {record['rollout']['to']}"
        states = [each["state"] for each in record["replicas"]]
        if states != ["ready"] * record["target"]:
            return f"service {name} has {states}, and is to have {record['target']}: {record['problem']}"
        if any(each["revision"] != record["revision"] for each in record["replicas"]):
            return f"service {name} has replicas of another revision"
    return ""


def ledger_explains(node: SimulatedHost) -> Callable[[str], Coroutine[Any, Any, dict[str, Any]]]:
    """Say why a replica waits: what has waited for seconds has no room."""

    async def explain(job_id: str) -> dict[str, Any]:
        job = node.ledger.jobs.get(job_id)
        state = "gone" if job is None else job["state"]
        return {"state": state, "headline": "no host has room", "explain": {"fits": False}}

    return explain


class _PlayedServer:
    """Of a ``Server``, what is asked of it."""

    log = _SILENT

    def __init__(self, node: SimulatedHost) -> None:
        self._node = node
        self._life = node.boots
        self.runtime = self

    def monotonic(self) -> float:
        return self._node.monotonic

    def after(self, delay_s: float, action: Callable[[], None]) -> SimulatedTimer:
        return self._node.world.clock.after(int(delay_s * SECOND), partial(self._due, action))

    def _due(self, action: Callable[[], None]) -> None:
        if self._node.up and self._node.boots == self._life:
            self._node.later(0, action)

    def spawn(self, coroutine: Coroutine[_Proposal, ClientReply | None, None]) -> None:
        _go_on(coroutine, None)


class _PlayedLedger:
    """Of a ``LedgerClient``, what is asked of it."""

    def __init__(self, node: SimulatedHost, asker: Requester, term: int, leads: Callable[[], bool]) -> None:
        self._node = node
        self._asker = asker
        self._leads = leads
        self.term = term

    @property
    def leads(self) -> bool:
        return self._leads()

    @property
    def services(self) -> Mapping[str, ServiceRecord]:
        return self._node.ledger.services

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        return self._node.ledger.jobs

    @property
    def hosts(self) -> Mapping[str, HostRecord]:
        return self._node.ledger.hosts

    async def propose(self, command: Command) -> Any:
        proposal = _Proposal()
        self._asker.write(replace(command, at=self._node.now), proposal.told)
        return await proposal


class _Proposal:
    """A command whose answer a coroutine waits for."""

    def __init__(self) -> None:
        self.then: Callable[[ClientReply], None] | None = None

    def told(self, reply: ClientReply) -> None:
        if self.then is not None:
            self.then(reply)

    def __await__(self) -> Generator[_Proposal, ClientReply, Any]:
        reply = yield self
        if reply.error is not None:
            raise reply.error
        return reply.result


def _go_on(coroutine: Coroutine[_Proposal, ClientReply | None, None], reply: ClientReply | None) -> None:
    try:
        waits_for = coroutine.send(reply)
    except StopIteration:
        return
    waits_for.then = partial(_go_on, coroutine)
