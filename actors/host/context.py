"""What every server of a host knows from its first moment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings

if TYPE_CHECKING:
    from ..consensus.raft_links import VoterPlan
    from ..raft.storage.durable_watermark import KnownGrant
    from .enrolment import Enrolment


@dataclass(slots=True)
class HostContext:
    """What every server knows; read-only but for live settings.

    ``incarnation`` counts the starts of this host's agent.
    """

    paths: HostPaths
    settings: Settings
    host_id: str
    hostname: str
    incarnation: int
    boot_id: str
    voter: VoterPlan | None = None
    """What it is to the cluster's consensus; ``None``: it is alone."""
    enrolment: Enrolment | None = None
    """Its place among the cluster's hosts; ``None``: it is alone."""
    newest_grant: KnownGrant | None = None
    """The newest that its attempts' folders know of: the ledger must know it too."""

    @property
    def restart_mark(self) -> Path:
        """The file that is there while the host stops only to start again at once: what runs goes on meanwhile.

        It holds the index of the entry that allows the absence; 0: none does.
        """
        return self.paths.boot_dir(self.boot_id) / "restarting"
