"""Servers that go to the limits, and what the tests of the limits do with a tree of them.

The host of these trees is a folder, as text; what happens to the servers is in its file ``notes``, in order. Under
``run_host`` it is the data directory.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import psutil

from actorgrid.errors import MailboxFull
from actorgrid.supervisors.child import ChildSpec, SupervisorFlags
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.server import Server, handles
from actorgrid.supervisors.supervisor import Supervisor, WhichChildren
from actorgrid.supervisors.tree import Tree, TreeEvent, TreeGone
from actorgrid.supervisors.wire import TreeSettings
from tests import processes

HERE = "tests.otp.limits_servers:"
DEADLINE_S = 60.0
CLONE_NEWNS = 0x20000
MIB = 2**20
KILLED = ExitReason("killed", "by itself")


# -- what tests do

until = partial(processes.until, within_s=DEADLINE_S)


def worker(name: str, kind: str = "Worker", **fields: Any) -> ChildSpec:
    return ChildSpec(name, HERE + kind, **fields)


def branch(name: str, flags: SupervisorFlags, *children: ChildSpec, kind: str = "Branch", **fields: Any) -> ChildSpec:
    return ChildSpec(name, HERE + kind, type="supervisor", arguments=(flags, children), **fields)


@contextmanager
def running(
    folder: Path,
    *children: ChildSpec,
    flags: SupervisorFlags | None = None,
    kind: str = "Branch",
    settings: TreeSettings | None = None,
    boot: Path | None = None,
) -> Iterator[Tree]:
    """A tree whose root, called ``root``, has these children; all are up."""
    with Tree(boot, settings=settings or TreeSettings()) as tree:
        tree.up(HERE + kind, str(folder), flags or SupervisorFlags(intensity=100), children)
        yield tree


def ask(tree: Tree, to: str | Ref, what: str, *args: Any, timeout_s: float = DEADLINE_S) -> Any:
    return tree.call(to, Ask(what, args), timeout_s)


def children_of(tree: Tree, supervisor: str | Ref = "root") -> dict[str, dict[str, Any]]:
    return {child["name"]: child for child in tree.call(supervisor, WhichChildren(), DEADLINE_S)}


def lives(tree: Tree, supervisor: str = "root") -> dict[str, tuple[int, int]]:
    """Which process each child is, and which start of it: equal twice when nothing happened to any in between."""
    return {name: (child["pid"], child["restarts"]) for name, child in children_of(tree, supervisor).items()}


def to_its_end(tree: Tree) -> list[TreeEvent]:
    """All that is said until the tree is gone."""
    deadline, events = time.monotonic() + DEADLINE_S, []
    while True:
        event = tree.next_event(max(0.0, deadline - time.monotonic()))
        assert event is not None, f"the tree did not end in {DEADLINE_S:g} s; it said {events}"
        if isinstance(event, TreeGone):
            return events
        events.append(event)


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().splitlines() if path.exists() else []


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def peak_mib(pid: int) -> float:
    """The most memory the process ever had at a time."""
    return _memory_mib(pid, "VmHWM")


def resident_mib(pid: int) -> float:
    """The memory the process has now."""
    return _memory_mib(pid, "VmRSS")


def _memory_mib(pid: int, which: str) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(f"{which}:")) / 1024


# -- the servers


@dataclass(frozen=True)
class Ask:
    what: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Numbered:
    n: int
    data: bytes = b""


class Obedient(Server):
    """Does what ``Ask`` says."""

    @handles(Ask)
    async def obey(self, request: Ask) -> Any:
        return await getattr(self, f"do_{request.what}")(*request.args)

    def note(self, what: str) -> None:
        folder = self.host if isinstance(self.host, str) else self.host.paths.data_dir
        with open(Path(folder) / "notes", "a", encoding="utf-8") as file:
            file.write(f"{self.me.name} {what}\n")

    async def do_pid(self) -> int:
        return os.getpid()

    async def do_me(self) -> Ref:
        return self.me

    async def do_hoard(self, leave: int = 0) -> int:
        """Use up the descriptors but for *leave*; gives how many were taken."""
        self._hoard: list[int] = []
        with suppress(OSError):
            while True:
                self._hoard.append(os.open("/dev/null", os.O_RDONLY))
        await self.do_give_back(leave)
        return len(self._hoard)

    async def do_give_back(self, count: int) -> None:
        for _ in range(count):
            os.close(self._hoard.pop())

    async def do_give_all_back(self) -> None:
        await self.do_give_back(len(self._hoard))

    async def do_limit_descriptors(self, limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    async def do_limit_file_size(self, limit: int) -> None:
        """What is written into a file ends there, a memory file too: "File too large"."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


class Worker(Obedient):
    """Notes its start and stop, and talks to others when told to."""

    name: ClassVar[str] = "worker"

    def start(self) -> Any:
        self.note("start")

    def stop(self, reason: str) -> None:
        self.note("stop")

    def peer_restarted(self, name: str) -> None:
        self.note(f"hears of {name}")

    async def do_forward(self, to: str | Ref, request: Any, timeout_s: float = DEADLINE_S) -> Any:
        return await self.call(to, request, timeout_s)

    async def do_forward_and_kill(self, to: str, request: Any, timeout_s: float, pid: int) -> Any:
        """The callee is killed when it has the request."""
        answer = self.call(to, request, timeout_s)
        os.kill(pid, signal.SIGKILL)
        return await answer

    async def do_forward_and_ask(self, to: str, request: Any, other: str, then: Any) -> Any:
        """Ask *other* for something when the request is on its way, and give the answer to the first."""
        answer = self.call(to, request, DEADLINE_S)
        await self.call(other, then, DEADLINE_S)
        return await answer

    async def do_forward_later(self, to: str, request: Any, gate: str) -> Any:
        """The gate is opened when the request is sent."""
        answer = self.call(to, request, DEADLINE_S)
        os.unlink(gate)
        return await answer

    async def do_cast(self, to: str | Ref, message: Any, times: int = 1) -> int:
        """How many of them were taken."""
        return sum(self.cast(to, message) for _ in range(times))

    async def do_never(self) -> None:
        await self.sleep(3600.0)

    async def do_crash(self) -> None:
        raise AssertionError("an invariant broke")

    async def do_big(self, size: int) -> bytes:
        return os.urandom(MIB) * (size // MIB)

    async def do_digest(self, data: bytes) -> str:
        return sha256(data).hexdigest()

    async def do_exchange(self, to: str, size: int) -> tuple[str, str]:
        """Send so much and have as much sent: what was sent, and what they say that they got."""
        data = os.urandom(MIB) * (size // MIB)
        there = await self.call(to, Ask("digest", (data,)), DEADLINE_S)
        back = await self.call(to, Ask("big", (size,)), DEADLINE_S)
        return sha256(data).hexdigest() + str(size), there + str(len(back))


class DiesAtOnce(Worker):
    """Comes up and dies, always; under ``run_host`` once there is a file ``die`` in the data directory."""

    name: ClassVar[str] = "dies"

    def start(self) -> None:
        super().start()
        if isinstance(self.host, str) or (Path(self.host.paths.data_dir) / "die").exists():
            self.runtime.after(0.0, lambda: os._exit(3))


class Held(Worker):
    """Its start fails while there is a file ``broken``, and goes on while there is a file ``slow``."""

    async def start(self) -> None:
        super().start()
        if (Path(self.host) / "broken").exists():
            raise MailboxFull("what it needs is not there")
        while (Path(self.host) / "slow").exists():
            await self.sleep(0.01)


class Branch(Obedient, Supervisor):
    """A supervisor whose spec gives flags and children."""

    name: ClassVar[str] = "branch"

    def init(self, *arguments: Any) -> tuple[SupervisorFlags, Any]:
        flags, children = arguments
        return flags, children


class FullSharedMemory(Branch):
    """Sees, as all its children do, a /dev/shm of its own that is full. Its start fails where that is not allowed."""

    def init(self, *arguments: Any) -> tuple[SupervisorFlags, Any]:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/dev/shm"], check=True)
        with suppress(OSError):
            with open("/dev/shm/full", "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        return super().init(*arguments)

    async def do_shared_memory_left(self) -> int:
        found = os.statvfs("/dev/shm")
        return found.f_bfree * found.f_bsize


class Flooder(Worker):
    """Sends numbered messages as fast as it can, and counts those it gets."""

    max_handler_s: ClassVar[float] = 120.0

    def start(self) -> None:
        super().start()
        self._taken = array("L")
        self._refused = array("L")
        self._got = array("L")
        self._bytes = 0
        self._sending = False
        self._rooms = 0

    async def do_flood(self, to: str, count: int, size: int, patient: bool, turns: bool = True) -> None:
        """Begin to send *count* messages. Patiently: await room. With turns: see to others now and then."""
        self._sending = True
        self.spawn(self._flood(to, count, bytes(size), patient, turns))

    async def _flood(self, to: str, count: int, data: bytes, patient: bool, turns: bool) -> None:
        await self.sleep(0.0)
        for n in range(count):
            taken = self.cast(to, Numbered(n, data))
            while patient and not taken:
                self._rooms += 1
                await self.await_capacity(to)
                taken = self.cast(to, Numbered(n, data))
            (self._taken if taken else self._refused).append(n)
            if patient and n % 200 == 199:
                await self.await_capacity(to)
            if turns and n % 1000 == 999:
                await self.sleep(0.0)
        # It comes after all that was taken, so its answer says that they were handled.
        while True:
            try:
                await self.call(to, Ask("pid"), DEADLINE_S)
                break
            except MailboxFull:
                await self.await_capacity(to)
        self._sending = False

    async def do_fill(self, to: Ref, count: int, size: int, pid: int) -> None:
        """Freeze *to* and send it *count* messages."""
        os.kill(pid, signal.SIGSTOP)
        data = bytes(size)
        for n in range(count):
            (self._taken if self.cast(to, Numbered(n, data)) else self._refused).append(n)

    async def do_thaw(self, to: Ref, pid: int) -> Any:
        """Let it go on; its answer says that it has handled what was taken."""
        os.kill(pid, signal.SIGCONT)
        await self.await_capacity(to)
        return await self.call(to, Ask("pid"), DEADLINE_S)

    @handles(Numbered)
    def _numbered(self, message: Numbered) -> None:
        self._got.append(message.n)
        self._bytes += len(message.data)

    async def do_progress(self) -> tuple[int, bool]:
        """How many messages came, and whether we are still at it."""
        return len(self._got), self._sending

    async def do_sent(self) -> tuple[int, str, int, int]:
        """How many were taken and which, how many refused, how often we met a full queue."""
        return len(self._taken), _which(self._taken), len(self._refused), self._rooms

    async def do_got(self) -> tuple[int, str, int]:
        """How many messages came and which, in the order they came, and how many bytes."""
        return len(self._got), _which(self._got), self._bytes


def _which(numbers: array[int]) -> str:
    return sha256(numbers.tobytes()).hexdigest()


class Ends(Worker):
    """Each way to end has a line of its own: which of them coverage counts, a test looks up by their marks."""

    def stop(self, reason: str) -> None:
        self.note("stop")  # counted: stop

    async def do_end_by_leaving(self) -> None:
        self.leave()  # counted: leave

    async def do_end_by_exit(self) -> None:
        os._exit(0)  # counted: exit

    async def do_end_by_crash(self) -> None:
        raise AssertionError("an invariant broke")  # counted: crash

    async def do_end_by_exit_signal(self) -> None:
        self.send_exit(self.me, KILLED)  # counted: exit signal

    async def do_end_by_terminate(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # counted: SIGTERM

    async def do_end_by_kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)  # lost: SIGKILL

    async def do_end_by_segfault(self) -> None:
        ctypes.string_at(0)  # lost: segfault

    async def do_end_by_hanging(self) -> None:
        while True:
            signal.pause()  # lost: watchdog


def end_in_every_way(folder: str) -> None:
    """A tree of those, of which each ends in another way; for a process that is measured."""
    ways = [name.removeprefix("do_end_by_") for name in vars(Ends) if name.startswith("do_end_by_")]
    children = [worker(way, "Ends", restart="temporary", max_handler_s=0.2) for way in ways]
    settings = TreeSettings(beat_interval_s=0.1, hang_margin_s=0.3)
    with running(Path(folder), worker("stopped", "Ends"), *children, settings=settings) as tree:
        for way in ways:
            tree.cast(way, Ask(f"end_by_{way}"))
        until(lambda: set(children_of(tree)) == {"stopped"}, "all but one have ended")
