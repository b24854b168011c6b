"""The object store's process, as WorkerManager sees it: started with the first session, taken over by the next start.

It is the child of a shim, as workers are: it outlives the agent for as long as work may, and is started again when it
dies. What lay in it is gone then, which whoever asks for it is told.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from actorgrid.errors import CallTimeout, DiskFull, WorkerLost
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from .attempt_dir import AttemptDir, is_id
from .attempt_specs import object_store_path, standby_spec
from .environment import host_tag, passed_on
from .housekeeping import end_marked
from .isolation.own_sockets import make_door
from .linux import MARK_ATTEMPT, MARK_HOST
from .shim_link import ShimLink
from .work_records import WorkSpec
from .zygote_link import ZygoteLink

KIND = "objects"
BACKOFF_MAX_S = 5.0
REPORT_S = 3.0
FIGURES_S = 2.0
MEMORY_SHARE = 0.3
DISK_SHARE = 0.5


class ObjectStoreProcess:
    """The one object store of this host."""

    def __init__(self, server: Server, zygote: ZygoteLink) -> None:
        self._server = server
        self._zygote = zygote
        self._tag = host_tag(server.host.paths.data_dir)
        self._link: ShimLink | None = None
        self._directory: AttemptDir | None = None
        self._wanted = False
        self._starting = False
        self._stopping = False
        self._failures = 0
        self._reports: dict[int, Waiter] = {}
        self._last_report = 0
        self.starts_total = 0
        self.figures: dict[str, int] = {}  # what the store said last of itself
        self._asks_figures = False

    # -- life

    def recover(self) -> None:
        """Take over the store that lives from before this start."""
        for folder in sorted(self._server.host.paths.workers_dir.iterdir()):
            directory = AttemptDir(folder.parent, folder.name)
            spec = directory.read_spec() if is_id(folder.name) else None
            if spec is None or spec.get("kind") != KIND or directory.read_status() is not None:
                continue
            if directory.shim_pid() is not None and self._directory is None:
                self._wanted = True
                self._starting = True
                self._server.spawn(self._follow(directory, spec))

    def want(self) -> None:
        """Have the store run."""
        if not self._wanted and self.is_enabled:
            self._wanted = True
            self._server.spawn(self._start())

    @property
    def is_enabled(self) -> bool:
        """Whether this host has a store."""
        return bool(self._server.host.settings.objects.enabled)

    def folder_names(self) -> set[str]:
        """The folder of the store that runs, as of the workers."""
        return set() if self._directory is None else {self._directory.path.name}

    def folders(self) -> list[AttemptDir]:
        """The same, with what is in it."""
        return [] if self._directory is None else [self._directory]

    def tick(self) -> None:
        """Let it live for as long as a worker that nobody uses: it may go on so long without its agent."""
        self.renew(self._unused_until())
        if self._link is not None and not self._asks_figures:
            self._asks_figures = True
            self._server.spawn(self._ask_figures())

    async def _ask_figures(self) -> None:
        try:
            self.figures = (await self.report(0)).get("figures", {})
            await self._server.sleep(FIGURES_S)
        except CallTimeout as error:
            self._server.log.warning("%s", error)
        finally:
            self._asks_figures = False

    def renew(self, deadline: float) -> None:
        """Let it live to *deadline*, on CLOCK_BOOTTIME."""
        if self._link is not None:
            self._link.renew(deadline)

    def stop_all(self) -> int:
        """End it, and start no other."""
        self._stopping = True
        if self._link is None:
            return 0
        self._link.send(["stop", "stopped", 0.0])
        return 1

    def leave(self) -> None:
        """Hang up on it without ending it."""
        self._stopping = True
        if self._link is not None:
            self._link.hang_up()

    async def _start(self) -> None:
        if self._starting or self._stopping:
            return
        self._starting = True
        paths = self._server.host.paths
        settings = self._server.host.settings.objects
        worker_id = f"objects-{secrets.token_hex(4)}"
        directory = AttemptDir(paths.workers_dir, worker_id)
        try:
            door = make_door(object_store_path(paths.work_sockets_dir, self._tag))
        except OSError as error:
            self._server.log.warning("no object store: its socket cannot be made: %s", error.strerror)
            await self._again()
            return
        env = {**passed_on(os.environ), MARK_ATTEMPT: worker_id, MARK_HOST: self._tag}
        spec: WorkSpec = {
            **standby_spec(self._server, self._tag, KIND, worker_id, "actorgrid: objects", env),
            "job_id": "",
            "cwd": "/",
            "objects": {
                "socket_path": str(door),
                "host_id": self._server.host.host_id,
                "folder": str(paths.objects_dir),
                "memory_bytes": settings.memory or int(MEMORY_SHARE * memory_of_machine()),
                "disk_bytes": settings.disk or int(DISK_SHARE * free_bytes(paths.data_dir)),
            },
        }
        try:
            directory.create(spec)
            await self._zygote.fork(str(directory.path), self._unused_until())
        except (DiskFull, WorkerLost) as error:
            self._server.log.warning("no object store: %s", error)
            directory.remove()
            await self._again()
            return
        self.starts_total += 1
        await self._follow(directory, spec)

    async def _again(self) -> None:
        self._failures += 1
        await self._server.sleep(min(BACKOFF_MAX_S, 0.05 * 2 ** min(self._failures, 10)))
        self._starting = False
        if not self._stopping:
            self._server.spawn(self._start())

    async def _follow(self, directory: AttemptDir, spec: WorkSpec) -> None:
        link = ShimLink(self._server.runtime, self._said)
        self._directory = directory
        if link.connect(spec):
            self._link = link
            if await link.known:
                link.renew(self._unused_until())
                self._failures = 0
            await link.closed
            self._link = None
        if self._stopping:
            return
        if directory.read_status() is None:  # its shim was killed, and could not clear up
            await end_marked(self._server, self._tag, directory)
        self._server.log.warning("the object store ended: what lay in it is lost; starting another")
        self._directory = None
        self.figures = {}
        await self._again()

    def _unused_until(self) -> float:
        return self._server.runtime.boottime() + float(self._server.host.settings.work.max_isolation_s)

    # -- questions

    def _said(self, frame: list[Any]) -> None:
        match frame:
            case ["report", int(number), dict(report)]:
                waiter = self._reports.pop(number, None)
                if waiter is not None:
                    waiter.set(report)

    async def report(self, objects_max: int) -> dict[str, Any]:
        """What is in the store: an empty dict while there is none. Raises CallTimeout."""
        if self._link is None:
            return {}
        self._last_report += 1
        number, waiter = self._last_report, Waiter()
        self._reports[number] = waiter
        if not self._link.send(["worker", ["report", number, objects_max]]):
            self._reports.pop(number, None)
            return {}
        self._server.runtime.after(REPORT_S, lambda: self._no_report(number))
        found: dict[str, Any] = await waiter
        return found

    def _no_report(self, number: int) -> None:
        waiter = self._reports.pop(number, None)
        if waiter is not None:
            waiter.fail(CallTimeout(f"the object store has not answered for {REPORT_S:g} s"))

    @property
    def pid(self) -> int | None:
        """The process id of the store."""
        return None if self._link is None else self._link.pid


def memory_of_machine() -> int:
    """The memory of this machine, or of the cgroup that it is bounded by, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            return min(total, int(text))
    return total


def free_bytes(folder: Path) -> int:
    """What is free on the file system of *folder*."""
    there = os.statvfs(folder)
    return there.f_bavail * there.f_frsize
