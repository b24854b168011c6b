"""Mutants of services: what whoever leads them decides by, done wrong."""

from __future__ import annotations

import math

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
