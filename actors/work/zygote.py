"""The zygote: a process with everything workers import already loaded, which forks shims on request.

It is started fresh (exec) by WorkerManager with a bare environment, so that no socket, key or memory of the agent
is in what it forks. It speaks frames on one socket pair, and ends when the other side does:

    ["fork", folder, deadline]  ->  ["forked", folder, shim pid] | ["failed", folder, why]
    ["try"]                     ->  ["tried", means]

Before it says ["ready", pid, containment], it tries out what work can be kept in on this host, and starts the guard.
By what work can be kept apart is tried when it is asked for: once for an agent, not at each start of a zygote.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from contextlib import suppress
from pathlib import Path

# Only for their side effect: forked children find them loaded.
import cloudpickle  # noqa: F401
import msgpack
from setproctitle import setproctitle

from actorgrid.errors import ActorGridError
from actorgrid.transports.frames import FrameDecoder, encode_frame

from . import function_call, function_job, function_server, function_shim, task_multiprocessing, worker, worker_process  # noqa: F401
from .containment import Containment, choose
from .guard import GuardLink, start_guard
from .isolation import calls
from .isolation.probes import try_out
from .linux import close_all_but, die_with_parent
from .shim_start import run_shim


def main(arguments: str) -> None:
    """Run until the other side closes."""
    first, second, wanted, guard_path = arguments.split(",", 3)
    fd = int(first)
    die_with_parent(int(second))
    close_all_but([0, 1, 2, fd])
    setproctitle("actorgrid: zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    decoder = FrameDecoder()
    task_multiprocessing.install()
    # Shims are forked from here and share its memory. The collector writes into every object that it looks at, which
    # would give each its own copy: so garbage goes now, and what stays is not looked at again.
    calls.get_ready()
    gc.collect()
    gc.disable()
    gc.freeze()
    containment = choose(wanted)
    guard = GuardLink(guard_path, {"keep": True})
    _keep_guard(guard, guard_path)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    try:
        control.sendall(encode_frame(["ready", os.getpid(), containment.to_plain()]))
        while True:
            watched = guard.socket
            if watched is not None:
                poll.register(watched, select.POLLIN)
            ready = [found for found, _ in poll.poll()]
            if watched is not None and watched.fileno() in ready:
                poll.unregister(watched)
                guard.lost()
                _keep_guard(guard, guard_path)
            if fd in ready:
                data = control.recv(65536)
                if not data:
                    return
                for frame in decoder.feed(data):
                    match frame:
                        case ["fork", str(folder), float(deadline)]:
                            control.sendall(encode_frame(_fork(folder, deadline, containment)))
                        case ["try"]:
                            control.sendall(encode_frame(["tried", try_out().to_plain()]))
    except ConnectionError:
        return  # the agent is gone


def _keep_guard(guard: GuardLink, path: str) -> None:
    """Stay connected to the guard, so that it stays; start one where there is none.

    Where that fails, shims go on without one: what they keep their work in is still ended by them, and by the next
    start.
    """
    if path and not guard.connect():
        with suppress(OSError):
            start_guard(path)
        guard.connect()


def _fork(folder: str, deadline: float, containment: Containment) -> list[object]:
    """Fork twice, so that the shim is nobody's child in the agent's tree and no zombie is left."""
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    try:
        middle = os.fork()
    except OSError as error:
        os.close(ready_read)
        # Before the read below, which ends when all have closed it: where no shim starts, it would not.
        os.close(ready_write)
        return ["failed", folder, f"cannot fork: {error.strerror}"]
    if middle == 0:
        _become_shim(folder, ready_write, deadline, containment)
    os.close(ready_write)
    os.waitpid(middle, 0)
    with open(ready_read, "rb") as pipe:
        answer = pipe.read(64)
    if not answer:
        return ["failed", folder, "its shim did not start: it has had one, or the lease ran out"]
    return ["forked", folder, msgpack.unpackb(answer)]


def _become_shim(folder: str, ready: int, deadline: float, containment: Containment) -> None:
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
        run_shim(folder, ready, deadline, containment)
        code = 0
    except (OSError, ActorGridError, KeyError) as error:
        (Path(folder) / "shim.log").write_text(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(code)
