"""How a host leaves the cluster: nothing new, then no work, then no vote, then no member.

Whoever is asked has the leader take the next step, again and again, until the host is gone or the asker's patience is
over; what is done stays done, so that asking again goes on from there. The leader decides because it knows whom it
hears of. A host that learns that it has left remembers that on its disk, and stops.
"""

from __future__ import annotations

from time import time
from typing import Any

from actorgrid.actors.ledger.answers import MemberAnswer
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.query_answers import LedgerStatus
from actorgrid.actors.ledger.record_types import NO_HOST, HostRecord
from actorgrid.errors import ActorGridError, NotFound, WrongState
from actorgrid.supervisors.server import Server

from ..files.departure import mark_departed
from ..host.messages import StopHost
from ..ledger import commands
from ..ledger.client import LEADERLESS_S, LedgerClient
from ..ledger.messages import Query
from ..links.messages import AskHost, AskLeader
from .messages import LeaveHost, LeaveStep

STEP_S = 30.0
PAUSE_S = 0.3
HEAR_S = 3.0
GOODBYE_S = 1.0
"""Before a host that has left stops: its last answers go out."""
NAMED_MAX = 100

DRAINING, HANDING_OVER, LEFT, STAYS = "draining", "handing_over", "left", "stays"


class Leaving:
    """Takes hosts out of the cluster, for ClusterManager."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server, self._ledger = server, ledger
        self._node: int | None = None
        self._twin = False

    # -- this host

    def look(self) -> None:
        """Stop this host when it is no member any more; called when the members may have changed."""
        host = self._server.host
        record = self._ledger.members.get(host.host_id)
        if record is not None:
            self._node = record["node"]
        elif self._node is not None and host.enrolment is not None and self._node == host.enrolment.node:
            self._node = None
            self._server.log.warning("this host has left the cluster; it stops")
            mark_departed(
                host.paths, f"it left cluster {host.enrolment.cluster_id} as node {host.enrolment.node}", time()
            )
            self._server.cast_after(GOODBYE_S, "host", StopHost("it has left the cluster"))

    def refuse_twin(self, host: HostRecord | None) -> None:
        """Stop this agent when a host's new record shows that another has started in its place."""
        own = self._server.host
        if host is None or host["host_id"] != own.host_id or host["incarnation"] <= own.incarnation or self._twin:
            return
        self._twin = True
        self._server.log.critical(
            "another agent has started as this host (incarnation %d, at %s; this is %d), from a copy of the data"
            " directory it seems: this one stops",
            host["incarnation"],
            host.get("address") or host["hostname"],
            own.incarnation,
        )
        self._server.cast("host", StopHost("another agent has started as this host"))

    # -- whoever is asked

    async def ask(self, request: LeaveHost) -> dict[str, Any]:
        """Carry out LeaveHost."""
        host_id = self.find(request.host)
        flags = {"now": request.now, "force": request.force, "cancel": request.cancel}
        fields: dict[str, Any] = {"host_id": host_id, "by": request.by, **flags}
        deadline = self._server.runtime.monotonic() + request.wait_s
        while True:
            answer = await self._step(host_id, fields)
            if answer["state"] in (LEFT, STAYS) or self._server.runtime.monotonic() >= deadline:
                return answer
            await self._server.sleep(PAUSE_S)

    async def _step(self, host_id: str, fields: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await self._server.call(
                "links", AskLeader("leave_step", fields, STEP_S), STEP_S + 1
            )
        except ActorGridError:
            if host_id == self._server.host.host_id and await self._is_gone(host_id):
                return _state(host_id, LEFT)  # the link to the leader went with its answer
            raise
        return answer

    async def _is_gone(self, host_id: str) -> bool:
        """Whether the host is no member any more; waits a little for the news."""
        deadline = self._server.runtime.monotonic() + HEAR_S
        while host_id in self._ledger.members and self._server.runtime.monotonic() < deadline:
            await self._server.sleep(PAUSE_S)
        return host_id not in self._ledger.members

    def find(self, text: str) -> str:
        """The member with this id, number or name. Raises NotFound, or WrongState for a name that several have."""
        ledger = self._ledger
        if not ledger.members:
            raise WrongState(
                "this host is alone", asked="to leave", found="no cluster", hint="stop the agent, and delete its data"
            )
        if text == "this":
            return str(self._server.host.host_id)
        named = [
            id
            for id, member in ledger.members.items()
            if text in (id, str(member["node"]), ledger.hosts.get(id, NO_HOST).get("hostname"))
        ]
        if len(named) > 1:
            raise WrongState(
                f"several hosts are called {text}", asked=text, found=", ".join(named), hint="name it by its number"
            )
        if not named:
            raise NotFound(
                f"{text} is no member of the cluster", asked=text, hint="actorgrid hosts lists names and numbers"
            )
        return named[0]

    # -- the leader

    async def step(self, request: LeaveStep) -> dict[str, Any]:
        """Carry out LeaveStep."""
        host_id, by, ledger = request.host_id, request.by, self._ledger
        member = ledger.members.get(host_id)
        if member is None:
            return _state(host_id, LEFT)
        if request.cancel:
            return await self._stay(host_id, by)
        if not any(other["votes"] for id, other in ledger.members.items() if id != host_id):
            raise WrongState(
                f"host {host_id} is the last that may vote",
                asked="to leave",
                hint="stop the agent instead, and delete its data when the cluster is not wanted any more",
            )
        host = ledger.hosts.get(host_id)
        if host is not None and not host.get("draining"):
            await self._commit(commands.DrainHost(host_id, True, by, at=time()))
        held = sorted(id for id, record in ledger.allocations.items() if record["host"] == host_id)
        gone = host_id in ledger.absent or (host or NO_HOST).get("state") == "lost"
        if held:
            wait = await self._let_work_end(host_id, held, gone, request)
            if wait:
                return _state(host_id, DRAINING, held)
        if member["votes"]:
            await self._commit(commands.ChangeMember(host_id, at=time(), votes=False))
        status: LedgerStatus = await self._server.call("consensus", Query("status"))
        if member["node"] in status["voters"]:
            return _state(host_id, HANDING_OVER)
        done: MemberAnswer = await self._commit(
            commands.RemoveMember(host_id, by, at=time(), force=request.force and gone)
        )
        return {**_state(host_id, LEFT), "lost": done["lost"]}

    async def _let_work_end(self, host_id: str, held: list[str], gone: bool, request: LeaveStep) -> bool:
        """Whether there is something to wait for. Raises WrongState."""
        if request.force and gone:
            return False
        if request.force:
            raise WrongState(
                f"host {host_id} is there, and its work runs",
                asked="to remove it with its work (--force)",
                found=f"{len(held)} allocations",
                hint="without --force it leaves when its work has ended; --now ends that first",
            )
        if gone:
            raise WrongState(
                f"host {host_id} does not answer, so nobody can know whether its work still runs",
                asked="to remove it",
                found=f"{len(held)} allocations there: {', '.join(held[:5])}",
                hint="wait for it; or, when its machine is off for good: actorgrid leave --host HOST --force",
            )
        if request.now:
            await self._server.call("links", AskHost(host_id, "end_all_work", {}, STEP_S), STEP_S + 1)
        return True

    async def _commit(self, command: Command) -> Any:
        return await self._ledger.propose(command, leaderless_s=LEADERLESS_S)

    async def _stay(self, host_id: str, by: str) -> dict[str, Any]:
        await self._commit(commands.ChangeMember(host_id, at=time(), votes=True))
        if host_id in self._ledger.hosts:
            await self._commit(commands.DrainHost(host_id, False, by, at=time()))
        return _state(host_id, STAYS)


def _state(host_id: str, state: str, waits_for: list[str] | None = None) -> dict[str, Any]:
    return {"host_id": host_id, "state": state, "waits_for": (waits_for or [])[:NAMED_MAX], "lost": []}
