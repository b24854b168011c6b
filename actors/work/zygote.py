"""The zygote: a process with everything workers import already loaded, which forks shims on request.

It is started fresh (exec) by WorkerManager with a bare environment, so that no socket, key or memory of the agent
is in what it forks. It speaks frames on one socket pair, and ends when the other side does:

    ["fork", folder, deadline]  ->  ["forked", folder, shim pid] | ["failed", folder, why]
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from pathlib import Path

# Only for their side effect: forked children find them loaded.
import cloudpickle  # noqa: F401
import msgpack
from setproctitle import setproctitle

from actorgrid.errors import ActorGridError
from actorgrid.transports.frames import FrameDecoder, encode_frame

from . import function_call, worker  # noqa: F401
from .linux import close_all_but, die_with_parent
from .shim import run_shim


def main(arguments: str) -> None:
    """Run until the other side closes."""
    fd, parent_pid = map(int, arguments.split(","))
    die_with_parent(parent_pid)
    close_all_but([0, 1, 2, fd])
    setproctitle("actorgrid: zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    decoder = FrameDecoder()
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        control.sendall(encode_frame(["ready", os.getpid()]))
        while data := control.recv(65536):
            for frame in decoder.feed(data):
                match frame:
                    case ["fork", str(folder), float(deadline)]:
                        control.sendall(encode_frame(_fork(folder, deadline)))
    except ConnectionError:
        return  # the agent is gone


def _fork(folder: str, deadline: float) -> list[object]:
    """Fork twice, so that the shim is nobody's child in the agent's tree and no zombie is left."""
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    try:
        middle = os.fork()
    except OSError as error:
        os.close(ready_read)
        os.close(ready_write)
        return ["failed", folder, f"cannot fork: {error.strerror}"]
    if middle == 0:
        _become_shim(folder, ready_write, deadline)
    os.close(ready_write)
    os.waitpid(middle, 0)
    with open(ready_read, "rb") as pipe:
        answer = pipe.read(64)
    if not answer:
        return ["failed", folder, "its shim did not start: it has had one, or the lease ran out"]
    return ["forked", folder, msgpack.unpackb(answer)]


def _become_shim(folder: str, ready: int, deadline: float) -> None:
    code = 1
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for target in (0, 1, 2):
            os.dup2(null, target)
        close_all_but([0, 1, 2, ready])
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        run_shim(folder, ready, deadline)
        code = 0
    except (OSError, ActorGridError, KeyError) as error:
        (Path(folder) / "shim.log").write_text(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(code)
