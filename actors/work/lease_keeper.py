"""Keeps this host's lease: asks the leader to confirm it, and says in the ledger that the host is there.

One read at a time. Every second, or more often while something runs here that may not be alone for long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from actorgrid.actors.consensus.messages import Query
from actorgrid.actors.consensus.mirror import LedgerMirror
from actorgrid.errors import ActorGridError, HostIsolated
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from .host_lease import HostLease

RENEW_S = 1.0
READS_IN_PATIENCE = 4
"""So many renewals are tried before the least patient work here has to go."""
TRY_MIN_S = 0.5
AGAIN_S = 0.25
CONFIRM_S = 5.0


class LeaseKeeper:
    """*on_turn* is called after each try to renew, *on_open* when something may be started again.

    *patience* gives the least ``max_isolation_s`` of what runs here; *strays*, what lives here and is not in the
    ledger: as long as there is something, a host that was lost does not come back.
    """

    def __init__(
        self,
        server: Server,
        mirror: LedgerMirror,
        on_turn: Callable[[], None],
        on_open: Callable[[], None],
        patience: Callable[[], float],
        strays: Callable[[], list[str]],
    ) -> None:
        self.lease = HostLease(server.host.settings.work.lease_s)
        self._server = server
        self._mirror = mirror
        self._on_turn = on_turn
        self._on_open = on_open
        self._patience = patience
        self._strays = strays
        self._waiting: list[Waiter] = []
        self._pause = Waiter()
        self._was_open = False
        self._confirming = False

    async def run(self) -> None:
        """Ask, again and again."""
        runtime = self._server.runtime
        while True:
            asked_at, renewed = runtime.boottime(), True
            try:
                query = Query("index", linearizable=True)
                index: int = await self._mirror.ask(query, timeout_s=max(TRY_MIN_S, 2 * self._every_s()))
                self.lease.renewed(asked_at, index, runtime.boottime())
            except ActorGridError as error:
                self._server.log.debug("the lease is not renewed: %s", error)
                asked_at, renewed = runtime.boottime(), False
            self._on_turn()
            self.look()
            while (left_s := asked_at + (self._every_s() if renewed else AGAIN_S) - runtime.boottime()) > 0:
                self._pause = Waiter()
                timer = runtime.after(left_s, lambda pause=self._pause: pause.set(None))  # type: ignore[misc]
                await self._pause
                timer.cancel()

    def _every_s(self) -> float:
        return min(RENEW_S, self._patience() / READS_IN_PATIENCE)

    def hurry(self) -> None:
        """Something of another patience is to be started: renew when that wants it."""
        self._pause.set(None)

    def may_start(self, max_isolation_s: float = math.inf) -> bool:
        """Whether something new, that may go on alone for so long, may be started now."""
        record = self._mirror.hosts.get(self._server.host.host_id)
        return (
            record is not None
            and record["incarnation"] == self._server.host.incarnation
            and record["state"] == "up"
            and self.lease.confirmed(record.get("seen_index", 0))
            and self.lease.valid(self._server.runtime.boottime(), max_isolation_s)
        )

    def look(self) -> None:
        """Something may be otherwise: tell those who wait, say that we are there if that is wanted."""
        is_open = self.may_start()
        if is_open and not self._was_open:
            self._on_open()
        self._was_open = is_open
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.set(None)
        if not (is_open or self._confirming) and self.lease.valid(self._server.runtime.boottime()):
            record = self._mirror.hosts.get(self._server.host.host_id)
            ours = record is not None and record["incarnation"] == self._server.host.incarnation
            if record is not None and ours and record["state"] in ("up", "lost"):
                self._server.spawn(self._confirm(record))

    def news(self) -> Waiter:
        """Await a moment in which ``may_start`` may have changed; one comes every second or so."""
        waiter = Waiter()
        self._waiting.append(waiter)
        return waiter

    async def opened(self, within_s: float) -> None:
        """Return once something may be started. Raises HostIsolated when that takes longer."""
        runtime = self._server.runtime
        deadline = runtime.monotonic() + within_s
        while not self.may_start():
            if runtime.monotonic() >= deadline:
                raise self._isolated()
            await self.news()

    def _isolated(self) -> HostIsolated:
        age_s = self.age_s()
        return HostIsolated(
            "this host starts nothing new: the cluster's leader does not confirm that it belongs to it",
            found="never confirmed since its start" if age_s is None else f"last confirmed {age_s:.1f} s ago",
            hint="actorgrid hosts, on another host as well, shows who is there; what runs goes on for max_isolation_s",
        )

    async def _confirm(self, record: dict[str, Any]) -> None:
        """Say that we are there; when it did not work, the next ``look`` tries again."""
        strays = self._strays() if record["state"] == "lost" else []
        if strays:
            self._server.log.info("not confirmed yet: %s still live here", ", ".join(strays[:5]))
            return
        self._confirming = True
        command = {
            "type": "confirm_host",
            "host": record["host_id"],
            "incarnation": record["incarnation"],
            "lost_at": record.get("lost_at"),
        }
        try:
            await self._mirror.propose(command, CONFIRM_S)
        except ActorGridError as error:
            self._server.log.info("not confirmed yet: %s", error)
            return
        finally:
            self._confirming = False
        self.look()

    # -- figures

    def age_s(self) -> float | None:
        """How long ago the lease was renewed, or rather, the renewal asked for."""
        return None if self.lease.renewed_at is None else self._server.runtime.boottime() - self.lease.renewed_at
