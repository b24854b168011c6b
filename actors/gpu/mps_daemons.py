"""MpsDaemons: runs NVIDIA's MPS for shares of this host's GPUs, where ``gpus.mps`` asks for it.

What is to be done, ``mps_shares.py`` decides. A daemon goes on when this process ends: work under it does, too.
"""

from __future__ import annotations

import os
import signal
import subprocess  # nosec B404 - for the types of mps_program.py
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from actorgrid.access import tenant_of
from actorgrid.errors import DataDirUnusable
from actorgrid.hotpath.records import WHOLE_GPU_MILLI
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from ..ledger.client import LedgerClient
from .device import Device
from .inventory import HostInventory
from .messages import JoinMps
from .mps_journal import DaemonProcess, MpsJournal
from .mps_program import (
    PROGRAM,
    MpsFolders,
    ask_to_quit,
    begin_daemon,
    end,
    lives,
    program_path,
    with_servers,
)
from .mps_shares import DaemonState, MpsInstruction, MpsKey, MpsShares, QuitDaemon, ShareHeld, StartDaemon

LIST_S = 8.0
START_S = 10.0
QUIT_S = 5.0
STOP_S = 1.0
LOOK_S = 0.05
SHOWN_MAX = 32
VOLTA = 7
"""From this compute capability on a client can be held to a part of a GPU, and has memory of its own."""


class MpsDaemons:
    """The daemons of *server*'s host; *changed* is called when other GPUs than before have their shares held."""

    def __init__(
        self, server: Server, ledger: LedgerClient, inventory: HostInventory, changed: Callable[[], None]
    ) -> None:
        self.shares = MpsShares()
        self._server = server
        self._ledger = ledger
        self._inventory = inventory
        self._changed = changed
        paths = server.host.paths
        self._journal = MpsJournal(paths.mps_file)
        self._processes: dict[MpsKey, DaemonProcess] = {}
        self._watched: dict[int, MpsKey] = {}
        self._starting: dict[MpsKey, list[Waiter]] = {}
        self._retrying = False
        self._was_on = self._journal.is_on
        self._adopt()

    # -- what is known

    @property
    def is_on(self) -> bool:
        """Whether shares are to be held by MPS."""
        return bool(self._server.host.settings.gpus.mps)

    def held_now(self) -> frozenset[str]:
        """The GPUs whose shares MPS holds, those that run and those to come."""
        if not self.is_on or program_path() is None:
            return frozenset()
        held, several = self._held(), self._of_several()
        return frozenset(
            device.uuid
            for device in self._inventory.devices
            if not _why_not(device) and device.uuid not in several and self.shares.is_enforced(device.uuid, held)
        )

    def own_pids(self) -> frozenset[int]:
        """The processes of daemons and servers: what they have of a GPU is nobody's work, and no stranger's."""
        return frozenset(pid for process in self._processes.values() for pid in with_servers(process))

    def _held(self) -> list[ShareHeld]:
        own = self._server.host.host_id
        return [
            ShareHeld(
                work_id,
                MpsKey(record["gpu_uuids"][0], tenant_of(record["user_id"]), self.shares.uid_of(work_id)),
            )
            for work_id, record in self._ledger.allocations.items()
            if record["host"] == own and len(record["gpu_uuids"]) == 1 and record["gpu_milli"] < WHOLE_GPU_MILLI
        ]

    def _of_several(self) -> frozenset[str]:
        """The GPUs of which somebody has a share beside those of others: such work is under no daemon."""
        own = self._server.host.host_id
        return frozenset(
            uuid
            for record in self._ledger.allocations.values()
            if record["host"] == own and len(record["gpu_uuids"]) > 1 and record["gpu_milli"] < WHOLE_GPU_MILLI
            for uuid in record["gpu_uuids"]
        )

    # -- work that begins

    async def join(self, request: JoinMps) -> str:
        """The pipe directory of the daemon that *request*'s work is to run under; empty: it runs under none."""
        self.look()
        self.shares.has_uid(request.work_id, request.uid, self._server.runtime.monotonic())
        key = MpsKey(request.gpu_uuid, tenant_of(request.user_id), request.uid)
        device = await self._device(request.gpu_uuid)
        if device is not None and _why_not(device):
            self.shares.is_under(request.work_id)  # or as good as that: of such a device nothing is claimed
            return ""
        why = self._why_without(request, device)
        if not why:
            await self._until_it_has_quit(key)
            why, todo = self.shares.join(key, self._held(), self._server.runtime.monotonic())
            self._carry_out(todo)
        if not why:
            why = await self._until_it_runs(key)
        if why:
            self.shares.go_without(request.work_id, self._server.runtime.monotonic())
            self._server.log.warning("%s has a share of %s without MPS: %s", request.work_id, request.gpu_uuid, why)
        else:
            self.shares.is_under(request.work_id)
        self._note()
        self._changed()
        return "" if why else str(self._folders(key).pipe)

    async def _device(self, uuid: str) -> Device | None:
        """The device; waits for it after a start, when the ledger knows of it before its library has listed it."""
        deadline = self._server.runtime.monotonic() + LIST_S
        while True:
            found = next((one for one in self._inventory.devices if one.uuid == uuid), None)
            if found is not None or self._server.runtime.monotonic() >= deadline:
                return found
            await self._server.sleep(LOOK_S)

    async def _until_it_has_quit(self, key: MpsKey) -> None:
        """Return once a daemon that is just ending has ended, or could have: the next one is then started."""
        deadline = self._server.runtime.monotonic() + 3 * QUIT_S
        while self._server.runtime.monotonic() < deadline:
            daemon = self.shares.daemons.get(key)
            if daemon is None or daemon.state is not DaemonState.QUITTING:
                return
            await self._server.sleep(LOOK_S)

    def _why_without(self, request: JoinMps, device: Device | None) -> str:
        if not self.is_on:
            return "gpus.mps is off"
        if request.why_not:
            return request.why_not
        if program_path() is None:
            return f"there is no {PROGRAM} on this host's PATH"
        return "it is not listed" if device is None else ""

    async def _until_it_runs(self, key: MpsKey) -> str:
        """Why it does not run; ``""``: it does."""
        daemon = self.shares.daemons.get(key)
        if daemon is not None and daemon.state is DaemonState.STARTING:
            waiter = Waiter()
            self._starting.setdefault(key, []).append(waiter)
            await waiter
            daemon = self.shares.daemons.get(key)
        if daemon is None or daemon.state is not DaemonState.RUNNING:
            return "its MPS daemon has ended" if daemon is None else daemon.why or "its MPS daemon is just ending"
        return ""

    # -- daemons

    def look(self) -> None:
        """Take what is given out now, and whether daemons live; called with each sample."""
        if not (self.is_on or self._was_on or self.shares.daemons):
            return
        now_s = self._server.runtime.monotonic()
        if self.is_on and not self._was_on:
            for share in self._held():  # it began without, or asks before it begins
                self.shares.go_without(share.work_id, now_s)
        self._was_on = self.is_on
        for key, process in list(self._processes.items()):
            if not lives(process):
                self._lost(key)
        self._carry_out(self.shares.look(self._held(), now_s))
        self._note()

    def _carry_out(self, todo: list[MpsInstruction]) -> None:
        for instruction in todo:
            match instruction:
                case StartDaemon(key):
                    self._server.spawn(self._start(key))
                case QuitDaemon(key):
                    self._server.spawn(self._quit(key))

    async def _start(self, key: MpsKey) -> None:
        folders = self._folders(key)
        why = ""
        process = folders.daemon()  # of an agent that ended before it could note it
        try:
            if process is None:
                process = await self._begin(key, folders)
        except (OSError, TimeoutError) as error:
            why = f"its MPS daemon does not start: {error}"
        now_s = self._server.runtime.monotonic()
        if process is None:
            self.shares.failed(key, why, now_s)
            self._server.log.warning("GPU %s, tenant %s: %s", key.uuid, key.tenant, why)
            self._retry_later()
        else:
            self.shares.started(key, now_s)
            self._keep(key, process)
            self._server.log.info("GPU %s, tenant %s: MPS runs, process %d", key.uuid, key.tenant, process.pid)
        self._note()
        for waiter in self._starting.pop(key, []):
            waiter.set(None)
        self._changed()

    async def _begin(self, key: MpsKey, folders: MpsFolders) -> DaemonProcess:
        """The daemon, once it runs. Raises OSError, TimeoutError."""
        program = program_path()
        if program is None:
            raise FileNotFoundError(f"there is no {PROGRAM} on this host's PATH")
        folders.make()
        begun = begin_daemon(program, key, folders)
        deadline = self._server.runtime.monotonic() + START_S
        while (found := folders.daemon()) is None or begun.poll() is None:
            if begun.poll() not in (None, 0):
                raise OSError(f"exit status {begun.returncode}: {folders.last_words() or 'it logged nothing'}")
            if self._server.runtime.monotonic() >= deadline:
                begun.kill()
                begun.wait()
                raise TimeoutError(f"it was not there after {START_S:g} s")
            await self._server.sleep(LOOK_S)
        return found

    async def _quit(self, key: MpsKey) -> None:
        process, folders, program = self._processes.get(key), self._folders(key), program_path()
        self._unwatch(key)  # what ends now has not died
        asking = None
        if program is not None:
            with suppress(OSError):
                asking = ask_to_quit(program, folders)
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if process is not None and number is not None:
                end(process, number)
            deadline = self._server.runtime.monotonic() + QUIT_S
            while self._server.runtime.monotonic() < deadline and (
                (process is not None and lives(process)) or (asking is not None and asking.poll() is None)
            ):
                await self._server.sleep(LOOK_S)
            if process is None or not lives(process):
                break
        if asking is not None and asking.poll() is None:
            asking.kill()
            asking.wait()
        folders.remove()
        if key.uid and not self._has_work(key):
            folders.clear_shared_memory()
        self._processes.pop(key, None)
        self.shares.gone(key)
        self._note()
        self._changed()

    def _has_work(self, key: MpsKey) -> bool:
        """Whether anything of the tenant's is here, which may have the memory that its daemon shares."""
        own = self._server.host.host_id
        here = (record["user_id"] for record in self._ledger.allocations.values() if record["host"] == own)
        return any(tenant_of(user) == key.tenant for user in here)

    def _keep(self, key: MpsKey, process: DaemonProcess) -> None:
        self._processes[key] = process
        with suppress(OSError):  # an old kernel: the next sample looks
            fd = os.pidfd_open(process.pid)
            self._watched[fd] = key
            self._server.runtime.watch(fd, lambda: self._ended(fd))

    def _ended(self, fd: int) -> None:
        key = self._watched.get(fd)
        if key is not None:
            self._lost(key)

    def _unwatch(self, key: MpsKey) -> None:
        for fd in [fd for fd, one in self._watched.items() if one == key]:
            del self._watched[fd]
            self._server.runtime.unwatch(fd)
            os.close(fd)

    def _lost(self, key: MpsKey) -> None:
        daemon = self.shares.daemons.get(key)
        if key not in self._processes or (daemon is not None and daemon.state is DaemonState.QUITTING):
            return
        self._unwatch(key)
        process = self._processes.pop(key)
        why = f"its MPS daemon, process {process.pid}, has died"
        self._server.log.warning("GPU %s, tenant %s: %s: shares are not held to it", key.uuid, key.tenant, why)
        self._folders(key).remove()
        self.shares.failed(key, why, self._server.runtime.monotonic())
        self._carry_out(self.shares.look(self._held(), self._server.runtime.monotonic()))
        self._retry_later()
        self._note()
        self._changed()

    def _retry_later(self) -> None:
        """Look again when a broken daemon is to be started; the samples may be far between."""
        at, now_s = self.shares.next_retry(), self._server.runtime.monotonic()
        if not self._retrying and at != float("inf"):
            self._retrying = True
            self._server.runtime.after(max(0.0, at - now_s), self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self.look()
        self._retry_later()

    # -- from one start to the next

    def _adopt(self) -> None:
        """Take over the daemons that live from before; those under one that does not are without."""
        now_s = self._server.runtime.monotonic()
        self.shares.without = dict.fromkeys(self._journal.without, now_s)
        self.shares.uids = {work_id: (uid, now_s) for work_id, uid in self._journal.uids.items()}
        for key, process in self._journal.daemons.items():
            self.shares.started(key, now_s)
            self._processes[key] = process
            if lives(process):
                self._keep(key, process)
            # One that does not is found dead by the first look, when it is known who had a share under it.

    def _note(self) -> None:
        try:
            uids = {work_id: uid for work_id, (uid, _) in self.shares.uids.items()}
            self._journal.write(self._was_on, self._processes, self.shares.without, uids)
        except DataDirUnusable as error:
            self._server.log.warning("which MPS daemons run cannot be noted: %s", error)

    def stop(self) -> None:
        """Ask the daemons that nobody has a share under to end; the others go on, as work does."""
        used, program = {share.key for share in self._held()}, program_path()
        for key in list(self._processes):
            self._unwatch(key)
            if key not in used and program is not None:
                folders = self._folders(key)
                with suppress(OSError):
                    if key.uid:  # to be asked as that uid takes longer than we have; nobody has anything there
                        end(self._processes[key], signal.SIGTERM)
                    else:
                        _let_end(ask_to_quit(program, folders))
                    del self._processes[key]
                    folders.remove()
                    if key.uid and not self._has_work(key):
                        folders.clear_shared_memory()
        self._note()

    # -- for people

    def _folders(self, key: MpsKey) -> MpsFolders:
        return MpsFolders(self._server.host.paths, key)

    def figures(self) -> dict[str, float]:
        """The figures for ``/metrics``; none where it is off and nothing of it is left."""
        if not self.is_on and not self._processes:
            return {}
        return {
            "gpu_mps_daemons": float(len(self._processes)),
            "gpu_mps_restarts_total": float(self.shares.restarts_total),
            "gpu_mps_shares_without": float(sum(share.work_id in self.shares.without for share in self._held())),
        }

    @property
    def notes(self) -> list[str]:
        """What people should know: shares that are not held, and why."""
        if not self.is_on:
            return []
        if program_path() is None:
            return [f"gpus.mps is on, and there is no {PROGRAM} on the PATH: shares of GPUs are counted, not enforced"]
        return [
            f"GPU {key.uuid}, tenant {key.tenant}: {daemon.why}: shares are counted, not enforced; it is tried again"
            for key, daemon in self.shares.daemons.items()
            if daemon.why
        ]

    def status(self) -> dict[str, Any]:
        """The daemons and who is under none, as ``actorgrid inspect`` shows it."""
        held = self._held()
        return {
            "on": self.is_on,
            "program": program_path(),
            "daemons": [
                {
                    "gpu": key.uuid,
                    "tenant": key.tenant,
                    "uid": key.uid,
                    "state": daemon.state.value,
                    "pid": self._processes[key].pid if key in self._processes else None,
                    "shares": sum(share.key == key for share in held),
                    "why": daemon.why,
                }
                for key, daemon in list(self.shares.daemons.items())[:SHOWN_MAX]
            ],
            "without": [share.work_id for share in held if share.work_id in self.shares.without][:SHOWN_MAX],
            "restarts_total": self.shares.restarts_total,
        }


def _let_end(asking: subprocess.Popen[bytes]) -> None:
    """Give the command a moment; the daemon has heard it by then, or hears it when the command goes on."""
    try:
        asking.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        asking.returncode = 0  # it waits for the daemon, and we do not


def _why_not(device: Device) -> str:
    """Why no share of *device* can be held by MPS; ``""``: it can."""
    if device.vendor != "nvidia" or device.source != "probed":
        return "MPS is for NVIDIA's GPUs"
    if device.parent or device.cut:
        return "MIG holds its work apart"
    major = (device.compute_capability or "").partition(".")[0]
    return "" if major.isdigit() and int(major) >= VOLTA else "it is older than Volta, or does not say what it is"
