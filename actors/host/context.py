"""What every server of a host knows from its first moment."""

from __future__ import annotations

from dataclasses import dataclass

from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings


@dataclass(slots=True)
class HostContext:
    """Read-only but for live settings. ``incarnation`` counts the starts of this host's agent."""

    paths: HostPaths
    settings: Settings
    host_id: str
    hostname: str
    incarnation: int
    boot_id: str
