"""A Thespian system base over AF_UNIX sockets: real actor processes, no TCP port, nothing unauthenticated unpickled.

Thespian's own TCP base binds 0.0.0.0 and unpickles whatever arrives, needs 0.45 ms for a round trip and stalls in
floods. Here each process has one socket in a 0700 directory (``mesh.py``), peers prove a key that only fork
hands on (``handshake.py``), and messages go out at once instead of through Thespian's transmit queue.

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

import logging
import os
import pickle  # nosec B403 - only frames of proven peers of this boot are unpickled
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thespian.actors import ActorAddress, ActorExitRequest, ActorSystemMessage, ThespianWatch, WatchMessage
from thespian.system.addressManager import ActorLocalAddress
from thespian.system.messages.multiproc import ChildMayHaveDied
from thespian.system.timing import ExpirationTimer, currentTime
from thespian.system.transport import (
    ReceiveEnvelope,
    SendStatus,
    Thespian__Run_Expired,
    Thespian__Run_HandlerResult,
    Thespian__Run_Terminated,
    Thespian__UpdateWork,
    TransmitOnly,
    TransportInit__Base,
)
from thespian.system.transport.asyncTransportBase import asyncTransportBase
from thespian.system.transport.wakeupTransportBase import wakeupTransportBase

from actorgrid.errors import FrameTooLarge, MailboxFull, PeerGone, StartFailed

from .handshake import new_key
from .mesh import Mesh, listen

PICKLE, PARCEL, INTERNAL = 0, 1, 256  # kinds of frames; INTERNAL is over a byte: it cannot come over a socket
ADMIN = "admin"
_TURN_S = 1.0

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


@dataclass(frozen=True)
class PeerLost(ActorSystemMessage):  # type: ignore[misc]
    """Told to an actor when its connection for sending to *peer* is lost: that process ended, or would not hear us.

    What it had sent us comes before this, but for what it sends on a connection that we have not taken yet. Once for
    each connection: ``watch_peer`` or a message makes the next one, or raises PeerGone.
    """

    peer: str


class _Descriptors(list[int]):
    """The descriptors to read, as Thespian hands them from a watch to ``set_watch``, and those to write to."""

    def __init__(self, readable: Iterable[int], writable: Iterable[int]) -> None:
        super().__init__(readable)
        self.writable = tuple(writable)


class DescriptorWatch(ThespianWatch):  # type: ignore[misc]
    """A ThespianWatch for writing too; what is ready comes as DescriptorsReady."""

    def __init__(self, readable: Iterable[int] = (), writable: Iterable[int] = ()) -> None:
        super().__init__(_Descriptors(readable, writable))


class DescriptorsReady(WatchMessage):  # type: ignore[misc]
    """The WatchMessage of this base: ``ready`` can be read (or is at its end), ``writable`` can be written."""

    def __init__(self, ready: list[int], writable: list[int]) -> None:
        super().__init__(ready)
        self.writable = writable


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """An actor's address: the name of its socket in the boot's directory. Never used twice in a boot."""

    name: str

    def __str__(self) -> str:
        return self.name

    def isSameSystem(self, _other: Any) -> bool:
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


def set_boot(folder: Path) -> None:
    """Start a boot in this process: sockets go to *folder*, which must be ours alone, under a new key."""
    global _boot
    _boot = _Boot(folder, new_key())


def _current_boot() -> _Boot:
    if _boot is None:
        raise StartFailed("no actor system was started in this process", hint="make a UnixSystem first")
    return _boot


class UnixEndpoint(TransportInit__Base):  # type: ignore[misc]
    """What a parent prepares for a child: its name and its socket, listening already."""

    def __init__(self, instance: int | None, name: str, listener: Any) -> None:
        self.addrInst = instance
        self.name = name
        self.listener = listener


class _Envelope(ReceiveEnvelope):  # type: ignore[misc]
    def identify(self) -> str:
        """For Thespian's debug log, which nobody reads: writing out a message of 1 MB took it 3 ms."""
        return f"a message from {self.sender}"


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
        self.mesh.on_peer_lost(self._peer_lost)
        self.myAddress = address_of(self.mesh.name)
        self._addresses: dict[str, Any] = {}
        self._children = 0
        self._abort: bool | None = None
        self._check_children = False
        self._shutdown_signalled = False
        self._admin_lost = False

    # -- what Thespian asks of a transport

    @staticmethod
    def getAdminAddr(_capabilities: Any) -> Any:
        """The admin has a fixed name."""
        return address_of(ADMIN)

    @staticmethod
    def getConventionAddress(_capabilities: Any) -> None:
        """There are no conventions."""
        return

    @staticmethod
    def getAddressFromString(name: Any) -> Any:
        """The address spelled *name*."""
        return address_of(str(name))

    @staticmethod
    def probeAdmin(address: Any) -> bool:
        """Ask whether an admin listens already."""
        return (_current_boot().folder / name_of(address)).exists()

    def external_transport_clone(self) -> UnixTransport:
        """A second endpoint of the same process."""
        return UnixTransport(None)

    def prepEndpoint(self, address: Any, _capabilities: Any) -> UnixEndpoint:
        """Make the socket of a child that is about to be forked."""
        details = address.addressDetails
        if isinstance(details, ActorLocalAddress):
            self._children += 1
            instance, name = details.addressInstanceNum, f"{self.mesh.name}.{self._children}"
        else:
            instance, name = None, details.name
        return UnixEndpoint(instance, name, listen(_current_boot().folder / name))

    def connectEndpoint(self, endpoint: UnixEndpoint) -> None:
        """The child has its copy of the socket: close ours, so that its death closes the last one."""
        endpoint.listener.close()

    def protectedFileNumList(self) -> list[int]:
        """Nothing that Thespian knows: ``Mesh.abandon`` closes what is ours."""
        return []

    def childResetFileNumList(self) -> list[int]:
        """Nothing that Thespian knows: ``Mesh.abandon`` closes what is ours."""
        return []

    def set_watch(self, fds: list[int]) -> None:
        """Watch the descriptors of the actor's latest ThespianWatch or DescriptorWatch; bad ones are only logged."""
        self.mesh.loop.watch_only(fds, fds.writable if isinstance(fds, _Descriptors) else ())

    def deadAddress(self, addressManager: Any, address: Any) -> None:
        """Drop the connection to a child that died."""
        if isinstance(address.addressDetails, UnixAddress):
            self.mesh.forget(address.addressDetails.name)
            (self.mesh.folder / address.addressDetails.name).unlink(missing_ok=True)
        super().deadAddress(addressManager, address)

    def lostRemote(self, _address: Any) -> None:
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

    def notify(self, message: Any) -> None:
        """Put *message* into our own mailbox, unpickled; may be called from a signal handler."""
        self.mesh.inbox.append((self.mesh.name, INTERNAL, message))
        self.mesh.interrupt()

    def watch_peer(self, name: str) -> None:
        """Have the end of *name*'s process told as PeerLost; nothing is sent to it.

        Raises PeerGone when no process listens there, MailboxFull when there is no descriptor for a connection.
        """
        self.mesh.connect(name)

    def when_capacity(self, name: str, callback: Callable[[], None]) -> None:
        """Call back once, when the queue to *name* is under half of its bounds (now, if it is) or *name* is lost.

        The way out of MailboxFull: wait for this, and go on receiving meanwhile; two actors that flood each other
        then both go on.
        """
        self.mesh.when_capacity(name, callback)

    def flush(self, timeout_s: float) -> None:
        """Send what is queued, for at most *timeout_s*; nothing received is handled."""
        end = currentTime() + timeout_s
        while self.mesh.pending and currentTime() < end:
            self.mesh.poll_sending(max(0.0, end - currentTime()))

    def close(self) -> None:
        """Let go of all sockets."""
        self.mesh.close()

    def serializer(self, intent: Any) -> tuple[int, bytes | bytearray]:
        """The frame of a message. Pickling may raise CannotPickleAddress: Thespian then tries again later."""
        if type(intent.message) is Parcel:
            return PARCEL, intent.message.data
        return PICKLE, pickle.dumps(intent.message, pickle.HIGHEST_PROTOCOL)

    def _schedulePreparedIntent(self, intent: Any, has_exclusive_flag: bool = False) -> None:
        if isinstance(intent.message, Thespian__UpdateWork):
            intent.tx_done(SendStatus.Sent)
            return
        kind, payload = intent.serMsg

        def done(sent: bool) -> None:
            intent.tx_done(SendStatus.Sent if sent else SendStatus.DeadTarget)

        try:
            self.mesh.post(name_of(intent.targetAddr), kind, payload, done)
        except PeerGone:
            self._fail_soon(intent, SendStatus.DeadTarget)
        except (MailboxFull, FrameTooLarge) as error:
            log.error("%s is not sent: %s", type(intent.message).__name__, error)
            self._fail_soon(intent, SendStatus.Failed)

    def _fail_soon(self, intent: Any, status: Any) -> None:
        # Not at once: Thespian's ask() looks for the failure after it has begun to wait, and would wait in vain.
        self.mesh.loop.soon(lambda: intent.tx_done(status))

    def _peer_lost(self, peer: str) -> None:
        # Before the news of its end, which would otherwise come before its last words (``PeerLost``).
        self.mesh.read_rest(peer)
        if self.external and peer == ADMIN:
            self._admin_lost = True
        else:
            self.notify(PeerLost(peer))

    # -- wakeups

    def addWakeup(self, timePeriod: Any, payload: Any) -> None:
        """Queue a wakeup. Thespian sorts all of them anew, with a call for each comparison."""
        timer = ExpirationTimer(timePeriod)
        insort(self._pendingWakeups, (timer, payload), key=lambda entry: entry[0]._time_to_quit)
        if self._pendingWakeups[0][0] is timer and timer < self.run_time:  # type: ignore[has-type]
            self.run_time = timer

    def _deliver_wakeups(self, handler: Any) -> Any:
        """Deliver what is due, the earliest first. Thespian's order is the reverse when several are due at once."""
        while self._activeWakeups:
            wakeup = self._activeWakeups.pop(0)
            if handler is None or handler is TransmitOnly:
                return wakeup
            if not handler(wakeup):
                return Thespian__Run_HandlerResult(False)
        return None

    # -- the loop

    def _runWithExpiry(self, handler: Any) -> Any:
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
                # After each message: where they come faster than they are handled, the run would never end in time.
                if self._expired():
                    return Thespian__Run_Expired()
            if self._aborted():
                return Thespian__Run_Terminated()
            if self._admin_lost and self.external:
                raise PeerGone("the actor system's admin is gone")
            before = mesh.pending
            if transmit_only and not before:
                return 0
            end = self.run_time._time_to_quit
            left_s = None if end is None else max(0.0, end - currentTime())
            if transmit_only:
                mesh.poll_sending(_TURN_S if left_s is None else min(_TURN_S, left_s))
                if mesh.pending < before:
                    return mesh.pending
            else:
                mesh.poll(left_s)
                self._note_signals()
            if (transmit_only or not inbox) and self._expired():
                return Thespian__Run_Expired()

    def _aborted(self) -> bool:
        return self._abort is not None and not (self._abort and self.mesh.pending)

    def _expired(self) -> bool:
        end = self.run_time._time_to_quit
        return end is not None and end <= currentTime()

    def _note_signals(self) -> None:
        inbox, name = self.mesh.inbox, self.mesh.name
        loop = self.mesh.loop
        if loop.readable or loop.writable:
            inbox.append((name, INTERNAL, DescriptorsReady(loop.readable, loop.writable)))
            loop.readable, loop.writable = [], []
        if self._check_children:
            # Before anybody looks: a child that ends from here on sets it anew.
            self._check_children = False
            inbox.append((name, INTERNAL, ChildMayHaveDied()))
        if self._shutdown_signalled:
            self._shutdown_signalled = False
            inbox.append((name, INTERNAL, ActorExitRequest()))

    def _next_envelope(self) -> Any:
        peer, kind, payload = self.mesh.inbox.popleft()
        sender = self._addresses.get(peer)
        if sender is None:
            sender = self._addresses[peer] = address_of(peer)
        if kind == PARCEL:
            return _Envelope(sender, Parcel(payload))
        if kind == INTERNAL:
            return _Envelope(sender, payload)
        if kind != PICKLE:
            log.error("a frame of unknown kind %d from %s is dropped", kind, peer)
            return None
        try:
            message = pickle.loads(payload)  # nosec B301 - from a process that proved this boot's key
        except Exception:
            log.exception("a message from %s cannot be read", peer)
            return None
        return _Envelope(sender, message)
