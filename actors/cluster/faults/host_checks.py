"""Checks this host, round after round, and keeps the history of what failed.

Readings are taken here and judged in ``checks.py``. The history lies in the data directory, not in the ledger or the
shared state: it is this host's own word about itself, many hosts write one each, nobody needs it to decide anything
while this host is gone, and it has to outlive this server, every leader, and a cut from both (docs/decisions/0037).
"""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from time import time
from typing import Any

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

from ...files.untrusted_files import read_whole
from ...gpu.device import unhealthy_in
from ...gpu.messages import OwnReadings
from ...gpu.readings import Readings
from ...ledger.client import LedgerClient
from ...links.messages import AskHost
from ..core import Vitals
from .check_results import CheckResult, is_figure
from .checks import (
    DiskReading,
    GpuReading,
    check_clock,
    check_disk,
    check_disk_trends,
    check_gpus,
    check_memory,
    check_network,
    check_processor,
    check_servers,
    patience_factor,
)
from .disk_probe import DiskProbe
from .failure_history import FailureHistory, events_of
from .host_readings import ClockWatch, read_pressure
from .pairs import Pairs
from .prediction import CountRate, TrendWindow

HISTORY_FILE = "health_history.json"
HISTORY_BYTES_MAX = 2**18
PEERS_AT_ONCE = 3
PEER_S = 2.0
GPUS_S = 2.0
LATENESS_OF = 3
"""Rounds whose lateness counts: a single one may be late by chance."""
HOUR_S = 3600.0
RESTARTS_KEPT = 16
CLOCK_SERVICE = "clock"


class HostChecks:
    """The checks of the host that *server*, its FaultDetector, runs on. *names*: the servers that are looked at."""

    def __init__(self, server: Server, ledger: LedgerClient, vitals: Vitals, names: tuple[str, ...]) -> None:
        self._server, self._ledger, self._vitals, self._names = server, ledger, vitals, names
        faults = server.host.settings.faults
        self.interval_s = float(faults.interval_s)
        self._probe_s = float(faults.disk_probe_s)
        folder = server.host.paths.data_dir
        self._file: Path = folder / HISTORY_FILE
        self.history = FailureHistory(float(faults.repeat_s), events_of(_read(self._file)))
        self.results: tuple[CheckResult, ...] = ()
        self.pairs = Pairs()
        self.lateness = 1.0
        self._disk = DiskProbe(folder)
        self._clock = ClockWatch(server.runtime.boottime)
        self._late: deque[float] = deque([1.0], LATENESS_OF)
        self._last_round_s: float | None = None
        self._probed_s = float("-inf")
        self._probes_seen = 0
        self._latency = TrendWindow()
        self._free = TrendWindow(self._probe_s)
        self._restarts: dict[str, deque[float]] = {}
        self._restarts_seen: dict[str, int] = {}
        self._ecc: dict[str, CountRate] = {}
        self._uncorrected: dict[str, CountRate] = {}
        self._gpus: tuple[GpuReading, ...] = ()
        self._asking_gpus = False
        self._next_peer = 0
        self._asked_peers: set[str] = set()
        self._unsaved = False

    def start(self) -> None:
        """Begin the rounds."""
        self._server.every(self.interval_s, self.look)
        self._server.every(min(self.interval_s, PEER_S), self._ask_peers)

    def look(self) -> None:
        """Run one round of checks."""
        now_s, now = self._server.runtime.monotonic(), time()
        if self._last_round_s is not None:
            self._late.append((now_s - self._last_round_s) / self.interval_s)
        self._last_round_s = now_s
        # The least of the last few: starvation lasts, and a single late round is an accident.
        self.lateness = max(1.0, min(self._late))
        self._clock.look()
        if not self._asking_gpus:
            self._server.spawn(self._ask_gpus())
        before = len(self.history.events), self.history.events[-1] if self.history.events else None
        self.results = self.history.take(self._results(now_s), now)
        changed = before != (len(self.history.events), self.history.events[-1] if self.history.events else None)
        self._unsaved = self._unsaved or changed
        if self._unsaved or now_s - self._probed_s >= self._probe_s:
            data = json.dumps({"events": self.history.to_plain()}).encode("ascii")
            # While the last write is not back it stays unsaved: the next round tries again.
            if self._disk.begin({self._file: data} if self._unsaved else {}):
                self._probed_s, self._unsaved = now_s, False

    def _results(self, now_s: float) -> list[CheckResult]:
        pressure = read_pressure()
        disk = self._read_disk(now_s)
        silence = self._vitals.silence(now_s, patience_factor(self.lateness))
        pairs = self.pairs.figures()
        offsets = [pair.offset_s for pair in pairs.values() if pair.offset_s is not None and not pair.silent]
        self._note_restarts(now_s)
        heard = [name for name in self._names if name in self._vitals.servers or name in silence]
        found = [
            *check_servers(silence, self._restarts, heard, now_s),
            check_disk(disk),
            *check_disk_trends(disk),
            check_memory(pressure),
            check_processor(pressure, self.lateness),
            check_clock(self._clock.stepped_s, self._clock.stepped_ago_s, offsets),
            *check_gpus(self._gpus),
        ]
        return [*found, check_network(pairs)] if pairs else found

    def _note_restarts(self, now_s: float) -> None:
        for name, vital in self._vitals.servers.items():
            seen = self._restarts_seen.get(name, vital.restarts)
            if vital.restarts > seen:
                self._restarts.setdefault(name, deque(maxlen=RESTARTS_KEPT)).append(now_s)
            self._restarts_seen[name] = vital.restarts

    def _read_disk(self, now_s: float) -> DiskReading:
        latencies, waits_s, error, probes = self._disk.reading()
        if latencies and probes > self._probes_seen:
            self._latency.add(now_s, latencies[-1])
        self._probes_seen = probes
        floor = int(self._server.host.settings.performance.min_free_bytes)
        try:
            disk = os.statvfs(self._server.host.paths.data_dir)
        except OSError as failed:
            return DiskReading(0, floor, latencies, waits_s, f"{failed.strerror}")
        free = disk.f_bavail * disk.f_frsize
        self._free.add(now_s, float(free))
        return DiskReading(free, floor, latencies, waits_s, error, self._latency.trend(), self._free.trend())

    # -- devices

    async def _ask_gpus(self) -> None:
        self._asking_gpus = True
        try:
            told = await self._server.call("gpu_coordinator", OwnReadings(), GPUS_S)
            record = self._ledger.hosts.get(self._server.host.host_id)
            unfit = unhealthy_in(record)
            indexes = {} if record is None else {each["uuid"]: int(each["index"]) for each in record["devices"]}
            now_s = self._server.runtime.monotonic()
            self._gpus = tuple(
                self._gpu(uuid, indexes[uuid], Readings.from_record(each), unfit.get(uuid, ""), now_s)
                for uuid, each in sorted(told.items())
                if uuid in indexes
            )
            for rates in (self._ecc, self._uncorrected):
                for gone in rates.keys() - indexes.keys():
                    del rates[gone]
        except ActorGridError as error:
            self._server.log.debug("the devices' readings: %s", error)
        finally:
            self._asking_gpus = False

    def _gpu(self, uuid: str, index: int, read: Readings, unfit: str, now_s: float) -> GpuReading:
        corrected = self._ecc.setdefault(uuid, CountRate(HOUR_S))
        uncorrected = self._uncorrected.setdefault(uuid, CountRate(HOUR_S))
        if read.ecc_corrected is not None:
            corrected.add(now_s, read.ecc_corrected)
        if read.ecc_uncorrected is not None:
            uncorrected.add(now_s, read.ecc_uncorrected)
        return GpuReading(
            index,
            read.error or unfit,
            read.temperature_celsius,
            None if read.ecc_corrected is None else corrected.risen(),
            read.ecc_uncorrected,
            uncorrected.risen(),
            read.throttled or "",
        )

    # -- other hosts

    async def _ask_peers(self) -> None:
        """Ask the next few hosts for their time: all come in turn, so that many hosts cost no more than few."""
        own = self._server.host.host_id
        peers = sorted(id for id in self._ledger.members if id != own and id in self._ledger.hosts)
        self.pairs.keep(peers)
        if not peers:
            return
        first = self._next_peer % len(peers)
        chosen = list(dict.fromkeys((peers[first:] + peers[:first])[:PEERS_AT_ONCE]))
        self._next_peer = first + len(chosen)
        for peer in chosen:
            if peer not in self._asked_peers:
                self._server.spawn(self._ask_peer(peer))

    async def _ask_peer(self, peer: str) -> None:
        self._asked_peers.add(peer)
        began, sent_at = self._server.runtime.monotonic(), time()
        try:
            told = await self._server.call("links", AskHost(peer, CLOCK_SERVICE, {}, PEER_S), PEER_S + 0.5)
            at = told.get("at") if isinstance(told, dict) else None
            took_s = self._server.runtime.monotonic() - began
            if is_figure(at):
                self.pairs.answered(peer, sent_at, float(at), took_s)
        except ActorGridError as error:
            # One of an earlier version has no such service, and says so: it is there.
            if type(error).__name__ == "NotSupported":
                self.pairs.answered(peer, sent_at, sent_at, self._server.runtime.monotonic() - began)
            elif self.lateness < 2.0:  # a host without CPU time misses answers that came
                self.pairs.lost(peer, str(error))
        finally:
            self._asked_peers.discard(peer)

    def report(self) -> dict[str, Any]:
        """What this host says of itself, for whoever leads: checks, events, and the paths to other hosts."""
        return {
            "checks": [result.to_plain() for result in self.results],
            "events": self.history.to_plain(),
            "pairs": {peer: pair.to_plain() for peer, pair in self.pairs.figures().items()},
        }


def _read(path: Path) -> object:
    """The events in the file; none where it is missing or damaged: what is lost is history."""
    try:
        data = read_whole(path.parent, path.name, HISTORY_BYTES_MAX)
        told = json.loads(data) if data else None
    except (OSError, ValueError, ActorGridError):
        return None
    return told.get("events") if isinstance(told, dict) else None
