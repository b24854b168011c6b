"""The worker of function jobs: runs the calls that its shim hands it, one after another, in one process.

Frames on its one socket, to its shim; the shim judges what a call left behind (process_state.py), not the worker::

    ["ready"]                                         once, before the first call
    ["call", a ServedCallSpec]  from the shim (function_shim.py)
    ["done", modules]                                 its result is in its folder; the process is ready for another
    ["refused", why]                                  it was not begun
    ["leave"]                                         from the shim: exit with 0

*modules* are the files of the user's own modules that the call has imported, each with its time and size: when one of
them has changed, the next call has to find the new one, and so gets another process. A call that did not succeed is
the last: the process exits with its code, as one that runs a single call does.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

from actorgrid import task_context
from actorgrid.import_environment import in_site_folder
from actorgrid.transports.frames import FrameDecoder, encode_frame

from . import function_job
from .environment import use_environment
from .kept_connections import EXIT_TOO_LATE
from .linux import MARK_HOST, mark
from .work_records import ServedCallSpec, WorkSpec

READ_BYTES = 256 * 1024
MODULES_MAX = 256
"""So many files of the user's are looked at before each call; a process that has imported more serves no other."""


def serve(spec: WorkSpec, control: socket.socket, is_over: Callable[[], bool]) -> NoReturn:
    """Run calls until the shim says that it is enough, or is gone, or the deadline has passed (*is_over*)."""
    faulthandler.enable(file=2)
    server = _Server(spec, control)
    decoder = FrameDecoder()
    control.sendall(encode_frame(["ready"]))
    while data := control.recv(READ_BYTES):
        for frame in decoder.feed(data):
            match frame:
                case ["call", dict(call)]:
                    server.run(cast("ServedCallSpec", call))
                    if is_over():
                        os._exit(EXIT_TOO_LATE)  # what it left is not taken
                case ["leave"]:
                    os._exit(0)
    os._exit(0)


class _Server:
    """What is set anew for each call, and what is known of the modules."""

    def __init__(self, spec: WorkSpec, control: socket.socket) -> None:
        self._control = control
        self._worker_id = spec["id"]
        self._tag = str(spec["env"].get(MARK_HOST, ""))
        self._path = list(sys.path)
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._known = set(sys.modules)
        self._libc = ctypes.CDLL(None)

    def run(self, call: ServedCallSpec) -> None:
        """Run one call and say how it went; leave where it failed."""
        task_context.begins(None)  # what is unpickled before the call itself begins is not the last one's
        mark(self._tag, call["id"])
        sys.path[:] = self._path
        sys.stdin, sys.stdout, sys.stderr = self._streams
        use_environment(call["env"])
        os.umask(0o022)
        gc.enable()
        try:
            os.chdir(call["cwd"])
        except (OSError, ValueError) as error:
            why = (error.strerror or "") if isinstance(error, OSError) else str(error)
            self._control.sendall(encode_frame(["refused", f"cannot enter {call['cwd']}: {why}"[:4000]]))
            return
        code = function_job.run_job(call, Path(call["draft_path"]), durably=False)
        # What C code has printed goes with this call, too: the next one has files of its own.
        self._libc.fflush(None)
        if code:
            os._exit(code)
        modules = self._imported()
        os.chdir("/")
        # Before it is told: from then on, nothing is left of the attempt whose mark this was.
        mark(self._tag, self._worker_id)
        self._control.sendall(encode_frame(["done", modules]))

    def _imported(self) -> list[list[Any]]:
        """The files of the user's own modules that were imported since the last time."""
        if len(sys.modules) == len(self._known):
            return []
        found: list[list[Any]] = []
        for name in sys.modules.keys() - self._known:
            path = getattr(sys.modules.get(name), "__file__", None)
            # Nor those of the client's own venv: its folders are on sys.path then.
            if isinstance(path, str) and not in_site_folder(path):
                try:
                    facts = os.stat(path)
                except OSError:
                    found.append([path, 0, 0])  # it is gone already: what another call would find is not this
                else:
                    found.append([path, facts.st_mtime_ns, facts.st_size])
        self._known = set(sys.modules)
        return found[: MODULES_MAX + 1]
