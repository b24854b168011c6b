"""Decisions of the cluster room, free of I/O: the pool a request goes to, and how healthy a host is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from actorgrid.actors.ledger.record_types import ResourcesRecord
from actorgrid.models import NodeHealth

SILENT_BEATS = 5
"""Heartbeats a server may miss before it counts as silent: a restart takes less, a hang more."""

STARTING_S = 60.0
"""A server that was never heard of has so long for its first start."""


def choose_pool(resources: ResourcesRecord, asked: str | None) -> str:
    """The pool of warm workers for a request; one that touches a GPU always runs in ``gpu_compute``."""
    if resources["gpu_count"]:
        return "gpu_compute"
    return asked or "general"


@dataclass(slots=True)
class Vital:
    """The latest signs of life of one server process."""

    pid: int
    handled: int
    last_beat_s: float
    restarts: int = 0


class Vitals:
    """The health of one host, from the beats of its servers and readings of its disk and memory."""

    def __init__(self, expected: Iterable[str], beat_interval_s: float, now_s: float) -> None:
        self.beat_interval_s = beat_interval_s
        self.expected = tuple(expected)
        self.servers: dict[str, Vital] = {}
        self._since_s = now_s
        self.host_problems: list[str] = []

    def beat(self, name: str, pid: int, handled: int, now_s: float) -> None:
        """Take a beat: a server's message loop turned."""
        known = self.servers.get(name)
        if known is None:
            self.servers[name] = Vital(pid, handled, now_s)
            return
        if known.pid != pid:
            known.restarts += 1
        known.pid, known.handled, known.last_beat_s = pid, handled, now_s

    def resume(self, now_s: float) -> None:
        """Start every count anew after a pause of the host: what seemed silence was ours as well."""
        self._since_s = now_s
        for vital in self.servers.values():
            vital.last_beat_s = now_s

    def silent(self, now_s: float) -> list[str]:
        """The servers that have not been heard of for too long."""
        patience = SILENT_BEATS * self.beat_interval_s
        return [
            name
            for name in self.expected
            if now_s - (self.servers[name].last_beat_s if name in self.servers else self._since_s) > patience
        ]

    def silence(self, now_s: float, factor: float) -> dict[str, float]:
        """Seconds of silence of the servers that were heard of once, and not for *factor* times the usual patience.

        One that was never heard of has a minute for its start.
        """
        patience = factor * SILENT_BEATS * self.beat_interval_s
        quiet = {name: now_s - vital.last_beat_s for name, vital in self.servers.items()}
        never = {name: now_s - self._since_s for name in self.expected if name not in self.servers}
        return {
            **{name: for_s for name, for_s in quiet.items() if for_s > patience},
            **{name: for_s for name, for_s in never.items() if for_s > max(patience, STARTING_S)},
        }

    def report(self, now_s: float) -> dict[str, Any]:
        """Health, readiness, problems and per-server figures.

        HostSupervisor starts us after it saw the others start, so one not yet heard of is not held against them.
        """
        silent = self.silent(now_s)
        problems = [f"{name} is silent" for name in silent] + self.host_problems
        return {
            "health": (NodeHealth.DEGRADED if problems else NodeHealth.HEALTHY).value,
            "ready": not silent,
            "problems": problems,
            "servers": {
                name: {
                    "pid": vital.pid,
                    "handled": vital.handled,
                    "silent_s": round(now_s - vital.last_beat_s, 3),
                    "restarts": vital.restarts,
                }
                for name, vital in sorted(self.servers.items())
            },
        }
