"""Gathers what ``health.py`` judges by: what this host's Consensus says, and whom the host that leads misses."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any

from actorgrid.actors.ledger.query_answers import LedgerStatus
from actorgrid.actors.ledger.record_types import HostRecord
from actorgrid.errors import ActorGridError, NotLeader
from actorgrid.supervisors.server import Server

from ..gpu.device import unhealthy_in
from ..ledger.client import LedgerClient
from ..ledger.messages import Query
from ..ledger.recovery_records import maintained
from ..ledger.tables.trust import BUNDLE
from ..links.messages import AskLeader
from ..membership.messages import ReachedBy
from .health import AWAY_KNOWN_S, BoundFact, Facts, HealthVerdict, HostFact, LedgerFact, RefusedFact, verdict

STATUS_S = 2.0
AWAY_S = 1.0
"""Patience for the leader when somebody asks how the cluster is: a leader that does not answer is a finding."""
AWAY_FRESH_S = 1.0
"""Several who ask within this time share one question to the leader."""
AWAY_EVERY_S = 2.0
"""How often a voter asks without being asked; there are few. The others ask when somebody wants to know."""


class HealthWatch:
    """Gathers the facts on one host. ``now`` is seconds since the epoch; ages are counted on CLOCK_BOOTTIME."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server = server
        self._ledger = ledger
        self._leaderless_at: float | None = server.runtime.boottime()
        self._ledger_fact: LedgerFact | None = None
        self._waiting: tuple[int, str, int] = (0, "", 0)  # bytes of waiting jobs; the user with most, and theirs
        self._reading = False
        self._away: dict[str, float] = {}  # when each was last heard of, as the leader said
        self._behind: dict[str, float] = {}  # since when each takes nothing, as this host found, or the leader said
        self._behind_of: tuple[str | None, float] = (None, 0.0)  # who led when that was found, and when it was
        self._away_at: float | None = None
        self._reached_by: dict[str, tuple[str, ...]] = {}  # who reaches a host that the leader misses, as it said
        self._asking = False

    def leader_changed(self) -> None:
        """Note that the ledger client may know another leader, or none."""
        if self._ledger.leader is not None:
            self._leaderless_at = None
        elif self._leaderless_at is None:
            self._leaderless_at = self._server.runtime.boottime()

    async def look(self) -> None:
        """Ask Consensus for its state, and on a voter the leader for the hosts it misses."""
        if self._reading:
            return
        self._reading = True
        try:
            status: LedgerStatus = await self._server.call("consensus", Query("status"), STATUS_S)
            if self._ledger.leads:
                self._behind_found(status.get("behind_s") or {})
                await self._ask_who_reaches()
            user, most = status.get("waiting_job_bytes_most") or ("", 0)
            self._waiting = (int(status.get("waiting_job_bytes", 0)), user, int(most))
            nodes = {int(member["node"]): host_id for host_id, member in self._ledger.members.items()}
            self._ledger_fact = LedgerFact(
                time(),
                tuple(nodes[node] for node in status["voters"] if node in nodes) or (self._server.host.host_id,),
                dict(status["contact_s"]),
                bool(status["accepts_new_work"]),
                status.get("commits_stalled_s"),
                RefusedFact(**refused) if (refused := status.get("snapshot_refused")) else None,
            )
        except ActorGridError as error:
            self._server.log.info("the ledger's status: %s", error)
        finally:
            self._reading = False
        if self._ledger_fact is not None and self._server.host.host_id in self._ledger_fact.voters:
            await self.ask_leader(AWAY_EVERY_S)

    async def ask_leader(self, fresh_s: float = AWAY_FRESH_S) -> None:
        """Ask the leading host which hosts it misses, unless that was asked within *fresh_s* seconds."""
        now_s = self._server.runtime.boottime()
        alone = self._server.host.enrolment is None or self._ledger.leads or self._ledger.leader is None
        if alone or self._asking or (self._away_at is not None and now_s - self._away_at < fresh_s):
            return
        self._asking = True
        try:
            answer = await self._server.call("links", AskLeader("hosts_away", {}, AWAY_S), AWAY_S + 1)
            now = self._server.runtime.boottime()
            self._away = {str(host_id): now - float(ago_s) for host_id, ago_s in answer["quiet_s"].items()}
            self._away_at = now
            self._behind_found(answer.get("behind_s") or {})  # hosts of an earlier version say nothing of it
            self._reached_found(answer.get("reached_by") or {})
        except (ActorGridError, ValueError, TypeError, KeyError, AttributeError) as error:
            # One of an earlier version does not know the question; one that is just lost does not answer.
            self._server.log.info("whom the leader misses is not known: %s", error)
        finally:
            self._asking = False

    async def _ask_who_reaches(self) -> None:
        """Where this host leads: ask membership who reaches the hosts that are missed. It may be off."""
        found: Mapping[str, Any] = {}
        if self._ledger.absent and self._server.whereis("membership") is not None:
            try:
                found = await self._server.call("membership", ReachedBy(), STATUS_S)
            except ActorGridError as error:
                self._server.log.info("who reaches the hosts that are away is not known: %s", error)
        self._reached_found(found)

    def _reached_found(self, found: Mapping[str, Any]) -> None:
        self._reached_by = {str(host_id): tuple(map(str, by)) for host_id, by in found.items()}

    def reached_by(self) -> dict[str, list[str]]:
        """Where this host leads: who reaches hosts that it misses."""
        return {host_id: list(by) for host_id, by in self._reached_by.items()} if self._ledger.leads else {}

    def quiet_s(self) -> dict[str, float]:
        """Seconds for which each absent host has not been heard of. Raises NotLeader where another leads."""
        if not self._ledger.leads:
            raise NotLeader("this host does not lead", found=self._ledger.leader or "nobody is known to lead")
        now = self._server.runtime.boottime()
        return {host_id: now - at for host_id, at in self._ledger.absent.items()}

    def behind_s(self) -> dict[str, float]:
        """Where this host leads: for how long each takes nothing that answers and lacks what is committed."""
        now = self._server.runtime.boottime()
        return {host_id: now - at for host_id, at in self._known_behind().items()} if self._ledger.leads else {}

    def _behind_found(self, seconds: Mapping[str, Any]) -> None:
        now = self._server.runtime.boottime()
        self._behind = {str(host_id): now - float(ago_s) for host_id, ago_s in seconds.items()}
        self._behind_of = (self._ledger.leader, now)

    def _known_behind(self) -> dict[str, float]:
        # Whoever leads next has to find it out anew.
        leader, at = self._behind_of
        known = leader is not None and leader == self._ledger.leader
        return self._behind if known and self._server.runtime.boottime() - at < AWAY_KNOWN_S else {}

    def verdict(self, silent: tuple[str, ...], own_problems: tuple[str, ...]) -> HealthVerdict:
        """The verdict on the cluster by what is known now."""
        now, clock = time(), self._server.runtime.boottime()
        leaderless_s = 0.0 if self._leaderless_at is None else max(0.0, clock - self._leaderless_at)
        away = self._known_away(clock)
        hosts = tuple(
            self._host_fact(host_id, record, now, clock, away) for host_id, record in sorted(self._ledger.hosts.items())
        )
        return verdict(
            Facts(
                self._server.host.host_id,
                now,
                hosts,
                self._ledger.leader,
                leaderless_s,
                self._ledger_fact,
                silent,
                own_problems,
                now,
                self._waiting_facts(),
            )
        )

    def _waiting_facts(self) -> tuple[BoundFact, ...]:
        (total, user, most), limits = self._waiting, self._server.host.settings.scheduling
        return (
            BoundFact("all users", total, limits.waiting_bytes_max, "scheduling.waiting_bytes_max"),
            BoundFact(f"user {user}", most, limits.user_waiting_bytes_max, "scheduling.user_waiting_bytes_max"),
        )

    def _known_away(self, clock: float) -> dict[str, float]:
        if self._ledger.leads:
            return self._ledger.absent
        fresh = self._away_at is not None and clock - self._away_at < AWAY_KNOWN_S
        # Without a leader it is the last that was known: nobody can say that they are back.
        return self._away if fresh or self._ledger.leader is None else {}

    def _host_fact(
        self, host_id: str, record: HostRecord, now: float, clock: float, away: dict[str, float]
    ) -> HostFact:
        lost = record["state"] == "lost"
        heard_at = record.get("heard_at") if lost else None
        if host_id in away:
            heard_at = now - (clock - away[host_id])
        behind_at = self._known_behind().get(host_id)
        unfit, unreachable = unhealthy_in(record), record.get("unreachable")
        trust = self._ledger.trust.get(host_id) if host_id != BUNDLE else None
        return HostFact(
            host_id,
            str(record["hostname"]),
            len(record["devices"]),
            lost,
            bool(record.get("draining", False)),
            heard_at,
            None if behind_at is None else now - (clock - behind_at),
            tuple((int(each["index"]), unfit[each["uuid"]]) for each in record["devices"] if each["uuid"] in unfit),
            (trust or {}).get("valid_until") or None,
            () if unreachable is None else tuple(unreachable["witnesses"]),
            self._reached_by.get(host_id, ()) if host_id in away else (),
            None if (window := maintained(self._ledger.recoveries.get(host_id), now)) is None else window["until"],
        )
