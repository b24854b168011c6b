"""Settings of alerts of our own."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from .notifications_section import checked_target_setting
from .section import Section, setting


class AlertsSection(Section):
    """What this host tells of what is wrong with it, and with the cluster where it leads; for clusters that nobody
    watches with Prometheus."""

    enabled: bool = setting(True, "whether this host looks for alerts", live=True)
    targets: Annotated[list[str], AfterValidator(checked_target_setting)] = setting(
        [], "who is told, as --notify says it; empty: alerts are shown, and nobody is told", live=True, max_length=4
    )
    interval_s: float = setting(15.0, "time between two looks", ge=0.2, le=600)
    repeat_s: float = setting(14_400.0, "what still fires is told again so often", live=True, ge=60, le=604_800)
    disk_free_ratio: float = setting(0.05, "less of the data directory's disk free than this", live=True, ge=0, le=1)
    certificate_left_s: float = setting(86_400.0, "the host's certificate ends sooner than this", live=True, ge=0)
    clock_offset_s: float = setting(1.0, "the clock is off by more than this against other hosts'", live=True, gt=0)
    queue_stands_s: float = setting(1_800.0, "jobs wait, and none was placed for so long", live=True, ge=60, le=1_800)
