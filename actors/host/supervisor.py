"""HostSupervisor: keeps the servers of one host running, one for one, so that none of them takes another with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.child import SupervisorFlags
from actorgrid.supervisors.envelope import GetStatus
from actorgrid.supervisors.server import handles
from actorgrid.supervisors.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class StopHost:
    """Stop all servers in reverse order, then the host's actor system. Answered when all servers have stopped."""

    reason: str


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Cast to ``main`` at the start and when the gateway came back: where HTTP is served now."""

    url: str


@dataclass(frozen=True, slots=True)
class HostStopped:
    """Cast to ``main`` before the host's actor system leaves because StopHost asked for it."""

    reason: str


class HostSupervisor(Supervisor):
    """Supervises the host's servers. When one ends more than 10 times in 30 s, the whole host stops and says so."""

    name: ClassVar[str] = "host"
    flags: ClassVar[SupervisorFlags] = SupervisorFlags("one_for_one", intensity=10, period_s=30.0)

    async def start(self) -> None:
        """Start the children, then tell ``main`` where the host is reached."""
        await super().start()
        try:
            await self._tell_address()
        except ActorGridError:
            await self.stop_children("the gateway does not answer")
            raise

    def child_came_back(self, child_id: str) -> None:
        """A gateway on a free port may have another one now."""
        if child_id == "gateway":
            self.spawn(self._tell_address())

    async def _tell_address(self) -> None:
        url = ""
        if any(child["name"] == "gateway" for child in self.children_now()):
            status: dict[str, Any] = await self.call("gateway", GetStatus(), 10.0)
            url = str(status.get("url", ""))
        self.cast("main", HostAddress(url))

    @handles(StopHost)
    async def _stop_host(self, request: StopHost) -> None:
        await self.stop_children(request.reason)
        self.cast("main", HostStopped(request.reason))
        self.runtime.after(0.0, self.processes.exit)  # after the answer went out
