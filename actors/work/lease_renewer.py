"""Keeps this host's lease: asks the leader to confirm it, and says in the ledger that the host is there.

Every second, or more often while something runs here that may not be alone for long; at most ``UNDER_WAY_MAX`` reads
at once. One that is slow does not hold up the next: on a machine with too much to do a read may take longer than the
time between two, and its answer still renews the lease as of when it was asked.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.commands import ConfirmHost
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.ledger.record_types import HostRecord
from actorgrid.errors import ActorGridError, HostIsolated
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from .host_lease import HostLease

RENEW_S = 1.0
READS_IN_PATIENCE = 4
"""So many renewals are tried before the least patient work here has to go."""
UNDER_WAY_MAX = 8
ANSWER_S = 10.0
"""How long an answer is waited for. Later it could prolong only what has much patience, which later ones do as well."""
AGAIN_S = 0.25
AGES_KEPT_S = 60.0
CONFIRM_S = 5.0


class LeaseRenewer:
    """Renews this host's lease. *on_turn* is called after each renewal, *on_open* when work may start again.

    *patience* gives the least ``max_isolation_s`` of what runs here; *strays*, what lives here and is not in the
    ledger: as long as there is something, a host that was lost does not come back.
    """

    def __init__(
        self,
        server: Server,
        ledger: LedgerClient,
        on_turn: Callable[[], None],
        on_open: Callable[[], None],
        patience: Callable[[], float],
        strays: Callable[[], list[str]],
    ) -> None:
        self.lease = HostLease(server.host.settings.work.lease_s)
        self._server = server
        self._ledger = ledger
        self._on_turn = on_turn
        self._on_open = on_open
        self._patience = patience
        self._strays = strays
        self._waiting: list[Waiter] = []
        self._pause = Waiter()
        self._was_open = False
        self._confirming = False
        self._under_way = 0
        self._refused = False
        self._ages: deque[tuple[float, float]] = deque()

    async def run(self) -> None:
        """Ask the leader for a renewal, again and again."""
        runtime = self._server.runtime
        while True:
            asked_at, self._refused = runtime.boottime(), False
            if self._under_way < UNDER_WAY_MAX:
                self._under_way += 1
                self._server.spawn(self._ask(asked_at))
            while (left_s := asked_at + (AGAIN_S if self._refused else self._every_s()) - runtime.boottime()) > 0:
                self._pause = Waiter()
                timer = runtime.after(left_s, lambda pause=self._pause: pause.set(None))  # type: ignore[misc]
                await self._pause
                timer.cancel()
            self.review()

    async def _ask(self, asked_at: float) -> None:
        """Ask for one read; it confirms the lease as of the moment before it was asked."""
        runtime = self._server.runtime
        try:
            index: int = await self._ledger.ask(Query("index", linearizable=True), ANSWER_S)
        except ActorGridError as error:
            self._server.log.debug("the lease is not renewed: %s", error)
            self._refused = True  # nobody leads, or nobody can be asked: that may be over in a moment
        else:
            now = runtime.boottime()
            # Before the renewal: how old the lease had become is what a pause would have been added to.
            self._note_age(now)
            self.lease.renewed(asked_at, index, now)
            self._on_turn()
        finally:
            self._under_way -= 1
        self.review()
        self._pause.set(None)

    def _note_age(self, now: float) -> None:
        age_s = self.age_s()
        if age_s is not None:
            while self._ages and self._ages[-1][1] <= age_s:
                self._ages.pop()  # a later and higher one hides it
            self._ages.append((now, age_s))
        while self._ages and self._ages[0][0] < now - AGES_KEPT_S:
            self._ages.popleft()

    def age_max_s(self) -> float | None:
        """The greatest age of the lease in the last minute, in seconds; ``None`` before the first.

        So much of ``max_isolation_s`` was used up when an absence began at the worst moment.
        """
        age_s = self.age_s()
        return None if age_s is None else max([age_s, *(age for _, age in self._ages)])

    def _every_s(self) -> float:
        return min(RENEW_S, self._patience() / READS_IN_PATIENCE)

    def hurry(self) -> None:
        """Renew as soon as something of another patience, which is to be started, needs it."""
        self._pause.set(None)

    def may_start(self, max_isolation_s: float = math.inf) -> bool:
        """Whether something new, that may go on alone for so long, may be started now."""
        record = self._ledger.hosts.get(self._server.host.host_id)
        return (
            record is not None
            and record["incarnation"] == self._server.host.incarnation
            and record["state"] == "up"
            and self.lease.confirmed(record.get("seen_index", 0))
            and self.lease.valid(self._server.runtime.boottime(), max_isolation_s)
        )

    def missing(self, max_isolation_s: float = math.inf) -> str:
        """What is missing before something of that patience may be started, as text; empty when nothing is."""
        if self.may_start(max_isolation_s):
            return ""
        record = self._ledger.hosts.get(self._server.host.host_id)
        if record is None or record["incarnation"] != self._server.host.incarnation:
            return "this host to be registered with the cluster"
        if record["state"] != "up":
            return f"this host to be up; the ledger has it as {record['state']}"
        age_s = self.age_s()
        if age_s is None:
            return "the cluster's leader to confirm this host's lease for the first time"
        if self.lease.valid(self._server.runtime.boottime(), max_isolation_s):
            return "this host to confirm in the ledger that it is back"
        within_s = min(self.lease.lease_s, max_isolation_s / 2)
        return f"the leader to confirm this host's lease: it did {age_s:.1f} s ago, and must have within {within_s:g} s"

    def review(self) -> None:
        """Look again at what may have changed: wake those who wait, and confirm this host if needed."""
        is_open = self.may_start()
        if is_open and not self._was_open:
            self._on_open()
        self._was_open = is_open
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.set(None)
        if not (is_open or self._confirming) and self.lease.valid(self._server.runtime.boottime()):
            record = self._ledger.hosts.get(self._server.host.host_id)
            ours = record is not None and record["incarnation"] == self._server.host.incarnation
            if record is not None and ours and record["state"] in ("up", "lost"):
                self._server.spawn(self._confirm(record))

    def next_change(self) -> Waiter:
        """Await a moment in which ``may_start`` may have changed; one comes every second or so."""
        waiter = Waiter()
        self._waiting.append(waiter)
        return waiter

    async def until_may_start(self, within_s: float) -> None:
        """Return once something may be started. Raises HostIsolated when that takes longer."""
        runtime = self._server.runtime
        deadline = runtime.monotonic() + within_s
        while not self.may_start():
            if runtime.monotonic() >= deadline:
                raise self._isolated()
            await self.next_change()

    def _isolated(self) -> HostIsolated:
        age_s = self.age_s()
        return HostIsolated(
            "this host starts nothing new: the cluster's leader does not confirm that it belongs to it",
            found="never confirmed since its start" if age_s is None else f"last confirmed {age_s:.1f} s ago",
            hint="actorgrid hosts, on another host as well, shows who is there; what runs goes on for max_isolation_s",
        )

    async def _confirm(self, record: HostRecord) -> None:
        """Confirm in the ledger that this host is up; the next ``review`` tries again what failed."""
        strays = self._strays() if record["state"] == "lost" else []
        if strays:
            self._server.log.info("not confirmed yet: %s still live here", ", ".join(strays[:5]))
            return
        self._confirming = True
        command = ConfirmHost(record["host_id"], record["incarnation"], record.get("lost_at"))
        try:
            await self._ledger.propose(command, CONFIRM_S)
        except ActorGridError as error:
            self._server.log.info("not confirmed yet: %s", error)
            return
        finally:
            self._confirming = False
        self.review()

    # -- figures

    def age_s(self) -> float | None:
        """Seconds since the last renewal was asked for."""
        return None if self.lease.renewed_at is None else self._server.runtime.boottime() - self.lease.renewed_at
