"""The leader's half: gathers what hosts say of themselves, decides (``core.py``), and carries out what is due.

An action is committed before it is carried out, and its end afterwards; a leader that finds one of an earlier term open
ends it as unknown and does not do it again. All that another leader would need is in the ledger or on the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any

from actorgrid.actors.ledger.commands import BeginRecovery, DrainHost, EndRecovery
from actorgrid.actors.ledger.record_types import NO_HOST, HostRecord
from actorgrid.actors.ledger.recovery_records import ESCALATION, RELEASE
from actorgrid.errors import ActorGridError, LedgerRefused
from actorgrid.supervisors.server import Server

from ...ledger.client import LedgerClient
from ...links.messages import AskHosts
from .check_results import CheckResult, CheckStatus, results_of
from .core import Act, Decision, GiveUp, HostOutlook, HostPicture, decide
from .escalation import EscalationPolicy
from .failure_history import FailureHistory, events_of
from .host_checks import HostChecks
from .strategies import BY, OFF, RecoveryEnd, RecoveryMeans, find_strategy

REPORT_SERVICE = "fault_report"
ASK_S = 2.0
ASKED_AT_ONCE = 128
"""Hosts that are asked in one round; larger clusters are gone through in several."""
AWAY_S = 10.0
"""A host that is not heard of for so long has failed: five times what the ledger calls absent. So has the FaultDetector
of one that is heard of and does not say for so long how it is."""
PROPOSE_S = 10.0
FIRST_ROUNDS = 2
"""A new leader first hears what the hosts say."""


class HostRecovery:
    """Deals with hosts in trouble, where this host leads. *checks* are those of this host."""

    def __init__(self, server: Server, ledger: LedgerClient, checks: HostChecks) -> None:
        self._server, self._ledger, self._checks = server, ledger, checks
        self._reports: dict[str, tuple[float, dict[str, Any]]] = {}
        self._unanswered: dict[str, float] = {}  # since when each does not answer, on CLOCK_BOOTTIME
        self._seen: dict[str, FailureHistory] = {}  # what the leader itself sees of the others
        self._first = 0
        self._rounds = 0
        self._busy = False
        self._acting: set[str] = set()
        self.outlooks: dict[str, HostOutlook] = {}
        self.pictures: dict[str, HostPicture] = {}
        self.begun_total = 0

    def start(self) -> None:
        """Begin the rounds."""
        self._server.every(self._checks.interval_s, self._round)

    async def _round(self) -> None:
        if not self._ledger.leads:
            self._rounds = 0
            self._reports.clear()
            self._unanswered.clear()
            self._seen.clear()
            return
        if self._busy:
            return
        self._busy = True
        try:
            await self._gather()
            self._rounds += 1
            if self._ledger.leads and self._rounds >= FIRST_ROUNDS:
                self._decide()
        finally:
            self._busy = False

    async def _gather(self) -> None:
        own = self._server.host.host_id
        self._reports[own] = (self._server.runtime.monotonic(), self._checks.report())
        others = sorted(id for id in self._ledger.members if id != own and id in self._ledger.hosts)
        for gone in self._reports.keys() - {own, *others}:
            del self._reports[gone]
        if not others:
            return
        first = self._first % len(others)
        asked = tuple((others[first:] + others[:first])[:ASKED_AT_ONCE])
        self._first = first + len(asked)
        try:
            told = await self._server.call("links", AskHosts(asked, REPORT_SERVICE, {}, ASK_S), ASK_S + 1)
        except ActorGridError as error:
            self._server.log.info("what the other hosts say of themselves: %s", error)
            return
        now_s = self._server.runtime.monotonic()
        for host_id in asked:
            if isinstance(told.get(host_id), dict):
                self._reports[host_id] = (now_s, told[host_id])
                self._unanswered.pop(host_id, None)
            elif host_id in self._ledger.absent:
                self._unanswered.pop(host_id, None)  # nothing of it answers: that is another trouble
            elif self._checks.lateness < 2.0:  # else answers may wait in our own queue
                self._unanswered.setdefault(host_id, self._server.runtime.boottime())

    # -- what is known

    def _pictures(self, now: float) -> list[HostPicture]:
        hosts = self._ledger.hosts
        self._seen = {host_id: history for host_id, history in self._seen.items() if host_id in hosts}
        return [self._picture(host_id, record, now) for host_id, record in sorted(hosts.items())]

    def _picture(self, host_id: str, record: HostRecord, now: float) -> HostPicture:
        ledger = self._ledger
        lost = record["state"] == "lost"
        absent_at = ledger.absent.get(host_id)
        quiet_s = 0.0 if absent_at is None else self._server.runtime.boottime() - absent_at
        away = lost or quiet_s >= AWAY_S
        told = self._reports.get(host_id)
        results = () if away or told is None else results_of(told[1].get("checks"))
        events = () if told is None else events_of(told[1].get("events"))
        if host_id != self._server.host.host_id:
            history = self._seen.setdefault(host_id, FailureHistory(self._checks.history.repeat_s))
            view = self._leaders_view(host_id, record, away, quiet_s)
            results = (*results, *history.take(view, now))
            events = tuple(sorted((*events, *history.events), key=lambda event: event.at))
        return HostPicture(
            host_id,
            str(record["hostname"]),
            results,
            events,
            ledger.recoveries.get(host_id),
            lost,
            away,
            bool(record.get("absence_s")),
            host_id in self._acting,
        )

    def _leaders_view(self, host_id: str, record: HostRecord, away: bool, quiet_s: float) -> list[CheckResult]:
        """What only others can say of a host: whether it is there, and its FaultDetector."""
        witnesses = self.witnesses(host_id)
        quiet = {"quiet_s": round(quiet_s, 1), "witnesses": float(len(witnesses))}
        if away:
            lost = record["state"] == "lost"
            reason = "the ledger has lost it" if lost else f"nothing is heard of it for {quiet_s:.0f} s"
            return [CheckResult("reachable", CheckStatus.FAILED, reason, quiet)]
        if record.get("unreachable"):
            reason = f"{len(witnesses)} hosts do not reach it, though the ledger hears of it"
            return [CheckResult("reachable", CheckStatus.FAILED, reason, quiet)]
        found = [CheckResult("reachable", CheckStatus.OK, "", quiet)]
        unanswered_at = self._unanswered.get(host_id)
        silent_s = 0.0 if unanswered_at is None else self._server.runtime.boottime() - unanswered_at
        if silent_s >= AWAY_S and host_id in self._reports:
            reason = f"its fault_detector has not answered for {silent_s:.0f} s"
            found.append(CheckResult(f"server:{BY}", CheckStatus.FAILED, reason, {"silent_s": round(silent_s, 1)}))
        return found

    def witnesses(self, host_id: str) -> dict[str, str]:
        """The hosts that cannot reach this one, and why: by their calls, and by membership's probes."""
        mark = self._ledger.hosts.get(host_id, NO_HOST).get("unreachable")
        found = dict.fromkeys([] if mark is None else mark["witnesses"], "its probes are not answered")
        for witness, (_, report) in self._reports.items():
            pairs = report.get("pairs")
            pair = pairs.get(host_id) if isinstance(pairs, dict) else None
            if witness != host_id and isinstance(pair, dict) and pair.get("silent") is True:
                found[witness] = str(pair.get("why", ""))[:200]
        return found

    # -- what is done

    def policy(self) -> EscalationPolicy:
        """The settings as they are now."""
        faults = self._server.host.settings.faults
        return EscalationPolicy(
            faults.process_restart_at,
            faults.work_redistribution_at,
            faults.node_restart_at,
            faults.cluster_rebalance_at,
            faults.window_s,
            faults.half_life_s,
            faults.recovered_s,
        )

    def strategy_of(self, action: str) -> str:
        """The name of the strategy for *action*."""
        return "ledger" if action == RELEASE else str(getattr(self._server.host.settings.faults, action))

    def _decide(self) -> None:
        now = time()
        pictures = self._pictures(now)
        used = [action for action in ESCALATION if self.strategy_of(action) != OFF]
        decisions, self.outlooks = decide(pictures, self.policy(), now, used)
        self.pictures = {picture.host_id: picture for picture in pictures}
        for decision in decisions:
            if decision.host_id not in self._acting:
                self._acting.add(decision.host_id)
                self._server.spawn(self._do(decision))

    async def _do(self, decision: Decision) -> None:
        try:
            if isinstance(decision, GiveUp):
                await self._end(decision, RecoveryEnd("unknown", "whoever began it did not say how it ended"))
            else:
                await self._act(decision)
        except LedgerRefused as refused:
            self._server.log.info("host %s is left to itself: %s", decision.host_id, refused)
        finally:
            self._acting.discard(decision.host_id)

    async def _act(self, act: Act) -> None:
        log, name = self._server.log, self.strategy_of(act.action)
        begin = BeginRecovery(
            act.host_id,
            act.number,
            act.action,
            name,
            act.reason[:1000],
            dict(list(act.evidence.items())[:32]),
            act.failures,
            self._ledger.term,
            at=time(),
        )
        begun = await self._ledger.propose(begin, PROPOSE_S)
        self.begun_total += 1
        log.warning("host %s: %s by %s: %s", act.host_id, act.action, name, act.reason)
        end = await self._carried_out(act, name, bool(begun["undrain"]))
        await self._end(act, end)
        log.warning("host %s: %s: %s: %s", act.host_id, act.action, end.outcome, end.found)

    async def _carried_out(self, act: Act, name: str, undrain: bool) -> RecoveryEnd:
        try:
            if act.action == RELEASE:
                if undrain:
                    await self._ledger.propose(DrainHost(act.host_id, False, BY, at=time()), PROPOSE_S)
                return RecoveryEnd("done", "it gets work again" if undrain else "nothing was to be undone")
            record = self._ledger.hosts.get(act.host_id)
            if record is None:
                return RecoveryEnd("failed", "the host is gone")
            return await find_strategy(name).carry_out(
                act, RecoveryMeans(self._server, self._ledger, record, self._names(act.host_id, record))
            )
        except ActorGridError as error:
            return RecoveryEnd("failed", str(error)[:2000])
        except Exception as error:
            self._server.log.exception("recovery strategy %s", name)
            return RecoveryEnd("failed", f"the strategy {name} ended with {type(error).__name__}: {error}"[:2000])

    def _names(self, host_id: str, record: HostRecord) -> Mapping[str, str]:
        member = self._ledger.members.get(host_id)
        address = "" if member is None else str(member["addresses"].get("raft", "")).rpartition(":")[0]
        return {"host": str(record["hostname"]), "host_id": host_id, "address": address.strip("[]")}

    async def _end(self, of: Decision, end: RecoveryEnd) -> None:
        command = EndRecovery(of.host_id, of.number, end.outcome, end.found[:2000], self._ledger.term, at=time())
        await self._ledger.propose(command, PROPOSE_S)
