"""A probe child of a real binding, and what it told."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.gpu.probe import DeviceProbe
from actorgrid.actors.gpu.probe_report import DeviceEvent, ProbeReport
from actorgrid.actors.gpu.readings import Readings
from actorgrid.supervisors.inline import InlineNode


class Watched:
    """A probe on a real-time node, and what it told."""

    def __init__(self, timeout_s: float = 60.0, vendor: str = "nvidia") -> None:
        self.node = InlineNode(real_time=True)
        self.reports: list[ProbeReport] = []
        self.readings: list[dict[str, Readings]] = []
        self.lost: list[str] = []
        self.events: list[DeviceEvent] = []
        self.probe = DeviceProbe(
            vendor,
            self.node,
            timeout_s,
            self.reports.append,
            self.readings.append,
            self.lost.append,
            self.events.extend,
        )

    def wait(self, what: list[Any], count: int = 1) -> Any:
        self.node.run_until(lambda: len(what) >= count, timeout_s=60, what="word from the probe")
        return what[-1]

    def read(self) -> dict[str, Readings]:
        assert self.probe.ask()
        return self.wait(self.readings, len(self.readings) + 1)

    def report(self) -> ProbeReport:
        """What a child finds that is started now."""
        self.probe.start()
        report: ProbeReport = self.wait(self.reports)
        return report

    def cut(self, uuid: str, change: str, what: str) -> tuple[str, str]:
        """Why a device was not cut otherwise, and the UUID of what was made."""
        answers: list[tuple[str, str]] = []
        self.probe.set_partitions(uuid, change, what, lambda why, made: answers.append((why, made)))
        return self.wait(answers)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.probe.stop()
        self.node._selector.close()
