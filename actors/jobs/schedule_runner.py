"""Has the ledger decide what is due, where it is led. A part of ClusterManager; it holds nothing that is not there.

What reads cron expressions and time zones is loaded with the first schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import TYPE_CHECKING

from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.commands import FireSchedule
from actorgrid.actors.ledger.messages import Applied
from actorgrid.errors import ActorGridError, LedgerRefused, UnknownSchedule
from actorgrid.supervisors.runtime import Timer
from actorgrid.supervisors.server import Server

if TYPE_CHECKING:
    from .schedule_agenda import Firing, ScheduleAgenda

LOOK_S = 5.0
"""The clock is looked at so often at least while there are schedules: it may have been set."""
DECIDED_AT_ONCE = 4
"""Then what else waits in the server has its turn: what was missed for long takes a twentieth of a second each."""
HEARD = ("schedule", "leader")
AGAIN_S = 1.0
"""Until what could not be committed is decided anew."""


class ScheduleRunner:
    """The schedules of a cluster, on the host that leads its ledger."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server = server
        self._ledger = ledger
        self._agenda: ScheduleAgenda | None = None
        self._under_way: set[str] = set()
        self._timer: Timer | None = None
        self._fired_total = 0

    def begin(self) -> None:
        """Begin with what the ledger has, if this host leads it; else forget all."""
        self._agenda = None
        if self._ledger.leads and self._ledger.schedules:
            from .schedule_agenda import ScheduleAgenda

            self._agenda = ScheduleAgenda(self._ledger.schedules.values())
        self._look()

    def applied(self, message: Applied) -> None:
        """Follow what the ledger tells."""
        heard = [change for change in message.changes if change[0] in HEARD]
        if not heard:
            return
        if self._agenda is None or any(kind == "leader" for kind, _, _ in heard):
            self.begin()
            return
        for _, name, record in heard:
            if record is None:
                self._agenda.remove(name)
            else:
                self._agenda.put(record)
        self._look()

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._agenda is None:
            return
        now = time()
        firings = self._agenda.due(now, self._under_way, DECIDED_AT_ONCE)
        for firing in firings:
            self._under_way.add(firing.name)
            self._server.spawn(self._fire(firing))
        at = self._agenda.next_at()
        if at is not None:
            # What is due and under way is heard of; what fails is looked at again.
            wait_s = at - now if at > now else AGAIN_S
            if len(firings) == DECIDED_AT_ONCE:
                wait_s = 0.0
            self._timer = self._server.runtime.after(min(LOOK_S, wait_s), self._look)

    async def _fire(self, firing: Firing) -> None:
        command = FireSchedule(
            firing.name,
            self._ledger.term,
            firing.revision,
            firing.after,
            firing.until,
            list(firing.due),
            firing.missed,
            firing.in_line,
        )
        try:
            await self._ledger.propose(command)
        except (LedgerRefused, UnknownSchedule) as error:  # another has decided it, or it is another schedule by now
            self._server.log.info("schedule %s: %s", firing.name, error)
        except ActorGridError as error:
            self._server.log.warning("schedule %s is due, and cannot be run yet: %s", firing.name, error)
        else:
            self._fired_total += 1
        finally:
            self._under_way.discard(firing.name)

    def figures(self) -> Mapping[str, float]:
        """Schedules that are watched here, and how often something was due."""
        return {"schedules": float(len(self._ledger.schedules)), "schedule_firings_total": float(self._fired_total)}
