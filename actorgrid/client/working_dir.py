"""A client's working directory: packed when it is first needed elsewhere, and sent to whom it is new."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence

from actorgrid.errors import BadRequest, PeerGone, PeerRefused
from actorgrid.import_environment import ImportEnvironment, of_this_process
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.task_frames import ClientRefused, WorkingDirHere, encode_working_dir, parse_worker_frame

from .http import AdminHttp
from .working_dir_archive import WorkingDirArchive, pack

KNOWN_S = 300.0
"""So long a door is taken to have what it had; it keeps an archive that no job names for ten minutes."""
KEEP_S = 120.0
SEND_S = 120.0


class WorkingDir:
    """The working directory of one client. It is packed once: what is edited afterwards is of the next client."""

    def __init__(self, folder: str | os.PathLike[str], exclude: Sequence[str] = ()) -> None:
        """Raises BadRequest for what is no directory."""
        self.folder = os.path.abspath(folder)
        if not os.path.isdir(self.folder):
            raise BadRequest("the working directory is no directory", asked=self.folder)
        if isinstance(exclude, str):
            raise BadRequest("exclude is a list of patterns", asked=repr(exclude)[:80], hint=f"exclude=[{exclude!r}]")
        self._exclude = tuple(exclude)
        self._packed: WorkingDirArchive | None = None
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._known_at = 0.0

    def after_fork(self) -> None:
        """Go on in a forked child: a thread of the parent may have held the locks."""
        self._lock = threading.Lock()
        self._sending = threading.Lock()

    def packed(self) -> WorkingDirArchive:
        """The archive. Raises BodyTooLarge, BadRequest."""
        with self._lock:
            if self._packed is None:
                self._packed = pack(self.folder, self._exclude)
            return self._packed

    def environment(self, installed: bool = True) -> ImportEnvironment:
        """Where workers on this machine go: the directory itself, and first on the path. *installed*: as there."""
        here = of_this_process(installed=installed)
        return here._replace(directory=self.folder, before=tuple(dict.fromkeys((self.folder, *here.before))))

    def send_to_door(self, http: AdminHttp) -> str:
        """Have the archive where jobs are accepted; gives its digest. It is sent only where it is not yet."""
        digest, archive = self.packed()
        with self._sending:
            if not self._known_at or time.monotonic() - self._known_at > KNOWN_S:
                here = http.post("/api/working-dirs", {"digest": digest}, repeat=True)["here"]
                if not here:
                    request = {"digest": digest, "archive": archive}
                    http.post("/api/working-dirs", request, repeat=True, timeout_s=SEND_S)
                self._known_at = time.monotonic()
        return digest

    def send_to_worker(self, sock: socket.socket, decoder: FrameDecoder) -> None:
        """Have a worker on another machine go to the directory: sent once to a host, one worker at a time.

        Raises what the worker refuses with, PeerGone, OSError.
        """
        digest, archive = self.packed()
        with self._sending:
            before_s = sock.gettimeout()
            sock.settimeout(KEEP_S)
            sock.sendall(encode_working_dir(digest))
            if not _answer(sock, decoder):
                sock.sendall(encode_working_dir(digest, archive))
                if not _answer(sock, decoder):
                    raise PeerRefused("the leased worker does not take the working directory", asked=digest)
            sock.settimeout(before_s)


def _answer(sock: socket.socket, decoder: FrameDecoder) -> bool:
    frames: list[list[object]] = []
    while not frames:
        data = sock.recv(65536)
        if not data:
            raise PeerGone("the leased worker closed the connection")
        frames = decoder.feed(data)
    answer = parse_worker_frame(frames[0])
    if isinstance(answer, ClientRefused):
        raise answer.error
    if not isinstance(answer, WorkingDirHere):
        raise PeerRefused("the leased worker said something else than about the working directory")
    return answer.here
