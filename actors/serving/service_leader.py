"""Leads services on, where the ledger is led: how many replicas, which revision, what leaves. A part of ClusterManager.

It looks once a second while there are services that are not settled, or whose number follows what is asked of them;
what it decides is proposed as ``AdvanceService`` about the record that it was decided about. What it holds besides the
ledger is what gateways tell: a new leader begins with none of it, and takes nothing away before it has seen enough.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from time import time
from typing import Any, ClassVar

from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.commands import AdvanceService
from actorgrid.actors.ledger.service_records import ServiceRecord, goal_of, revision_in
from actorgrid.errors import ActorGridError, LedgerRefused, UnknownService
from actorgrid.supervisors.runtime import Timer
from actorgrid.supervisors.server import Server

from .autoscale import Autoscaler
from .gateway_reports import GatewayReports
from .rollout import Situation, Steps, plan, replicas_on
from .service_tables import is_routed
from .table import ServiceDemand
from .verdict import fault_of

TICK_S = 1.0
PLACED_IN_S = 3.0
"""A replica that waits longer is asked about: why it has no place."""
ASK_AGAIN_S = 5.0
UNHEARD_S = 10.0
"""A gateway that has told nothing so long after this host began to lead is taken for one that is not there."""
HELD_BACK_S = 10.0
"""After a replica that the ledger had no room for, or the quota refused."""
REASON_CHARS_MAX = 500

Explain = Callable[[str], Awaitable[dict[str, Any]]]
"""What ``why`` says of a job."""


class _Led:
    """What is known of one service besides its record."""

    def __init__(self, scaler: Autoscaler) -> None:
        self.scaler = scaler
        self.under_way = False
        self.no_place = ""
        """Why a replica that waits has none."""
        self.asked_at = 0.0
        self.held_back_until = 0.0
        self.rollout_seen: tuple[str, float] | None = None
        self.has_room = True


class ServiceLeader:
    """The services of a cluster, on the host that leads its ledger; *explain* says why a job waits."""

    scaler_class: ClassVar[type[Autoscaler]] = Autoscaler

    def __init__(
        self, server: Server, ledger: LedgerClient, explain: Explain, clock: Callable[[], float] = time
    ) -> None:
        self._server = server
        self._clock = clock
        self._ledger = ledger
        self._explain = explain
        self._reports = GatewayReports()
        self._began_at = clock()
        self._led: dict[str, _Led] = {}
        self._timer: Timer | None = None
        self.advances_total = 0

    def begin(self) -> None:
        """Begin with what the ledger has, if this host leads it; else forget all."""
        self._led.clear()
        self._reports = GatewayReports()
        self._began_at = self._clock()
        self.look()

    def took(self, host_id: str, demands: Iterable[ServiceDemand]) -> None:
        """Take what the gateways of a host tell."""
        if self._ledger.leads:
            self._reports.took(host_id, demands, self._clock())
            self.look()

    def woke(self, service: str, host_id: str) -> None:
        """Take that a request came for a service without a ready replica, ahead of the next report."""
        if self._ledger.leads and service in self._ledger.services:
            self._reports.woke(host_id, service, self._clock())
            self.look()

    def look(self) -> None:
        """Decide what is to be done now, and look again as long as anything may be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._ledger.leads or not self._ledger.services:
            self._led.clear()
            return
        for name in self._led.keys() - self._ledger.services.keys():
            del self._led[name]
        self._reports.keep_only(self._ledger.hosts)
        moves = False
        hosts = {host_id for host_id, host in self._ledger.hosts.items() if host.get("draining")}
        told_at = self._told_at(self._clock())
        for name, record in list(self._ledger.services.items()):
            leaving = replicas_on(hosts, record, self._ledger.jobs) if hosts else set()
            moves |= self._decide(name, record, leaving, told_at) or not _is_settled(record, leaving)
        if moves:
            self._timer = self._server.runtime.after(TICK_S, self.look)

    def _decide(self, name: str, record: ServiceRecord, leaving: set[str], told_at: float) -> bool:
        """Decide about one service; whether its number follows what is asked of it. *told_at*: see ``_told_at``."""
        led = self._led.get(name)
        if led is None:
            led = self._led[name] = _Led(self.scaler_class(self._server.runtime.monotonic()))
        self._note_rollout(record, led)
        scale, now = record["scale"], self._clock()
        # Of what is not asked through the gateways nobody knows the demand.
        follows = scale["min"] != scale["max"] and is_routed(record) and "removed_by" not in record
        target = self._target(record, led, now) if follows else record["target"]
        if led.under_way:
            return follows
        busy, told_at = self._reports.busy(name), told_at if is_routed(record) else math.inf
        situation = Situation(record, target, now, busy, led.has_room, self._fault(record), told_at, leaving)
        steps = self._without_repeats(plan(situation))
        if now < led.held_back_until:
            steps = steps._replace(start=())
        self._ask_why(record, led, now)
        problem = self._problem(record, led)
        if any((steps.start, steps.drain, steps.end, steps.outcome, steps.widened)) or (
            (target, problem) != (record["target"], record["problem"])
        ):
            led.under_way = True
            self._server.spawn(self._advance(record, target, steps, problem, led))
        return follows

    def _told_at(self, now: float) -> float:
        """When the gateway told of its requests whose last word is the oldest, of those there are."""
        unheard_at = -math.inf if now - self._began_at < UNHEARD_S else math.inf
        there = (host_id for host_id, host in self._ledger.hosts.items() if host["state"] == "up")
        return self._reports.oldest_word_at(there, unheard_at)

    def _target(self, record: ServiceRecord, led: _Led, now: float) -> int:
        demand = self._reports.of_service(record["name"])
        now_s = self._server.runtime.monotonic()
        ready = sum(each["state"] == "ready" for each in record["replicas"])
        since_s = now - demand.last_request_at if demand.last_request_at else now
        led.scaler.observe(now_s, demand, since_s)
        return led.scaler.decide(now_s, record["scale"], record["target"], ready, demand.in_flight)

    def _note_rollout(self, record: ServiceRecord, led: _Led) -> None:
        rollout = record["rollout"]
        seen = None if rollout is None else (rollout["to"], rollout["began_at"])
        if seen != led.rollout_seen:
            led.rollout_seen, led.has_room, led.no_place = seen, True, ""
            self._reports.begin_comparing(record["name"])

    def _fault(self, record: ServiceRecord) -> str:
        rollout = record["rollout"]
        if rollout is None:
            return ""
        new = self._reports.figures(record["name"], rollout["to"])
        return fault_of(new, self._reports.figures(record["name"], record["revision"]))

    def _without_repeats(self, steps: Steps) -> Steps:
        """*steps* without the ends that were asked for already."""
        jobs = self._ledger.jobs
        new = (each for each in steps.end if (job := jobs.get(each)) is None or not job["cancel_requested"])
        return steps._replace(end=tuple(new))

    def _ask_why(self, record: ServiceRecord, led: _Led, now: float) -> None:
        """Ask why what waits has no place, once it has waited for a while."""
        waiting = [each for each in record["replicas"] if each["state"] == "queued"]
        if not waiting:
            led.no_place = ""
        elif now - waiting[0]["since"] >= PLACED_IN_S and now - led.asked_at >= ASK_AGAIN_S:
            led.asked_at = now
            self._server.spawn(self._take_why(waiting[0]["job_id"], led))

    async def _take_why(self, job_id: str, led: _Led) -> None:
        try:
            told = await self._explain(job_id)
        except ActorGridError as error:
            self._server.log.info("why replica %s waits is not known: %s", job_id, error)
            return
        if told.get("state") == "queued":
            led.no_place = str(told.get("headline") or "")[:REASON_CHARS_MAX]
            if (told.get("explain") or {}).get("fits") is not True:
                led.has_room = False

    def _problem(self, record: ServiceRecord, led: _Led) -> str:
        """Why there are fewer replicas than there are to be, in words that stay the same as long as that is so."""
        if self._clock() < led.held_back_until:
            return record["problem"]
        goal = goal_of(record)
        revision = revision_in(record, goal)
        ready = any(each["revision"] == goal and each["state"] == "ready" for each in record["replicas"])
        # One that died is made anew, and a service that has none since then may be woken: it takes two to be a reason.
        if revision["failures"] > 1 and not ready:
            said = f"its replicas end by themselves, {revision['failures']} in a row: {revision['failed_with']}"
            return said[:REASON_CHARS_MAX]
        return led.no_place

    async def _advance(self, record: ServiceRecord, target: int, steps: Steps, problem: str, led: _Led) -> None:
        command = AdvanceService(
            record["name"],
            self._ledger.term,
            record["changed"],
            target,
            list(steps.start),
            list(steps.drain),
            list(steps.end),
            steps.outcome,
            steps.reason,
            steps.widened,
            problem,
        )
        try:
            answer = await self._ledger.propose(command)
        except (LedgerRefused, UnknownService) as error:  # it is another by now, and is looked at again
            self._server.log.info("service %s: %s", record["name"], error)
        except ActorGridError as error:
            self._server.log.warning("service %s cannot be led on yet: %s", record["name"], error)
        else:
            self.advances_total += 1
            if len(answer["started"]) < len(steps.start):
                led.held_back_until = self._clock() + HELD_BACK_S
        finally:
            led.under_way = False


def _is_settled(record: ServiceRecord, leaving: set[str]) -> bool:
    """Whether nothing is to be done about a service until it, or a host, changes."""
    return (
        record["rollout"] is None
        and len(record["replicas"]) == record["target"]
        and not record["problem"]
        and all(
            each["state"] == "ready" and each["revision"] == record["revision"] and each["job_id"] not in leaving
            for each in record["replicas"]
        )
    )
