"""HostSupervisor: keeps the servers of one host running, one for one, so that none of them takes another with it."""

from __future__ import annotations

from typing import Any, ClassVar

from actorgrid.errors import ActorGridError, NoSuchChild, WrongState
from actorgrid.supervisors.child import SupervisorFlags
from actorgrid.supervisors.envelope import GetStatus
from actorgrid.supervisors.server import handles
from actorgrid.supervisors.supervisor import Supervisor

from ..cluster.messages import AnnounceRestart
from ..ledger.messages import HandOver
from .messages import HostAddress, HostRestarts, HostStopped, RestartHost, RestartServer, StopHost

HAND_OVER_S = 3.0
ALLOW_S = 5.0


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
        """Tell ``main`` the address again: a gateway on a free port may have another one now."""
        if child_id == "gateway":
            self.spawn(self._tell_address())

    async def _tell_address(self) -> None:
        url = ""
        if any(child["name"] == "gateway" for child in self.children_now()):
            status: dict[str, Any] = await self.call("gateway", GetStatus(), 10.0)
            url = str(status.get("url", ""))
        self.cast("main", HostAddress(url))

    async def stop_children(self, reason: str) -> None:
        """Hand the ledger's leadership over first, so that nobody waits for an election."""
        if not self.stopping:
            try:
                await self.call("consensus", HandOver(), HAND_OVER_S)
            except ActorGridError as error:
                self.log.info("the leadership is not handed over: %s", error)
        await super().stop_children(reason)

    @handles(RestartHost)
    async def _restart_host(self, request: RestartHost) -> dict[str, Any]:
        if self.stopping:
            raise WrongState("this host is stopping", asked="to restart it", hint="start it again with actorgrid up")
        absence_index = 0
        # First: the ledger has to allow the longer absence before this host is away.
        try:
            absence_index = await self.call("cluster_manager", AnnounceRestart(), ALLOW_S)
        except ActorGridError as error:
            self.log.warning("the restart has to be as short as any other absence: %s", error)
        self.cast("main", HostRestarts(request.by, absence_index))
        return {"host_id": self.host.host_id, "incarnation": self.host.incarnation}

    @handles(RestartServer)
    def _restart_server(self, request: RestartServer) -> int:
        if self.stopping:
            raise WrongState("this host is stopping", asked=f"to restart {request.server}")
        child = next((each for each in self.children_now() if each["name"] == request.server and each["pid"]), None)
        if child is None:
            raise NoSuchChild(
                f"no server {request.server[:80]!r} runs here",
                asked=request.server[:80],
                found=", ".join(str(each["name"]) for each in self.children_now()),
            )
        self.log.warning("%s is restarted, by %s", request.server, request.by)
        # Killed and not stopped: it is silent, and whoever is stopped by SIGSTOP does not hear of anything else. What
        # it does not survive is what a crash would not, and its restart is the supervisor's own.
        self.processes.kill_child(request.server)
        return int(child["pid"])

    @handles(StopHost)
    async def _stop_host(self, request: StopHost) -> None:
        await self.stop_children(request.reason)
        self.cast("main", HostStopped(request.reason))
        self.runtime.after(0.0, self.processes.exit)  # after the answer went out
