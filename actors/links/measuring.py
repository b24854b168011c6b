"""What a host's disk and its network do, measured a little at the start and at most once a day, for the ledger.

Each measurement takes well under a second and is cut into pieces between other work. The figures say what to expect,
not what is the most that can be had: the machine does its work meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, time

from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server
from actorgrid.transports.peer.calls import PendingAnswer

from ..files.untrusted_files import write_all
from ..ledger.client import LedgerClient
from ..ledger.commands import MeasureHost
from ..ledger.record_types import MeasuredFigures
from .pieces import pack

SERVICE = "measure"
AGAIN_S = 86_400.0
BEGIN_S = 2.0
"""After the start, which has enough to do."""
PART_S = 0.4
ROUNDS = 16
CHUNK_BYTES, WRITTEN_BYTES_MAX = 2**20, 32 * 2**20
SENT_BYTES, SENT_BYTES_MAX, IN_FLIGHT = 2**18, 32 * 2**20, 4
FREE_BYTES_MIN = 256 * 2**20
CALL_S = 5.0

Call = Callable[[str, str, bytes, float], PendingAnswer]


class Measuring:
    """The measurements of one host; *call* asks another host."""

    def __init__(self, server: Server, ledger: LedgerClient, call: Call) -> None:
        self._server, self._ledger, self._call = server, ledger, call

    async def run(self) -> None:
        """Measure, unless that was done less than a day ago, and tell the ledger."""
        await self._server.sleep(BEGIN_S)
        host = self._server.host
        record = self._ledger.hosts.get(host.host_id)
        while record is None or record["incarnation"] != host.incarnation:
            await self._server.sleep(BEGIN_S)
            record = self._ledger.hosts.get(host.host_id)
        now = time()
        if now - AGAIN_S < (record.get("measured") or {}).get("at", 0.0) <= now:
            return
        measured: MeasuredFigures = {"at": now, **await self._storage(host.paths.data_dir)}
        other = self._neighbour()
        if other is not None:
            try:
                measured.update(await self._network(other))
            except ActorGridError as error:
                self._server.log.info("measuring the network to %s: %s", other, error)
                measured["at"] = 0.0  # the next start tries again
        await self._ledger.propose(MeasureHost(host.host_id, host.incarnation, measured, at=time()))
        self._server.log.info("measured: %s", measured)

    def _neighbour(self) -> str | None:
        """The host to measure the network with: the member by which this host joined, else whoever leads."""
        enrolment, own = self._server.host.enrolment, self._server.host.host_id
        known = [id for id in enrolment.seeds if id in self._ledger.members]
        return next((id for id in (*known, self._ledger.leader) if id is not None and id != own), None)

    async def _storage(self, folder: Path) -> MeasuredFigures:
        """Measure the disk: the median fdatasync of 4 KiB, and how fast bytes become durable one after the other."""
        if shutil.disk_usage(folder).free < FREE_BYTES_MIN:
            return {}
        path = folder / ".measuring"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._server.log.info("measuring the disk: %s", error)
            return {}
        try:
            syncs: list[float] = []
            while len(syncs) < ROUNDS and sum(syncs) < PART_S:
                syncs.append(_write(fd, bytes(4096)))
                await self._server.sleep(0.0)
            chunk, written, took_s = os.urandom(CHUNK_BYTES), 0, 0.0
            while written < WRITTEN_BYTES_MAX and took_s < PART_S:
                took_s += _write(fd, chunk)
                written += len(chunk)
                await self._server.sleep(0.0)
        except OSError as error:
            self._server.log.info("measuring the disk: %s", error)
            return {}
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)
        return {
            "fdatasync_ms": round(1000 * sorted(syncs)[len(syncs) // 2], 3),
            "write_mb_per_s": round(written / took_s / 1e6, 1),
        }

    async def _network(self, host_id: str) -> MeasuredFigures:
        """The median time of a call and its answer, and how fast bytes get there, several calls in flight."""
        nothing, data = pack({}), pack({"data": os.urandom(SENT_BYTES)})
        trips: list[float] = []
        while len(trips) < ROUNDS and sum(trips) < PART_S:
            began = perf_counter()
            await self._call(host_id, SERVICE, nothing, CALL_S)
            trips.append(perf_counter() - began)
        began, sent = perf_counter(), 0
        under_way: deque[PendingAnswer] = deque()
        while sent < SENT_BYTES_MAX and perf_counter() - began < PART_S:
            if len(under_way) == IN_FLIGHT:
                await under_way.popleft()
            under_way.append(self._call(host_id, SERVICE, data, CALL_S))
            sent += SENT_BYTES
        for answer in under_way:
            await answer
        took_s = perf_counter() - began
        return {
            "to": host_id,
            "round_trip_ms": round(1000 * sorted(trips)[len(trips) // 2], 3),
            "network_mb_per_s": round(sent / took_s / 1e6, 1),
        }


def _write(fd: int, data: bytes) -> float:
    """Make *data* durable; gives the seconds it took."""
    began = perf_counter()
    write_all(fd, data)
    os.fdatasync(fd)
    return perf_counter() - began
