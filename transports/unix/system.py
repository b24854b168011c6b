"""The processes of an actor system: the admin, the actors, and the view of the process that started it all.

The process side of ``thespian.py`` (which see for what differs from Thespian's own bases).
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import pickle  # nosec B403 - to write; what is read comes through thespian_unix
import resource
import select
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.context import ForkProcess
from multiprocessing.popen_fork import Popen
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from setproctitle import setproctitle
from thespian.actors import ActorSystem, ActorSystemException, ChildActorExited, WatchMessage
from thespian.system.actorManager import ActorManager
from thespian.system.messages.multiproc import EndpointConnected
from thespian.system.multiprocCommon import ChildInfo, MultiProcReplicator, detach_child, multiprocessCommon
from thespian.system.systemAdmin import ThespianAdmin
from thespian.system.systemCommon import actorStartupFailed
from thespian.system.transport import ReceiveEnvelope, TransmitIntent
from thespian.system.utilis import thesplog_control

from actorgrid.errors import PeerGone, StartFailed

from ..stack_room import with_stack_room
from .thespian import PARCEL, PICKLE, Parcel, UnixEndpoint, UnixTransport, address_of, name_of, set_boot

START_S = 60.0
GONE_S = 10.0
_PR_SET_PDEATHSIG = 1
_FATAL_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
_LIBC = ctypes.CDLL(None, use_errno=True)

log = logging.getLogger("actorgrid.transport")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; leaves at once if that happened already."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # After the call, which says nothing of a parent that has ended already: asked before, its end in between would be
    # missed.
    if os.getppid() != parent_pid:
        os._exit(1)


class _UnixProcesses(MultiProcReplicator):  # type: ignore[misc]
    """Starting and burying child processes, for actors and the admin alike."""

    def _prepare(self) -> None:
        self.asLogger = self.transport.myAddress  # never used: processes log for themselves
        self._sigchld = False
        self._children_by_pid: dict[int, Any] = {}
        self._child_procs = self._children_by_pid.values()  # what Thespian goes through
        self._waiting_for_subtree: set[int] = set()
        self._start_error: OSError | None = None

    def _startChildActor(self, childAddr: Any, *arguments: Any, **options: Any) -> None:
        self._start_error = None
        try:
            self._make_child(childAddr, *arguments, **options)
        except OSError as error:
            self._start_error = error  # Thespian logs it and goes on: ``child_pid`` raises it again
            raise

    def _make_child(
        self, childAddr: Any, childClass: Any, globalName: Any, parentAddr: Any, notifyAddr: Any, **options: Any
    ) -> None:
        endpoint = self.transport.prepEndpoint(childAddr, self.capabilities)
        # Before the fork: a first child that ends at once would not be heard of.
        if not self._sigchld:
            signal.signal(signal.SIGCHLD, self.signalChildDied)
            self._sigchld = True
        arguments = (
            self.transport,
            endpoint,
            childClass,
            globalName,
            parentAddr,
            notifyAddr,
            self._adminAddr,
            options.get("childRequirements"),
            self.capabilities,
            self.mpcontext,
        )
        try:
            process = _fork(_run_actor, arguments, f"actor {endpoint.name}")
        except OSError:
            endpoint.listener.close()
            (self.transport.mesh.folder / endpoint.name).unlink(missing_ok=True)
            raise
        detach_child(process)
        child = ChildInfo(childAddr, childClass, process, endpoint.addrInst)
        child.childRealAddr = address_of(endpoint.name)
        self._children_by_pid[process.pid] = child
        self.transport.connectEndpoint(endpoint)
        # The address is known and listens: messages to the child need not wait for its first word.
        self._addrManager.associateUseableAddress(self.myAddress, endpoint.addrInst, address_of(endpoint.name))

    def _childExited(self, _address: Any) -> None:
        """Do nothing: ``childDied`` buries children, whoever mentions them."""

    def childDied(self) -> bool:
        """Tell one ChildActorExited for each child that ended, once its subtree is gone if it has one.

        Called after SIGCHLD.
        """
        gone = [child for pid in self._ended() if (child := self._subtree_gone(pid)) is not None]
        if gone:
            self._bury(gone)
        return True

    def _ended(self) -> list[int]:
        """The pids of ended children that are news; not reaped, so that no other process can get such a pid yet."""
        found = _ended_child(os.P_ALL, 0)
        news: list[int] = []
        if found is None:
            return news
        if found in self._children_by_pid and found not in self._waiting_for_subtree:
            news.append(found)
            if len(self._children_by_pid) == 1:
                return news
        # There may be more, and the kernel names the first only: that may be another's process, not reaped yet.
        for pid in self._children_by_pid:
            if pid != found and pid not in self._waiting_for_subtree and _ended_child(os.P_PID, pid) is not None:
                news.append(pid)
        return news

    def _subtree_gone(self, pid: int) -> Any:
        """The child to bury now; ``None`` while processes of its subtree live: the loop says when they are gone.

        The sentinel of ``multiprocessing`` is a pipe that a child holds open, and whatever it forks, without knowing:
        its end of file says that all are gone.
        """
        child = self._children_by_pid[pid]
        if not _has_subtree(child.childClass) or select.select([child.childProc.sentinel], [], [], 0)[0]:
            return child
        loop, sentinel = self.transport.mesh.loop, child.childProc.sentinel
        self._waiting_for_subtree.add(pid)

        def finish(in_time: bool) -> None:
            if pid not in self._waiting_for_subtree:
                return
            if not in_time:
                log.error("processes of %s are left %g s after it ended", name_of(child.childRealAddr), GONE_S)
            self._waiting_for_subtree.discard(pid)
            loop.remove(sentinel)
            self._bury([child])

        loop.add(sentinel, select.EPOLLIN, lambda _events: finish(True))
        loop.after(GONE_S, lambda: finish(False))
        return None

    def _bury(self, children: list[Any]) -> None:
        mesh = self.transport.mesh
        names = [name_of(child.childRealAddr) for child in children]
        remove_sockets(mesh.folder, names)
        for child, name in zip(children, names, strict=True):
            process = child.childProc
            notice = ChildActorExited(child.childRealAddr)
            notice.exit_status, notice.pid = process.exitcode, process.pid
            del self._children_by_pid[process.pid]
            process.close()
            mesh.read_rest(name)  # its last words come before the notice
            self.transport.notify(notice)

    def child_pid(self, address: Any) -> int | None:
        """The process of the child made last; ``None`` when none was to be made any more. Raises the OSError that
        kept it from being made."""
        error, self._start_error = self._start_error, None
        if error is not None:
            raise error.with_traceback(None)
        newest_first = reversed(self._children_by_pid.items())
        return next((pid for pid, child in newest_first if child.childAddr == address), None)

    def _send_intent(self, intent: Any, curtime: Any = None) -> None:
        """As Thespian's, without its throttle (0.1 s of sleep above 4,480 messages a second) and without having every
        message written out for a debug log that nobody reads."""
        intent.identify = _unnamed
        self._send_intent_to_transport(intent)


def _unnamed() -> str:
    return "a message"


def _ended_child(kind: int, pid: int) -> int | None:
    """The pid of a child that has ended and is not reaped; it stays so. ``None`` when there is none."""
    try:
        found = os.waitid(kind, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # no children; or somebody else reaped this one
        return pid if kind == os.P_PID else None
    return None if found is None else found.si_pid


def _loaded_class(kind: Any) -> Any:
    """The class of an actor, of which the admin gets the name; ``None`` when it is not loaded here."""
    if not isinstance(kind, str):
        return kind
    module, _, name = kind.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def _has_subtree(kind: Any) -> bool:
    # What the admin has not loaded, its children cannot be.
    return bool(getattr(_loaded_class(kind), "has_subtree", False))


def remove_sockets(folder: Path, names: list[str]) -> None:
    """Remove the sockets of these processes and of all that they made: nobody listens there any more."""
    exact, prefixes = set(names), tuple(f"{name}." for name in names)
    with os.scandir(folder) as entries:
        for entry in entries:
            if (entry.name in exact or entry.name.startswith(prefixes)) and not entry.is_symlink():
                (folder / entry.name).unlink(missing_ok=True)


class UnixAdmin(_UnixProcesses, ThespianAdmin):  # type: ignore[misc]
    """Thespian's admin; it leaves with its last actor."""

    def _handleChildExited(self, address: Any) -> Any:
        result = super()._handleChildExited(address)
        if not self._children_by_pid and not self.isShuttingDown():
            self.shutdown_completed = True
            self.transport.abort_run(drain=True)
        return result

    def _cleanupAdmin(self, finish_cleanup: Callable[[], None]) -> None:
        finish_cleanup()


class UnixManager(_UnixProcesses, ActorManager):  # type: ignore[misc]
    """Thespian's manager of one actor, with a short way for parcels, watches and wakeups."""

    def _createInstance(self) -> None:
        """As Thespian's, without reading the signature of an actor that takes nothing.

        It would be read twice, by 30 functions of ``inspect`` and ``warnings`` that no process needs otherwise: 0.1 MB
        of copied pages in each, for good.
        """
        kind = _loaded_class(self._actorClass)
        if kind is None or not getattr(kind, "takes_nothing", False):
            super()._createInstance()
            return
        self.actorInst = kind()
        self.actorInst._myRef = self

    def handleMessages(self, envelope: Any) -> Any:
        """Handle one message. Actors that take parcels let no exception out (``supervisors/actor.py``)."""
        message = envelope.message
        if type(message) is not Parcel or self._receiveQueue or getattr(self, "_exiting", False):
            return super().handleMessages(envelope)
        watch = self.actorInst.receiveMessage(message, envelope.sender)
        self.transport.set_watch(watch.filenos if watch is not None else [])
        return True

    def actor_send(self, address: Any, message: Any) -> None:
        """Send for the actor. A parcel that cannot be sent raises here: PeerGone, MailboxFull or FrameTooLarge."""
        if type(message) is Parcel:
            self.transport.mesh.post(address.addressDetails.name, PARCEL, message.data)
            return
        super().actor_send(address, message)

    def _sayGoodbye(self) -> None:
        """Do nothing: the parent hears of our end from the kernel, once."""


class _Popen(Popen):
    """Popen that leaves no pipe open when the second pipe or the fork fails, as CPython's does up to 3.14."""

    def _launch(self, process_obj: BaseProcess) -> None:
        try:
            super()._launch(process_obj)  # type: ignore[misc]
        except OSError as error:
            # Only the frame that failed knows its pipes. The child never comes here: it leaves by ``os._exit``.
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            made = {} if trace is None else trace.tb_frame.f_locals
            for end in ("parent_r", "child_w", "child_r", "parent_w"):
                if end in made:
                    os.close(made[end])
            raise


class _Process(ForkProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Popen:
        return _Popen(process_obj)


def _fork(target: Callable[..., None], arguments: tuple[Any, ...], name: str) -> Any:
    process = _Process(target=target, args=(os.getpid(), *arguments), name=name)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    process.start()
    return process


def _enter_process(parent_pid: int, parent: UnixTransport, endpoint: UnixEndpoint) -> UnixTransport:
    die_with_parent(parent_pid)
    parent.mesh.abandon()
    signal.set_wakeup_fd(-1)
    # A handler in Python would return to the instruction that failed, which fails again: this process would spin and
    # not die.
    for number in _FATAL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    # Inherited, it would write to the number of the parent's eventfd, which is closed here or somebody else's by then.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Ctrl-C and a closed terminal are for the process in front, which stops us in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return UnixTransport(endpoint)


def _run_actor(
    parent_pid: int,
    parent: UnixTransport,
    endpoint: UnixEndpoint,
    kind: Any,
    global_name: Any,
    parent_address: Any,
    notify: Any,
    admin: Any,
    requirements: Any,
    capabilities: Any,
    context: Any,
) -> None:
    transport = _enter_process(parent_pid, parent, endpoint)
    manager = UnixManager(
        kind, global_name, transport, None, None, parent_address, admin, requirements, capabilities, context, None
    )
    manager._prepare()
    connected = TransmitIntent(notify, EndpointConnected(endpoint.addrInst))
    transport.scheduleTransmit(None, connected.addCallback(onFailure=actorStartupFailed))
    signal.signal(signal.SIGTERM, lambda _number, _frame: transport.interrupt_wait(signal_shutdown=True))
    try:
        with_stack_room(manager.run)
    finally:
        transport.close()


def _run_admin(
    parent_pid: int, parent: UnixTransport, endpoint: UnixEndpoint, starter: Any, capabilities: Any, close_fd: int
) -> None:
    os.setsid()  # out of the terminal's process group: signals meant for the process in front stay there
    os.close(close_fd)
    transport = _enter_process(parent_pid, parent, endpoint)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    setproctitle("actorgrid: admin")
    admin = UnixAdmin(transport, transport.myAddress, capabilities, None, multiprocessing.get_context("fork"))
    admin._prepare()
    transport.scheduleTransmit(None, TransmitIntent(starter, EndpointConnected(0)))
    admin._activate()
    try:
        with_stack_room(admin.run)
    finally:
        transport.close()


class _UnixBase(multiprocessCommon):  # type: ignore[misc]
    transportType = UnixTransport

    def __init__(self, system: Any, read_fd: int, write_fd: int) -> None:
        system.capabilities["Thespian ActorSystem Name"] = "actorgrid"
        system.capabilities["Thespian ActorSystem Version"] = 1
        system.capabilities["Thespian Watch Supported"] = True
        self._read_fd, self._write_fd = read_fd, write_fd
        self.admin_process: Any = None
        try:
            super().__init__(system, None)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Kill the admin, and with it everything, and bury it."""
        process, self.admin_process = self.admin_process, None
        if process is not None:
            process.kill()
            process.join()
            process.close()
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1
        self.transport.close()

    def _startAdmin(self, adminAddr: Any, addrOfStarter: Any, capabilities: Any, logDefs: Any) -> None:
        endpoint = self.transport.prepEndpoint(adminAddr, capabilities)
        self.admin_process = _fork(
            _run_admin, (self.transport, endpoint, addrOfStarter, capabilities, self._read_fd), "admin"
        )
        detach_child(self.admin_process)
        self.transport.connectEndpoint(endpoint)
        write_fd, self._write_fd = self._write_fd, -1
        os.close(write_fd)  # the tree holds the other copies: end of file says that it is gone
        self.transport.set_watch([self._read_fd])
        answer = self.transport.run(None, timedelta(seconds=START_S))
        self.transport.set_watch([])
        message = answer.message if isinstance(answer, ReceiveEnvelope) else None
        if isinstance(message, WatchMessage):
            raise PeerGone("the actor system's admin died at once", hint="agent.log may say why")
        if not isinstance(message, EndpointConnected):
            raise StartFailed(f"the actor system's admin did not answer in {START_S:g} s", found=repr(message))


def raise_descriptor_limit() -> None:
    """Let this process, and what it forks, open as many descriptors as it may: an actor costs its supervisor five."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Capabilities:
    def __init__(self) -> None:
        self.capabilities: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ReadyDescriptors:
    """The watched descriptors that can be read."""

    fds: tuple[int, ...]


class UnixSystem:
    """One actor system of one boot, seen from the process that started it.

    Make it in the main thread. ``lifeline`` is a descriptor that becomes readable (end of file) when the last
    process of the system is gone. Sending to or creating in a system whose admin died raises PeerGone.
    """

    def __init__(self, folder: Path) -> None:
        thesplog_control(logging.CRITICAL, False, 0)
        raise_descriptor_limit()
        folder.mkdir(mode=0o700, parents=True, exist_ok=False)
        set_boot(folder)
        self.folder = folder
        self.lifeline, writer = os.pipe()
        try:
            self._base = _UnixBase(_Capabilities(), self.lifeline, writer)
        except BaseException:
            os.close(self.lifeline)
            raise
        self._system = ActorSystem(self._base, transientUnique=True)
        self.transport: UnixTransport = self._base.transport

    @property
    def name(self) -> str:
        """The socket name under which actors reach this process."""
        return self.transport.mesh.name

    @property
    def admin_pid(self) -> int:
        """The process every actor descends from."""
        return int(self._base.admin_process.pid)

    def create(self, kind: type) -> str:
        """Start a first actor; gives its socket name. Raises PeerGone when the admin is gone."""
        try:
            return name_of(self._system.createActor(kind))
        except ActorSystemException as error:
            raise PeerGone(f"the actor system cannot start an actor: {error}") from error

    def tell(self, name: str, message: Any) -> None:
        """Send a message. Raises PeerGone, MailboxFull or FrameTooLarge."""
        kind, data = (PARCEL, message.data) if type(message) is Parcel else (PICKLE, pickle.dumps(message))
        self.transport.mesh.post(name, kind, data)

    def receive(self, timeout_s: float | None) -> tuple[str, Any] | None:
        """The next message and who sent it, or ``None`` when none came in time. A ``watch`` comes as
        ReadyDescriptors."""
        limit = None if timeout_s is None else timedelta(seconds=timeout_s)
        envelope = self.transport.run(None, limit)
        if not isinstance(envelope, ReceiveEnvelope):
            return None
        if isinstance(envelope.message, WatchMessage):
            return self.name, ReadyDescriptors(tuple(envelope.message.ready))
        return name_of(envelope.sender), envelope.message

    def watch(self, fds: list[int]) -> None:
        """Wake ``receive`` when one of these is readable."""
        self.transport.set_watch(fds)

    def wait_gone(self, timeout_s: float = GONE_S) -> bool:
        """Wait until no process of the system is left; ``False`` when some are after *timeout_s*."""
        if self.lifeline < 0:
            return True  # closed
        poller = select.poll()
        poller.register(self.lifeline, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def close(self) -> None:
        """Kill what is left of the system, wait for it, and remove its sockets. Again: harmless."""
        if self.lifeline < 0:
            return
        self._base.end()
        if not self.wait_gone():
            log.error("processes of %s are left after %g s", self.folder.name, GONE_S)
        os.close(self.lifeline)
        self.lifeline = -1  # its number may be somebody else's by the next call
        sweep(self.folder)


def sweep(folder: Path) -> None:
    """Remove a boot's directory with the sockets and names in it; no link is followed."""
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    try:
        folder.rmdir()
    except OSError as error:
        log.warning("%s stays: %s", folder, error)
