"""A Thespian system base over AF_UNIX sockets: real actor processes, no TCP port, nothing unauthenticated unpickled.

Thespian's own TCP base binds 0.0.0.0 and unpickles whatever arrives, needs 0.45 ms for a round trip and stalls in
floods. Here each process has one socket in a 0700 directory (``unix_mesh``), peers prove a key that only fork
hands on (``unix_handshake``), and messages go out at once instead of through Thespian's transmit queue.

What differs from Thespian's bases, on purpose:

* The admin is a plain child of the process that started it, not a daemon, and there is no logger process.
* Every process dies when its parent dies (PR_SET_PDEATHSIG): fork from main threads only, the signal is sent
  when the forking *thread* ends. The admin leaves when its last actor has left.
* A parent hears of a child's death once, from the kernel, and ``ChildActorExited.exit_status`` says how it died
  (negative: the signal), as in ``multiprocessing``.
* A ``Parcel`` travels as bytes, without pickle and past Thespian's bookkeeping.
* No conventions, no routing, no sending from threads.

Uses internals of Thespian 4.0.1; the version is pinned for that.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import pickle  # nosec B403 - only frames of proven peers of this boot are unpickled
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from setproctitle import setproctitle
from thespian.actors import ActorAddress, ActorExitRequest, ActorSystem, ChildActorExited, WatchMessage
from thespian.system.actorManager import ActorManager
from thespian.system.addressManager import ActorLocalAddress
from thespian.system.messages.multiproc import ChildMayHaveDied, EndpointConnected
from thespian.system.multiprocCommon import ChildInfo, MultiProcReplicator, detach_child, multiprocessCommon
from thespian.system.systemAdmin import ThespianAdmin
from thespian.system.systemCommon import actorStartupFailed
from thespian.system.timing import currentTime
from thespian.system.transport import (
    ReceiveEnvelope,
    SendStatus,
    Thespian__Run_Expired,
    Thespian__Run_HandlerResult,
    Thespian__Run_Terminated,
    Thespian__UpdateWork,
    TransmitIntent,
    TransmitOnly,
    TransportInit__Base,
)
from thespian.system.transport.asyncTransportBase import asyncTransportBase
from thespian.system.transport.wakeupTransportBase import wakeupTransportBase
from thespian.system.utilis import thesplog_control

from actorgrid.errors import FrameTooLarge, MailboxFull, PeerGone, StartFailed

from .unix_handshake import new_key
from .unix_mesh import Mesh, listen

PICKLE, PARCEL = 0, 1
ADMIN = "admin"
START_S = 60.0
_PR_SET_PDEATHSIG = 1
_FATAL_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)

log = logging.getLogger("actorgrid.transport")


class Parcel:
    """A message that is bytes already: carried as it is."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return (Parcel, (bytes(self.data),))

    def __str__(self) -> str:
        return "Parcel"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """Where an actor listens: the name of its socket in the boot's directory. Never used twice in a boot."""

    name: str

    def __str__(self) -> str:
        return self.name

    def isSameSystem(self, _other: Any) -> bool:  # noqa: N802 - Thespian's name
        """Thespian asks this of remote systems; there are none."""
        return True


def address_of(name: str) -> Any:
    """The Thespian address of the process that listens as *name*."""
    return ActorAddress(UnixAddress(name))


def name_of(address: Any) -> str:
    """The socket name behind a Thespian address."""
    return str(address.addressDetails.name)


@dataclass(frozen=True, slots=True)
class _Boot:
    folder: Path
    key: bytes


# Set before the first fork and inherited by it; in no message, on no disk, in no environment.
_boot: _Boot | None = None


def _current_boot() -> _Boot:
    if _boot is None:
        raise StartFailed("no actor system was started in this process", hint="make a UnixSystem first")
    return _boot


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; leaves at once if that happened already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os._exit(1)


class UnixEndpoint(TransportInit__Base):  # type: ignore[misc]
    """What a parent prepares for a child: its name and its socket, listening already."""

    def __init__(self, instance: int | None, name: str, listener: Any) -> None:
        self.addrInst = instance
        self.name = name
        self.listener = listener


class UnixTransport(asyncTransportBase, wakeupTransportBase):  # type: ignore[misc]
    """Thespian's view of a :class:`Mesh`."""

    _external_count = 0

    def __init__(self, init: Any, *_args: Any) -> None:
        super().__init__()
        boot = _current_boot()
        if isinstance(init, UnixEndpoint):
            self.external = False
            self.mesh = Mesh(boot.folder, boot.key, init.name, init.listener)
        else:
            UnixTransport._external_count += 1
            self.external = True
            self.mesh = Mesh(boot.folder, boot.key, f"x{os.getpid()}.{UnixTransport._external_count}")
            self.mesh.on_peer_lost = self._peer_lost
        self.myAddress = address_of(self.mesh.name)
        self._addresses: dict[str, Any] = {}
        self._children = 0
        self._abort: bool | None = None
        self._check_children = False
        self._shutdown_signalled = False
        self._admin_lost = False

    # -- what Thespian asks of a transport

    @staticmethod
    def getAdminAddr(_capabilities: Any) -> Any:  # noqa: N802
        """The admin has a fixed name."""
        return address_of(ADMIN)

    @staticmethod
    def getConventionAddress(_capabilities: Any) -> None:  # noqa: N802
        """There are no conventions."""
        return

    @staticmethod
    def getAddressFromString(name: Any) -> Any:  # noqa: N802
        """The address spelled *name*."""
        return address_of(str(name))

    @staticmethod
    def probeAdmin(address: Any) -> bool:  # noqa: N802
        """Whether an admin listens already."""
        return (_current_boot().folder / name_of(address)).exists()

    def external_transport_clone(self) -> UnixTransport:
        """A second endpoint of the same process."""
        return UnixTransport(None)

    def prepEndpoint(self, address: Any, _capabilities: Any) -> UnixEndpoint:  # noqa: N802
        """Make the socket of a child that is about to be forked."""
        details = address.addressDetails
        if isinstance(details, ActorLocalAddress):
            self._children += 1
            instance, name = details.addressInstanceNum, f"{self.mesh.name}.{self._children}"
        else:
            instance, name = None, details.name
        return UnixEndpoint(instance, name, listen(_current_boot().folder / name))

    def connectEndpoint(self, endpoint: UnixEndpoint) -> None:  # noqa: N802
        """The child has its copy of the socket: close ours, so that its death closes the last one."""
        endpoint.listener.close()

    def protectedFileNumList(self) -> list[int]:  # noqa: N802
        """Nothing is closed by number: ``Mesh.abandon`` closes by owner."""
        return []

    def childResetFileNumList(self) -> list[int]:  # noqa: N802
        """Nothing is closed by number: ``Mesh.abandon`` closes by owner."""
        return []

    def set_watch(self, fds: list[int]) -> None:
        """The descriptors of the actor's latest ThespianWatch."""
        self.mesh.watch_only(fds)

    def deadAddress(self, addressManager: Any, address: Any) -> None:  # noqa: N802, N803
        """A child died: nothing more will reach it."""
        if isinstance(address.addressDetails, UnixAddress):
            self.mesh.forget(address.addressDetails.name)
            (self.mesh.folder / address.addressDetails.name).unlink(missing_ok=True)
        super().deadAddress(addressManager, address)

    def lostRemote(self, _address: Any) -> None:  # noqa: N802
        """There are no remote systems."""

    def interrupt_wait(self, signal_shutdown: bool = False, check_children: bool = False) -> None:
        """Wake the loop; may be called from a signal handler."""
        self._shutdown_signalled |= signal_shutdown
        self._check_children |= check_children
        self.mesh.interrupt()

    def abort_run(self, drain: bool = False) -> None:
        """End the running ``run``, after what is queued went out if *drain*."""
        self._abort = drain
        self.mesh.interrupt()

    def close(self) -> None:
        """Let go of all sockets."""
        self.mesh.close()

    def serializer(self, intent: Any) -> tuple[int, bytes | bytearray]:
        """The frame of a message. Pickling may raise CannotPickleAddress: Thespian then tries again later."""
        if type(intent.message) is Parcel:
            return PARCEL, intent.message.data
        return PICKLE, pickle.dumps(intent.message, pickle.HIGHEST_PROTOCOL)

    def _schedulePreparedIntent(self, intent: Any, has_exclusive_flag: bool = False) -> None:  # noqa: N802
        if isinstance(intent.message, Thespian__UpdateWork):
            intent.tx_done(SendStatus.Sent)
            return
        kind, payload = intent.serMsg

        def done(sent: bool) -> None:
            intent.tx_done(SendStatus.Sent if sent else SendStatus.DeadTarget)

        try:
            self.mesh.post(name_of(intent.targetAddr), kind, payload, done)
        except PeerGone:
            intent.tx_done(SendStatus.DeadTarget)
        except (MailboxFull, FrameTooLarge) as error:
            log.error("%s is not sent: %s", type(intent.message).__name__, error)
            intent.tx_done(SendStatus.Failed)

    def _peer_lost(self, peer: str) -> None:
        self._admin_lost |= peer == ADMIN

    # -- the loop

    def _runWithExpiry(self, handler: Any) -> Any:  # noqa: N802
        """Handle messages until ``run_time`` is over, a handler says stop, or the run is aborted."""
        mesh, inbox = self.mesh, self.mesh.inbox
        transmit_only = handler is TransmitOnly or isinstance(handler, TransmitOnly)
        self._abort = None
        while True:
            while inbox and not transmit_only:
                envelope = self._next_envelope()
                if envelope is None:
                    continue
                if handler is None:
                    return envelope
                if not handler(envelope):
                    return Thespian__Run_HandlerResult(False)
                if self._expired():
                    return Thespian__Run_Expired()
            if self._abort is not None and not (self._abort and mesh.pending):
                return Thespian__Run_Terminated()
            if self._admin_lost and self.external:
                raise PeerGone("the actor system's admin is gone")
            before = mesh.pending
            if transmit_only and not before:
                return 0
            end = self.run_time._time_to_quit
            mesh.poll(None if end is None else max(0.0, end - currentTime()))
            if transmit_only:
                if mesh.pending < before:
                    return mesh.pending
            else:
                self._note_signals()
            if not inbox and self._expired():
                return Thespian__Run_Expired()

    def _expired(self) -> bool:
        end = self.run_time._time_to_quit
        return end is not None and end <= currentTime()

    def _note_signals(self) -> None:
        inbox, name = self.mesh.inbox, self.mesh.name
        if self.mesh.ready_watches:
            ready, self.mesh.ready_watches = self.mesh.ready_watches, []
            inbox.append((name, -1, WatchMessage(ready)))  # type: ignore[arg-type]
        if self._check_children:
            self._check_children = False
            inbox.append((name, -1, ChildMayHaveDied()))  # type: ignore[arg-type]
        if self._shutdown_signalled:
            self._shutdown_signalled = False
            inbox.append((name, -1, ActorExitRequest()))  # type: ignore[arg-type]

    def _next_envelope(self) -> Any:
        peer, kind, payload = self.mesh.inbox.popleft()
        sender = self._addresses.get(peer)
        if sender is None:
            sender = self._addresses[peer] = address_of(peer)
        if kind == PARCEL:
            return ReceiveEnvelope(sender, Parcel(payload))
        if kind != PICKLE:
            return ReceiveEnvelope(sender, payload)
        try:
            message = pickle.loads(payload)  # nosec B301 - from a process that proved this boot's key
        except Exception:  # noqa: BLE001 - whatever a broken pickle raises: one message is lost, and the log says so
            log.exception("a message from %s cannot be read", peer)
            return None
        return ReceiveEnvelope(sender, message)


class _NoThrottle:
    """In place of Thespian's RateThrottle, which sleeps 0.1 s above 4,480 messages a second."""

    def eventRatePause(self, _now: Any) -> None:  # noqa: N802
        """Go on."""


class _UnixProcesses(MultiProcReplicator):  # type: ignore[misc]
    """Starting and burying child processes, for actors and the admin alike."""

    def _prepare(self) -> None:
        self._governer = _NoThrottle()
        self.asLogger = self.transport.myAddress  # never used: processes log for themselves
        self._sigchld = False
        self._buried: dict[str, None] = {}

    def _startChildActor(  # noqa: N802
        self, childAddr: Any, childClass: Any, globalName: Any, parentAddr: Any, notifyAddr: Any, **options: Any  # noqa: N803
    ) -> None:
        endpoint = self.transport.prepEndpoint(childAddr, self.capabilities)
        if not self._sigchld:
            signal.signal(signal.SIGCHLD, self.signalChildDied)
            self._sigchld = True
        process = _fork(
            _run_actor,
            (self.transport, endpoint, childClass, globalName, parentAddr, notifyAddr, self._adminAddr)
            + (options.get("childRequirements"), self.capabilities, self.mpcontext),
            f"actor {endpoint.name}",
        )
        detach_child(process)
        if not hasattr(self, "_child_procs"):
            self._child_procs = []
        child = ChildInfo(childAddr, childClass, process, endpoint.addrInst)
        child.childRealAddr = address_of(endpoint.name)
        self._child_procs.append(child)
        self.transport.connectEndpoint(endpoint)
        # The address is known and listens: messages to the child need not wait for its first word.
        self._addrManager.associateUseableAddress(self.myAddress, endpoint.addrInst, address_of(endpoint.name))

    def _childExited(self, _address: Any) -> None:  # noqa: N802
        """Nothing: ``childDied`` buries children, whoever mentions them."""

    def childDied(self) -> bool:  # noqa: N802
        """After SIGCHLD: one ChildActorExited for each child that ended."""
        living = []
        for child in getattr(self, "_child_procs", []):
            if child.childProc.is_alive():
                living.append(child)
                continue
            notice = ChildActorExited(child.childRealAddr)
            notice.exit_status = child.childProc.exitcode
            notice.pid = child.childProc.pid
            child.childProc.close()
            self.transport.scheduleTransmit(None, TransmitIntent(self.transport.myAddress, notice))
        self._child_procs = living
        return True

    def child_pid(self, address: Any) -> int:
        """The process of a child made a moment ago."""
        return next(int(c.childProc.pid) for c in self._child_procs if c.childAddr == address)


class UnixAdmin(_UnixProcesses, ThespianAdmin):  # type: ignore[misc]
    """Thespian's admin; it leaves with its last actor."""

    def _handleChildExited(self, address: Any) -> Any:  # noqa: N802
        result = super()._handleChildExited(address)
        if not getattr(self, "_child_procs", []) and not self.isShuttingDown():
            self.shutdown_completed = True
            self.transport.abort_run(drain=True)
        return result

    def _cleanupAdmin(self, finish_cleanup: Callable[[], None]) -> None:  # noqa: N802
        finish_cleanup()


class UnixManager(_UnixProcesses, ActorManager):  # type: ignore[misc]
    """Thespian's manager of one actor, with a short way for parcels, watches and wakeups."""

    def handleMessages(self, envelope: Any) -> Any:  # noqa: N802
        """One message. Actors that take parcels let no exception out (``supervisors/actor.py``)."""
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

    def _sayGoodbye(self) -> None:  # noqa: N802
        """Nothing: the parent hears of our end from the kernel, once."""


def _fork(target: Callable[..., None], arguments: tuple[Any, ...], name: str) -> Any:
    process = multiprocessing.get_context("fork").Process(target=target, args=(os.getpid(), *arguments), name=name)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    process.start()
    return process


def _enter_process(parent_pid: int, parent: UnixTransport, endpoint: UnixEndpoint) -> UnixTransport:
    die_with_parent(parent_pid)
    parent.mesh.abandon()
    signal.set_wakeup_fd(-1)
    for number in _FATAL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process in front, which stops us in order
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
        manager.run()
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
        admin.run()
    finally:
        transport.close()


class _UnixBase(multiprocessCommon):  # type: ignore[misc]
    transportType = UnixTransport

    def __init__(self, system: Any, read_fd: int) -> None:
        system.capabilities["Thespian ActorSystem Name"] = "actorgrid"
        system.capabilities["Thespian ActorSystem Version"] = 1
        system.capabilities["Thespian Watch Supported"] = True
        self._read_fd = read_fd
        self.admin_process: Any = None
        super().__init__(system, None)

    def _startAdmin(self, adminAddr: Any, addrOfStarter: Any, capabilities: Any, logDefs: Any) -> None:  # noqa: N802, N803
        endpoint = self.transport.prepEndpoint(adminAddr, capabilities)
        self.admin_process = _fork(
            _run_admin, (self.transport, endpoint, addrOfStarter, capabilities, self._read_fd), "admin"
        )
        detach_child(self.admin_process)
        self.transport.connectEndpoint(endpoint)
        answer = self.transport.run(None, timedelta(seconds=START_S))
        if not isinstance(answer, ReceiveEnvelope) or not isinstance(answer.message, EndpointConnected):
            raise StartFailed(f"the actor system's admin did not answer in {START_S:g} s", found=repr(answer))


class _Capabilities:
    def __init__(self) -> None:
        self.capabilities: dict[str, Any] = {}


class UnixSystem:
    """One actor system of one boot, seen from the process that started it.

    Make it in the main thread. ``lifeline`` is a descriptor that becomes readable (end of file) when the last
    process of the system is gone. Sending to or creating in a system whose admin died raises PeerGone.
    """

    def __init__(self, folder: Path) -> None:
        global _boot
        thesplog_control(logging.CRITICAL, False, 0)
        folder.mkdir(mode=0o700, parents=True, exist_ok=False)
        _boot = _Boot(folder, new_key())
        self.folder = folder
        self.lifeline, writer = os.pipe()
        try:
            self._base = _UnixBase(_Capabilities(), self.lifeline)
        except BaseException:
            os.close(self.lifeline)
            raise
        finally:
            os.close(writer)
        self._system = ActorSystem(self._base, transientUnique=True)
        self.transport: UnixTransport = self._base.transport

    @property
    def name(self) -> str:
        """Where actors reach this process."""
        return self.transport.mesh.name

    @property
    def admin_pid(self) -> int:
        """The process every actor descends from."""
        return int(self._base.admin_process.pid)

    def create(self, kind: type) -> str:
        """Start a first actor; gives its socket name."""
        return name_of(self._system.createActor(kind))

    def tell(self, name: str, message: Any) -> None:
        """Send. Raises PeerGone, MailboxFull or FrameTooLarge."""
        kind, data = (PARCEL, message.data) if type(message) is Parcel else (PICKLE, pickle.dumps(message))
        self.transport.mesh.post(name, kind, data)

    def receive(self, timeout_s: float | None) -> tuple[str, Any] | None:
        """The next message and who sent it, or ``None`` when none came in time. A ready ``watch`` comes as WatchMessage."""
        limit = None if timeout_s is None else timedelta(seconds=timeout_s)
        envelope = self.transport.run(None, limit)
        if isinstance(envelope, ReceiveEnvelope):
            return name_of(envelope.sender), envelope.message
        return None

    def watch(self, fds: list[int]) -> None:
        """Wake ``receive`` when one of these is readable."""
        self.transport.set_watch(fds)

    def close(self) -> None:
        """Kill what is left of the system, wait for it, and remove its sockets."""
        process = self._base.admin_process
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        process.close()
        self.transport.close()
        os.close(self.lifeline)
        sweep(self.folder)


def sweep(folder: Path) -> None:
    """Remove a boot's directory with the socket files in it; nothing below it, and no link is followed."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
    try:
        folder.rmdir()
    except OSError as error:
        log.warning("%s stays: %s", folder, error)
