"""Mutants of services: what whoever leads them decides by, done wrong."""

from __future__ import annotations

import math

from actorgrid.actors.serving.autoscale import Autoscaler
from actorgrid.actors.serving.gateway_reports import DemandNow
from actorgrid.actors.serving.service_leader import ServiceLeader
from actorgrid.chaos.simulator.leader import LeaderDuties
from actorgrid.chaos.simulator.node import SimulatedHost
from actorgrid.chaos.simulator.service_duties import ServiceDuties


class _TakesSilenceForNone(ServiceLeader):
    def _told_at(self, now: float) -> float:
        return math.inf


class _DutiesOfSilence(ServiceDuties):
    leader_class = _TakesSilenceForNone


class _LeadsBySilence(LeaderDuties):
    service_duties_class = _DutiesOfSilence


class SilenceIsIdle(SimulatedHost):
    """A new leader takes it that a replica which leaves has no requests, before any gateway has told what it has."""

    leader_duties_class = _LeadsBySilence


class _HastyScaler(Autoscaler):
    def __init__(self, began_s: float) -> None:
        super().__init__(-math.inf)


class _TakesAwayAtOnce(ServiceLeader):
    scaler_class = _HastyScaler


class _HastyDuties(ServiceDuties):
    leader_class = _TakesAwayAtOnce


class _LeadsHastily(LeaderDuties):
    service_duties_class = _HastyDuties


class NoWindowAfterElection(SimulatedHost):
    """A new leader counts what nobody has told it yet as nothing, and takes the last replica away."""

    leader_duties_class = _LeadsHastily


class _CountsUnderWayAlone(Autoscaler):
    def observe(self, now_s: float, demand: DemandNow, since_request_s: float) -> None:
        super().observe(now_s, demand._replace(held=0), math.inf)


class _WakesForNobody(ServiceLeader):
    scaler_class = _CountsUnderWayAlone


class _SleepyDuties(ServiceDuties):
    leader_class = _WakesForNobody


class _LeadsSleepily(LeaderDuties):
    service_duties_class = _SleepyDuties


class HeldIsNoDemand(SimulatedHost):
    """Requests that wait for a first replica are no demand: none is made for them."""

    leader_duties_class = _LeadsSleepily
