"""``actorgrid up``: from an empty directory to a running host, and back.

The process in front holds the lock, starts the tree, tells people where it is, and waits. It serves nothing itself.
When the tree dies under it (someone killed the admin or the supervisor) it builds a new one, at most 3 times in 60 s.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, time
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from setproctitle import getproctitle, setproctitle

import actorgrid
from actorgrid.actors.files.identity import next_incarnation, read_token, write_atomically
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.configs.start_options import StartOptions
from actorgrid.errors import ActorGridError, PeerGone, StartFailed
from actorgrid.supervisors.child import ChildSpec, check_children
from actorgrid.supervisors.tree import DescriptorReady, Tree, TreeFailed, TreeGone, TreeSaid, TreeStarted
from actorgrid.supervisors.wire import TreeSettings
from actorgrid.transports.unix.system import sweep

from ..work.newest_grant import newest_grant
from .aiohttp_server import load_server
from .children import CHILDREN, of_a_cluster
from .context import HostContext
from .idle_memory import give_back_file_pages, ready_to_fork
from .left_sockets import remove_left
from .lock import AgentLock, handed_down
from .logs import AgentLog, logging_to
from .messages import HostAddress, HostRestarts, HostStopped
from .start_checks import beginning_note, clock_note, refuse_what_is_not_here, warning_of_root

if TYPE_CHECKING:
    from ..security.host_material import HostMaterial
    from .enrolment import Enrolment, JoinOrder

REBUILDS_MAX = 3
REBUILD_PERIOD_S = 60.0
_ROTATE_EVERY_S = 2.0
_STOP_MARGIN_S = 15.0
_STOP_S_MAX = 4 * 3600.0
_SUPERVISOR = "actorgrid.actors.host.supervisor:HostSupervisor"
# Loaded once, before the fork, and shared by all processes: each would cost every process its own copy.
_PRELOAD = ("aiohttp.web", "uvloop", "pydantic", "msgpack", "prometheus_client", "psutil", "sqlite3")
# What servers load only on a host of a cluster, and then several of them.
_PRELOAD_OF_A_CLUSTER = ("actorgrid.actors.consensus.raft_links", "actorgrid.actors.gateway.server.tls_listener")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = logging.getLogger("actorgrid.boot")


def run_host(
    settings: Settings,
    data_dir: Path,
    on_ready: Callable[[dict[str, Any]], None] | None = None,
    children: Sequence[ChildSpec] | None = None,
    join: JoinOrder | None = None,
    say: Callable[[str], None] = lambda _: None,
    again: Callable[[], NoReturn] | None = None,
    options: StartOptions | None = None,
) -> None:
    """Run a host until SIGTERM, SIGINT or SIGHUP stops it in order; a second signal stops it at once.

    *again* takes the place of this process when the host is to restart, with the lock on its directory held all the
    while; without it, a restart is one of the servers only, with the code that is loaded.

    *on_ready* gets the content of agent.json once all servers are up, and the ``notes`` that *say* got. *join*: become
    a member of that cluster first, and tell *say* how far it is. *options*: what it was told, kept for its next start.
    *children*: other servers than a host has. Call it in the main thread, before the process has other threads.

    Raises AlreadyRunning, DataDirUnusable, what a server's first start raised (PortInUse, LogCorrupted, ...), what a
    join was refused for, RestartIntensityExceeded, or StartFailed.
    """
    if threading.current_thread() is not threading.main_thread():
        raise StartFailed(
            "a host must be started from the main thread",
            found=threading.current_thread().name,
            hint="its processes die with the thread that made them; use a process of its own",
        )
    as_root = warning_of_root(os.geteuid(), settings.security.work_as_root)
    paths = HostPaths(Path(data_dir).absolute())
    if not handed_down():  # a restart in place has been through this, and stopping here would end what it is to keep
        refuse_what_is_not_here(settings, paths)
    paths.make()
    monitoring = settings.monitoring
    notes: list[str] = []
    with AgentLock(paths.lock_file) as lock:
        if lock.handed_down:
            join = None  # it was let in by the start before this one
        # Under the lock: who finds that an agent runs on this directory must not write into its log, nor rotate it.
        with logging_to(paths.log_file, monitoring.log_max_bytes, monitoring.log_level) as lines:
            if as_root is not None:
                notes.append(as_root)
                say(as_root)
                log.warning("%s", as_root)
            restarts = _run(settings, paths, children, lines, on_ready, join, say, again is not None, options, notes)
        if restarts and again is not None:
            lock.hand_down()
            again()


def _run(
    settings: Settings,
    paths: HostPaths,
    children: Sequence[ChildSpec] | None,
    lines: AgentLog,
    on_ready: Callable[[dict[str, Any]], None] | None,
    join: JoinOrder | None,
    say: Callable[[str], None],
    may_exec: bool,
    options: StartOptions | None,
    notes: list[str],
) -> bool:
    """Run the host; whether it ended to start again."""
    found = [clock_note(paths, time())]
    if join is None:
        found.append(beginning_note(paths, bool(settings.cluster.listen)))
    for note in filter(None, found):
        notes.append(note)
        log.warning("%s", note)
        say(note)
    left = remove_left(paths)
    if left:
        log.info("removed %d directories of sockets of hosts that are gone", left)
    taken = _take_place(paths, settings, join, say)
    if options is not None:
        write_atomically(paths.start_file, options.encoded())
    specs = check_children(children or (CHILDREN if taken is None else of_a_cluster(settings)))
    title = getproctitle()
    setproctitle("actorgrid: up")
    read_token(paths.token_file)
    preload(specs, taken is not None)
    ready_to_fork()
    gc.enable()
    try:
        return _Agent(settings, paths, specs, on_ready, lines, taken, may_exec, notes).run()
    finally:
        for boot in paths.runtime_dir.glob("boot-*"):
            sweep(boot)
        paths.leave()
        gc.unfreeze()
        setproctitle(title)


def _take_place(
    paths: HostPaths, settings: Settings, join: JoinOrder | None, say: Callable[[str], None]
) -> tuple[Enrolment, HostMaterial] | None:
    if join is None and not settings.cluster.listen and not paths.cluster_file.exists():
        return None  # alone: nothing of certificates is loaded
    from .enrolment import enrol

    return enrol(paths, settings, join, say)


def preload(specs: Sequence[ChildSpec], of_a_cluster: bool) -> None:
    """Load what the servers of *specs* load, and what they load only on a host of a cluster. Raises StartFailed."""
    more = _PRELOAD_OF_A_CLUSTER if of_a_cluster else ()
    load_server()
    for module in (*_PRELOAD, *more, "actorgrid.actors.host.supervisor", *(spec.module for spec in specs)):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise StartFailed(
                f"{module} cannot be loaded: {error}",
                asked=module,
                hint="install actorgrid again",
            ) from error


class _Agent:
    """The process in the foreground."""

    def __init__(
        self,
        settings: Settings,
        paths: HostPaths,
        specs: tuple[ChildSpec, ...],
        on_ready: Callable[[dict[str, Any]], None] | None,
        lines: AgentLog,
        taken: tuple[Enrolment, HostMaterial] | None = None,
        may_exec: bool = False,
        notes: Sequence[str] = (),
    ) -> None:
        self._may_exec = may_exec
        self._notes = notes
        self._restarts = False
        self._settings = settings
        self._paths = paths
        self._specs = specs
        self._on_ready = on_ready
        self._lines = lines
        self._taken = taken
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signals: deque[int] = deque(maxlen=16)
        self._stopping = ""
        self._rotated_at = monotonic()

    def run(self) -> bool:
        """Run until stopped; whether that was to start again, as another process image."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        deaths: deque[float] = deque()
        try:
            while not self._one_boot():
                if self._restarts:
                    self._restarts, self._stopping = False, ""
                    log.info("the servers start again")
                    continue
                deaths.append(monotonic())
                while deaths[0] < monotonic() - REBUILD_PERIOD_S:
                    deaths.popleft()
                if len(deaths) > REBUILDS_MAX:
                    raise StartFailed(
                        f"the actor system died {len(deaths)} times in {REBUILD_PERIOD_S:g} s",
                        hint="something kills its processes: see the system's log (out of memory?) and agent.log",
                    )
                log.error("the actor system died; it is built again")
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake)
        return self._restarts

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)
        os.eventfd_write(self._wake, 1)

    def _one_boot(self) -> bool:
        """Build a tree and stay until it is gone: ``True`` when it was stopped, ``False`` when it died.

        Raises when it gave up.
        """
        for old in self._paths.runtime_dir.glob("boot-*"):
            sweep(old)
        host_id, incarnation = next_incarnation(self._paths)
        boot_id = uuid.uuid4().hex[:12]
        hostname = self._settings.cluster.host_name or socket.gethostname()
        context = HostContext(self._paths, self._settings, host_id, hostname, incarnation, boot_id)
        context.newest_grant = newest_grant(self._paths.attempts_dir)
        if self._taken is not None:
            context.enrolment, material = self._taken
            context.voter = context.enrolment.plan(self._paths, host_id, material)
        log.info("host %s starts, incarnation %d, boot %s", host_id, incarnation, boot_id)
        try:
            tree = Tree(self._paths.boot_dir(boot_id), (self._wake,), self._tree_settings())
        except PeerGone as error:
            log.error("the actor system died while it started: %s", error)
            return False
        try:
            tree.start("host", _SUPERVISOR, context, self._specs)
            give_back_file_pages()
            self._follow(tree, boot_id, context.restart_mark)
        except PeerGone as error:
            log.error("the actor system died: %s", error)
        finally:
            # First: to end the tree may take a while, and nobody is to be sent to an address where nobody answers.
            self._paths.agent_file.unlink(missing_ok=True)
            tree.close()
        return bool(self._stopping) and not (self._restarts and not self._may_exec)

    def _tree_settings(self) -> TreeSettings:
        monitoring, performance = self._settings.monitoring, self._settings.performance
        return TreeSettings(monitoring.beat_interval_s, monitoring.hang_margin_s, performance.actors_max)

    def _follow(self, tree: Tree, boot_id: str, restart_mark: Path) -> None:
        up, url = False, ""
        failure: ActorGridError | None = None
        deadline: float | None = None
        while True:
            event = tree.next_event(_ROTATE_EVERY_S)
            self._rotate()
            if isinstance(event, TreeGone):
                break
            if isinstance(event, TreeStarted):
                up = True
                self._announce(url, boot_id, first=True)
            elif isinstance(event, TreeSaid) and isinstance(event.message, HostAddress):
                url = event.message.url
                if up:
                    self._announce(url, boot_id, first=False)
            elif isinstance(event, TreeSaid) and isinstance(event.message, HostRestarts):
                if not self._stopping:
                    log.info("host restarts: asked for by %s", event.message.by)
                    self._restarts, self._stopping = True, "restart"
                    # Before the stop: where the mark lies, the worker manager leaves its work running as it stops; else
                    # it may end it.
                    write_atomically(restart_mark, b"%d" % event.message.absence_index)
                    deadline = monotonic() + self._stop_limit_s()
                    tree.stop(self._stopping)
            elif isinstance(event, TreeSaid) and isinstance(event.message, HostStopped):
                self._stopping = event.message.reason
            elif isinstance(event, TreeFailed):
                failure = failure or event.error
                deadline = deadline or monotonic() + _STOP_MARGIN_S
            elif isinstance(event, DescriptorReady):
                asked_before = bool(self._stopping)
                if self._take_signals() and asked_before:
                    log.warning("a second signal: everything is killed")
                    return
                if self._stopping and not asked_before:
                    deadline = monotonic() + self._stop_limit_s()
                    tree.stop(self._stopping)
            if deadline is not None and monotonic() > deadline:
                log.error("the actor system did not stop in time and is killed")
                break
        if failure is not None and not self._stopping:
            self._stopping = failure.code
            raise failure
        if self._stopping:
            log.info("host stopped: %s", self._stopping)

    def _take_signals(self) -> int:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return 0
        count = 0
        while self._signals:
            number = self._signals.popleft()
            count += 1
            self._restarts = False  # who sends a signal wants it to stop
            self._stopping = self._stopping or signal.Signals(number).name
        return count

    def _stop_limit_s(self) -> float:
        limits = [spec.shutdown_s() for spec in self._specs]
        if any(limit is None for limit in limits):
            return _STOP_S_MAX
        # Their sum, since they are stopped one after the other.
        return min(_STOP_S_MAX, sum(limit or 0.0 for limit in limits) + _STOP_MARGIN_S)

    def _announce(self, url: str, boot_id: str, first: bool) -> None:
        info: dict[str, Any] = {
            "url": url,
            "pid": os.getpid(),
            "boot_id": boot_id,
            "version": actorgrid.__version__,
            "python": ".".join(str(part) for part in sys.version_info[:3]),
        }
        if self._taken is not None:
            info |= {"cluster_id": self._taken[0].cluster_id, "node": self._taken[0].node}
        write_atomically(self._paths.agent_file, (json.dumps(info) + "\n").encode())
        log.info("host is %s at %s", "up" if first else "now", url or "no address")
        if first and self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready({**info, "notes": list(self._notes)})

    def _rotate(self) -> None:
        if monotonic() - self._rotated_at >= _ROTATE_EVERY_S:
            self._rotated_at = monotonic()
            self._lines.rotate_if_large()
