"""What FaultDetector is asked about alerts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListAlerts:
    """Answer: {"alerts": [...], "resolved": [...], "problem": why somebody could not be told}, of this host."""


@dataclass(frozen=True, slots=True)
class ListTuning:
    """Answer: {"findings": [the fields of ``TuningFinding``], "problem": why nobody looks}, of this host."""


@dataclass(frozen=True, slots=True)
class TestAlert:
    """Send a made-up alert to the targets of ``alerts.targets``. Answer: {"targets": [...]}. Raises WrongState where
    none is set."""

    by: str = ""
