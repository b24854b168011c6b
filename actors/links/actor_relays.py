"""Processes of this host at users' actors on others: one local socket, and a stream for each of them.

The door of this host comes here as well, for callers on machines that are no hosts (gateway/server/worker_relay.py):
at actors on other hosts, and on this one, whose files of what was begun are all here.

A process says on one line which actor it wants, then speaks with it as over any network (kept_stream.py): the secret
in its handle goes through unread, and is checked by the actor. On the actor's host a file in memory is made for each
caller, into which the actor writes which of its calls it has begun; it stays for a while when the actor is gone.

Bounds: ``STREAMS_MAX`` connections each way, ``STREAMS_OF_HOST_MAX`` of them with one host, ``STREAMS_MAX`` more that
come by our own door to actors here, ``FILES_MAX`` such files:
then the oldest that is in nobody's use goes, and its caller takes all its calls for begun.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgpack

from actorgrid.errors import (
    ActorDied,
    ActorGridError,
    NotARegularFile,
    NotFound,
    Overloaded,
    PeerGone,
    UnknownAllocation,
    error_from_dict,
)
from actorgrid.transports.kept_stream import encode_keep_refused
from actorgrid.transports.peer.calls import NetLoop, Stream
from actorgrid.transports.peer.relay_end import ACTOR
from actorgrid.transports.user_actor_frames import (
    BEGUN,
    BEGUN_UNKNOWN,
    DEATH_BYTES_MAX,
    DEATH_SUFFIX,
    FAR_ACTOR_LINE_MAX,
    OWNER_FILE,
    PLACE_SUFFIX,
    FarCaller,
    encode_far_prelude,
    far_caller_of,
    is_locked,
    parse_far_caller,
)

from ..files.untrusted_files import read_whole
from ..work.isolation.own_sockets import connect_within, own_folders_named
from .line_door import LineDoor
from .pieces import Fields, pack
from .pipe import Pipe
from .socket_join import SocketJoin

STREAMS_MAX = 1024
STREAMS_OF_HOST_MAX = 128
FILES_MAX = 2304
HOST_ID_MAX = 200

OpenStream = Callable[[str, str, bytes], Stream]


class _BegunFile:
    """What one caller's actor has begun, in memory that outlives the actor."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("actorgrid-begun", os.MFD_CLOEXEC)
        os.pwrite(self.fd, BEGUN.pack(BEGUN_UNKNOWN), 0)
        self.users = 0

    def read(self) -> int | None:
        """The id of the call that was begun last; ``None`` as long as the actor has not said so."""
        last: int = BEGUN.unpack(os.pread(self.fd, BEGUN.size, 0))[0]
        return None if last == BEGUN_UNKNOWN else last

    def let_go(self) -> None:
        """Be in one connection's use less."""
        self.users -= 1

    def close(self) -> None:
        """Forget it."""
        os.close(self.fd)


class ActorRelays:
    """*host_id*: ours. *folder*: of the sockets of work of this host. *open_stream*: (host, target, head). *users_dir*:
    where work that has a uid of its own has its sockets (work/isolation/own_sockets.py)."""

    def __init__(
        self, loop: NetLoop, host_id: str, folder: Path, open_stream: OpenStream, users_dir: Path = Path("/nonexistent")
    ) -> None:
        self._loop = loop
        self._host_id = host_id
        self._folder = folder
        self._users_dir = users_dir
        self._open_stream = open_stream
        self._door = LineDoor(loop, FAR_ACTOR_LINE_MAX, parse_far_caller, self._lead, _refuse)
        self._going_out: dict[Pipe, str] = {}  # with the other host
        self._coming_in: dict[Pipe, str] = {}
        self._here: set[SocketJoin] = set()
        self._files: dict[str, _BegunFile] = {}  # by caller, the oldest first
        self.opened_total = 0

    def __len__(self) -> int:
        return len(self._going_out) + len(self._coming_in) + len(self._here)

    # -- on the caller's host

    def listen(self, path: Path) -> None:
        """Take processes at *path*. Raises StartFailed."""
        self._door.listen(path, "relay to actors on other hosts")

    def _lead(self, local: socket.socket, wanted: FarCaller, said: bytes) -> None:
        if wanted.host_id == self._host_id:
            self._lead_here(local, wanted, said)
            return
        _check_room(self._going_out, wanted.host_id)
        head: Fields = {**wanted._asdict()}
        stream = self._open_stream(wanted.host_id, ACTOR, pack(head))
        self._join(local, stream, self._going_out, said, encode_keep_refused)

    # -- on the actor's host

    def take(self, stream: Stream, fields: Fields) -> None:
        """Join another host's process to an actor here. Raises ActorDied, UnknownAllocation where it is not there,
        NotFound, BadRequest, Overloaded, PeerGone."""
        wanted = far_caller_of(fields)
        if wanted.asks:
            self._tell(stream, wanted.caller)
            return
        _check_room(self._coming_in, stream.host_id)
        actor, file = self._connect(wanted)
        self._join(actor, stream, self._coming_in, then=file.let_go)

    def _lead_here(self, local: socket.socket, wanted: FarCaller, said: bytes) -> None:
        """Join a process that came by our door to an actor here."""
        if wanted.asks:
            # The socket has taken one line, and holds as little as this.
            local.send(self._begun_of(wanted.caller))
            local.close()
            return
        if len(self._here) >= STREAMS_MAX:
            raise Overloaded(
                "this host relays its maximum of connections to actors",
                asked="one more that comes by its door",
                found=f"{STREAMS_MAX}",
            )
        actor, file = self._connect(wanted)
        self.opened_total += 1

        def forget(join: SocketJoin) -> None:
            self._here.discard(join)
            file.let_go()

        self._here.add(SocketJoin(self._loop, local, actor, forget, said))

    def _connect(self, wanted: FarCaller) -> tuple[socket.socket, _BegunFile]:
        """A connection to an actor of this host, over which it has the file of its caller, which is in use now."""
        place = self._folder / wanted.folder / wanted.actor_id
        uid, own = next(iter(own_folders_named(self._users_dir, wanted.folder)), (0, None))
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if own is None:
                local.connect(str(place))
            else:
                if not place.parent.is_dir():
                    place = own / wanted.actor_id  # what became of it stands with its creator
                connect_within(local, own, wanted.actor_id, uid)
            file = self._file_of(wanted.caller)
            socket.send_fds(local, [encode_far_prelude()], [file.fd])
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            local.close()
            raise _what_became_of(place) from None
        except OSError as error:
            local.close()
            raise PeerGone(f"the actor takes no connections now: {error}", asked=wanted.actor_id) from error
        file.users += 1
        return local, file

    def _tell(self, stream: Stream, caller: str) -> None:
        """Say what was begun of a caller's, and end the stream."""
        answer = self._begun_of(caller)

        def write() -> None:
            nonlocal answer
            answer = answer[stream.write(answer) :]
            if not answer:
                stream.end()

        stream.attach(lambda data: stream.consumed(len(data)), lambda _error: None, write)
        write()

    def _begun_of(self, caller: str) -> bytes:
        file = self._files.get(caller)
        last = None if file is None else file.read()
        if last is None:
            raise NotFound("nobody here knows what was begun for that caller", asked=caller)
        return BEGUN.pack(last)

    def _file_of(self, caller: str) -> _BegunFile:
        file = self._files.get(caller)
        if file is None:
            if len(self._files) >= FILES_MAX:
                oldest = next(name for name, each in self._files.items() if not each.users)
                self._files.pop(oldest).close()
            file = self._files[caller] = _BegunFile()
        return file

    # -- both

    def _join(
        self,
        local: socket.socket,
        stream: Stream,
        pipes: dict[Pipe, str],
        said: bytes = b"",
        refuse: Callable[[ActorGridError], bytes] | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self.opened_total += 1

        def forget(pipe: Pipe) -> None:
            pipes.pop(pipe, None)
            then()

        pipes[Pipe(self._loop, local, stream, forget, said=said, refuse=refuse)] = stream.host_id

    def close(self) -> None:
        """End all of it, as this server stops: callers come back to the next one."""
        self._door.close()
        for pipe in [*self._going_out, *self._coming_in]:
            pipe.close(PeerGone("the links of this host are stopping"))
        for join in list(self._here):
            join.close()
        for file in self._files.values():
            file.close()
        self._files.clear()


def _refuse(local: socket.socket, error: ActorGridError) -> None:
    with suppress(OSError):  # it left: there is nobody to tell
        local.send(encode_keep_refused(error))


def _what_became_of(place: Path) -> ActorGridError:
    """Why an actor cannot be reached here: over for good, on another host, or not there at this moment."""
    # What lies there is of whoever made the actor: a FIFO would hold up all that we do.
    unreadable = OSError, ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException, NotARegularFile
    with suppress(*unreadable):
        said = read_whole(place.parent, f"{place.name}{DEATH_SUFFIX}", DEATH_BYTES_MAX)
        error = error_from_dict(msgpack.unpackb(said))
        return error if isinstance(error, ActorDied) else ActorDied(str(error))
    if (place.parent / OWNER_FILE).exists() and not _is_locked(place.parent / OWNER_FILE):
        return ActorDied("the actor is no more: the client that made it is gone", asked=place.name)
    with suppress(OSError, UnicodeDecodeError, NotARegularFile):
        at = (read_whole(place.parent, f"{place.name}{PLACE_SUFFIX}", HOST_ID_MAX) or b"").decode("ascii")
        return UnknownAllocation("the actor is on another host", asked=place.name, found=f"host {at}", actor_at=at)
    there = place.parent.is_dir()
    return UnknownAllocation("no such actor is there on this host now", asked=place.name, actor_folder=there)


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return is_locked(fd)
    finally:
        os.close(fd)


def _check_room(pipes: dict[Pipe, str], host_id: str) -> None:
    """Raise Overloaded where there are as many connections as there may be."""
    if len(pipes) >= STREAMS_MAX or sum(other == host_id for other in pipes.values()) >= STREAMS_OF_HOST_MAX:
        raise Overloaded(
            "this host relays its maximum of connections to actors",
            asked=f"one more with host {host_id}",
            found=f"{STREAMS_OF_HOST_MAX} with one host, {STREAMS_MAX} in all",
        )
