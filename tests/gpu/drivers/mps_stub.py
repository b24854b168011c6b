"""The stub of NVIDIA's MPS control program as a test drives it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.gpu.drivers import mps_control
from tests.processes import is_alive


class MpsStub:
    """The program in a folder of its own, and what was started by it; ``variables`` put it on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.log, self.broken = folder / "mps.log", folder / "mps.broken"
        self.programs = folder / "mps-bin"
        mps_control.install(self.programs)

    @property
    def variables(self) -> dict[str, str]:
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "MPS_STUB_LOG": str(self.log),
            "MPS_STUB_BROKEN": str(self.broken),
        }

    def daemons(self) -> list[dict[str, Any]]:
        """What each daemon was started with, and its process id."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def living(self) -> list[int]:
        return [one["pid"] for one in self.daemons() if is_alive(one["pid"])]

    def close(self) -> None:
        """Leave no daemon behind."""
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)
