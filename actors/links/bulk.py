"""Large objects between hosts over several connections: brought for processes of this host, served to other hosts.

Each has threads of its own, which block and hold nothing that the server needs: what they ask of it (addresses, the
ledger's word on a host) is read from records that are replaced, never changed.

Bounds: ``BRINGS_MAX`` objects are brought at a time, with ``STREAMS_MAX`` connections each; ``SERVED_MAX`` connections
of other hosts are served, ``SERVED_OF_HOST_MAX`` of one. Beyond them the asker is told, and goes on over one stream.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from actorgrid.errors import (
    ActorGridError,
    HostUnreachable,
    MalformedBody,
    NotFound,
    PeerGone,
    PeerRefused,
    StartFailed,
)
from actorgrid.objects.bring import SEALS
from actorgrid.objects.connection import StoreConnection
from actorgrid.objects.space import ObjectSpace
from actorgrid.transports.bulk.connection import PiecesConnection
from actorgrid.transports.bulk.pieces import BulkPiece
from actorgrid.transports.bulk.served import PiecesServer
from actorgrid.transports.bulk.transfer import SIZE_MAX, BulkFetch
from actorgrid.transports.frames import FrameDecoder, encode_frame
from actorgrid.transports.numa import place_for_reader
from actorgrid.transports.object_frames import SECRET_BYTES, ObjectKey, SpaceAbout
from actorgrid.transports.paths import PathKind

from .large_paths import LargePaths
from .pieces import DIGEST

BRINGS_MAX = 8
SERVED_MAX, SERVED_OF_HOST_MAX = 32, 16
BACKLOG = 16
ASK_BYTES_MAX = 4096
ASK_S = 10.0
"""For a process to say what it wants."""
MISSING_MAX = 4096
BLOB_S = 120.0
"""For a payload, behind which others wait."""
BENCH_BYTES_MAX = 256 * 2**20
"""Of what is sent only to measure."""
ACCEPT_AGAIN_S = 0.1

log = logging.getLogger("actorgrid.links")
Dial = Callable[[str], PiecesConnection]


class Wanted(NamedTuple):
    """What a process of this host wants."""

    host: str
    secret: bytes
    key: ObjectKey


class BulkFigures(NamedTuple):
    """What was done since the start."""

    brought: int
    brought_bytes: int
    failed: int
    """Brought in part or not at all: the rest came over one stream."""
    served_bytes: int
    connections: int
    """That other hosts have now."""


class BulkObjects:
    """*store_path*: where this host's store listens. *dial*: a connection for pieces to a host, made by a thread.
    *paths*: says whether an object is to come this way, and hears how it went; without them every one is.
    *blobs_dir*: where this host's payloads and checkpoints lie."""

    def __init__(
        self, store_path: Path, dial: Dial, paths: LargePaths | None = None, blobs_dir: Path | None = None
    ) -> None:
        self.brought_bytes_total = self.brought_total = self.failed_total = 0
        self._store_path = store_path
        self._dial = dial
        self._paths = paths
        self._blobs_dir = blobs_dir
        self._door: socket.socket | None = None
        self._path: Path | None = None
        self._brings = threading.BoundedSemaphore(BRINGS_MAX)
        self.served = PiecesServer(self._open, "bulk-serve", SERVED_MAX, SERVED_OF_HOST_MAX)
        self._closed = False

    def listen(self, path: Path) -> None:
        """Take processes at *path*. Raises StartFailed."""
        path.unlink(missing_ok=True)
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            door.bind(str(path))
            path.chmod(0o600)
            door.listen(BACKLOG)
        except OSError as error:
            door.close()
            raise StartFailed(f"no door for large objects of other hosts: {error}", asked=str(path)) from error
        self._door, self._path = door, path
        threading.Thread(target=self._accept, args=(door,), name="bulk-door", daemon=True).start()

    def close(self) -> None:
        """Take and serve nobody any more."""
        self._closed = True
        if self._door is not None:
            with suppress(OSError):
                self._door.shutdown(socket.SHUT_RDWR)  # which ends the thread's accept
            self._door.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self.served.close()

    def figures(self) -> dict[str, int]:
        """For ``inspect``: what was done since the start."""
        figures = BulkFigures(
            *(self.brought_total, self.brought_bytes_total, self.failed_total),
            *(self.served.sent_bytes_total, len(self.served)),
        )
        return figures._asdict()

    # -- for processes of this host

    def _is_over(self) -> bool:
        return self._closed

    def _accept(self, door: socket.socket) -> None:
        while not self._closed:
            try:
                process, _ = door.accept()
            except OSError as error:
                if self._is_over():
                    return
                log.warning("no process can be taken for %g s: %s", ACCEPT_AGAIN_S, error)
                select.select([], [], [], ACCEPT_AGAIN_S)
                continue
            if self._brings.acquire(blocking=False):
                threading.Thread(target=self._bring, args=(process,), name="bulk-bring", daemon=True).start()
                continue
            with suppress(OSError):
                process.send(encode_frame(["failed", "the agent brings its maximum of objects"]))
            process.close()

    def _bring(self, process: socket.socket) -> None:
        try:
            with process:
                wanted, memory = _wanted(process)
                answer = self._brought(process, wanted, memory)
                process.sendall(encode_frame(answer))
        except (OSError, ActorGridError) as error:
            log.info("an object was not brought: %s", error)
        finally:
            self._brings.release()

    def _brought(self, process: socket.socket, wanted: Wanted, memory: mmap.mmap) -> list[Any]:
        if self._paths is not None:
            chosen = self._paths.choose(wanted.host, wanted.key.size)
            if chosen != PathKind.TLS_STREAMS:
                return ["failed", f"objects of {wanted.host} come over {chosen} now"]
        source = msgpack.packb([wanted.secret, list(wanted.key)])
        with memoryview(memory) as into:
            fetch = BulkFetch(lambda: self._dial(wanted.host), source, into)
            over = os.eventfd(0, os.EFD_CLOEXEC)
            watching = threading.Thread(target=_cancel_with, args=(process, over, fetch), daemon=True)
            watching.start()
            try:
                with self._counted(wanted.host, wanted.key.size):
                    fetch.run()
                return ["brought"]
            except ActorGridError as error:
                log.info("an object of %s was brought in part: %s", wanted.host, error)
                missing = fetch.plan.missing
                parts = missing if len(missing) <= MISSING_MAX else [BulkPiece(0, wanted.key.size)]
                return ["failed", error.message, [list(each) for each in parts]]
            finally:
                os.eventfd_write(over, 1)
                watching.join()
                os.close(over)

    # -- for other hosts

    def bring_blob(self, host_id: str, digest: str, size: int) -> mmap.mmap:
        """A payload of another host, in memory; its digest is not checked yet. For a thread, which it blocks.

        Raises why it could not be had whole: then it comes by calls.
        """
        memory = mmap.mmap(-1, size)
        place_for_reader(memory)
        try:
            with memoryview(memory) as into, self._counted(host_id, size):
                BulkFetch(lambda: self._dial(host_id), msgpack.packb(["blob", digest]), into).run(BLOB_S)
        except ActorGridError:
            memory.close()
            raise
        return memory

    @contextmanager
    def _counted(self, host_id: str, size: int) -> Iterator[None]:
        """A fetch of that host: how it ends is counted, and told to whoever chooses the paths."""
        paths, began_s = self._paths, time.monotonic()
        begun = 0 if paths is None else paths.begin(host_id)
        try:
            yield
        except ActorGridError as error:
            self.failed_total += 1
            if paths is not None:
                paths.failed(host_id, error.message, path=_is_broken(error))
            raise
        self.brought_total += 1
        self.brought_bytes_total += size
        if paths is not None:
            paths.came(host_id, begun, size, time.monotonic() - began_s)

    @contextmanager
    def _open_blob(self, digest: str) -> Iterator[memoryview]:
        if self._blobs_dir is None:
            raise NotFound("no payloads are here", asked=digest)
        try:
            # It has its name since it was whole, and is removed or replaced, never changed.
            with open(self._blobs_dir / digest, "rb", opener=_open_plain) as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise NotFound("the payload is not here", asked=digest) from error
        with mapped, memoryview(mapped) as view:
            yield view

    @contextmanager
    def _open(self, _host_id: str, source: bytes) -> Iterator[memoryview]:
        """The bytes of an object of our store, where they lie, for whoever knows the secret of its space."""
        found = _parse_source(source)
        if isinstance(found, str):
            with self._open_blob(found) as blob:
                yield blob
            return
        if isinstance(found, int):
            with mmap.mmap(-1, found, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ) as nothing:
                view = memoryview(nothing)
                yield view
                view.release()
            return
        secret, key = found
        space = ObjectSpace(StoreConnection(str(self._store_path)), secret, SpaceAbout())
        try:
            reading = space.read(key)
            yield reading.view.toreadonly()
            reading.view.release()
        finally:
            space.close()
            space.hang_up()


def _cancel_with(process: socket.socket, over: int, fetch: BulkFetch) -> None:
    """Cancel *fetch* when its process hangs up, or says anything more, before *over*."""
    ready, _, _ = select.select([process.fileno(), over], [], [])
    if over not in ready:
        fetch.cancel()


def _wanted(process: socket.socket) -> tuple[Wanted, mmap.mmap]:
    """What a process wants, and the memory for it. Raises MalformedBody, OSError."""
    process.settimeout(ASK_S)
    data, fds, _, _ = socket.recv_fds(process, ASK_BYTES_MAX, 1)
    try:
        frames = FrameDecoder(ASK_BYTES_MAX).feed(data)
        match frames:
            case [["bring", str(host), bytes(secret), list(fields)]] if len(fds) == 1:
                key = _key(fields)
                if fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & SEALS != SEALS or os.fstat(fds[0]).st_size != key.size:
                    raise MalformedBody("memory that is not sealed at the object's size", asked=str(key.size))
                return Wanted(host, secret, key), mmap.mmap(fds[0], key.size)
        raise MalformedBody("not what a process asks to have brought")
    except ValueError as error:
        raise MalformedBody(f"memory that cannot be used: {error}") from error
    finally:
        for fd in fds:
            os.close(fd)


def _is_broken(error: ActorGridError) -> bool:
    """Whether it is the path that failed, and not what was asked for."""
    return isinstance(error, PeerGone | HostUnreachable | PeerRefused)


def _open_plain(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def bench_source(size: int) -> bytes:
    """The source of as many zeroes, for who measures: they take no memory."""
    return bytes(msgpack.packb(["bench", size]))


def _parse_source(source: bytes) -> tuple[bytes, ObjectKey] | int | str:
    """The object, or how many zeroes, or the digest of a payload."""
    try:
        found = msgpack.unpackb(source)
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedBody("not the name of an object") from error
    match found:
        case ["bench", int(size)] if 0 < size <= BENCH_BYTES_MAX:
            return size
        case ["blob", str(digest)] if DIGEST.fullmatch(digest):
            return digest
        case [bytes(secret), list(fields)] if len(secret) == SECRET_BYTES:
            return secret, _key(fields)
    raise MalformedBody("not the name of an object")


def _key(fields: list[Any]) -> ObjectKey:
    match fields:
        case [str(store), int(number), str(host), int(size)] if 0 < size <= SIZE_MAX and 0 <= number < 2**63:
            return ObjectKey(store, number, host, size)
    raise MalformedBody("not the key of an object", found=str(fields)[:80])
