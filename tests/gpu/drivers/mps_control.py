"""A stand-in for NVIDIA's ``nvidia-cuda-mps-control``: its daemon, its commands, and no GPU.

As the real one, ``-d`` puts a daemon into the background, which writes its process id into the pipe directory, starts
a server as its child, with its own uid, and ends on ``quit``; without an option it sends the commands on its stdin. A
client (``client`` on the socket) finds the server's memory in /dev/shm, and one of another uid is refused, root too.
What it was started with it adds to MPS_STUB_LOG, or to a file beside its log; while MPS_STUB_BROKEN is a file, it does
not start.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import NoReturn

PROGRAM = "nvidia-cuda-mps-control"
STUB_LOG = "stub.log"
PR_SET_PDEATHSIG = 1
VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")


def install(folder: Path) -> Path:
    """Put the program into *folder*, which is to be on the PATH."""
    folder.mkdir(exist_ok=True)
    program = folder / PROGRAM
    # -S and no package of ours: it starts in some 20 ms.
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {Path(__file__).resolve()} {PROGRAM} "$@"\n')
    program.chmod(0o755)
    return program


def fail(why: str) -> NoReturn:
    with open(Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / "control.log", "a") as file:
        file.write(f"[2026-11-26 00:00:00.000 Control 1] {why}\n")
    sys.exit(1)


def begin(pipe: Path) -> None:
    """Be the front end of -d: it returns when the daemon serves."""
    if Path(os.environ.get("MPS_STUB_BROKEN", "/nonexistent")).exists():
        fail("Failed to start : the stub is broken")
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(pipe / "control"))
    except OSError:
        fail("An instance of this daemon is already running")
    listener.listen()
    pid = os.fork()
    if pid:
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    told = {name: os.environ.get(name) for name in VARIABLES}
    told |= {"pid": os.getpid(), "uid": os.getuid(), "environ": sorted(os.environ)}
    with open(os.environ.get("MPS_STUB_LOG") or Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / STUB_LOG, "a") as file:
        file.write(json.dumps(told) + "\n")
    server = os.fork()
    if server == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pause()
    memory = Path("/dev/shm", f"mps-stub-{os.getpid()}")
    own = pipe / f"{PROGRAM}.pid"
    own.with_suffix(".new").write_text(str(os.getpid()))
    own.with_suffix(".new").rename(own)
    while True:
        connection, _ = listener.accept()
        with connection:
            command = connection.recv(4096).decode().strip()
            _, uid, _ = struct.unpack("=iii", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if command == "client" and uid != os.getuid():
                connection.sendall(b"User did not send valid credentials")
            elif command == "client":
                memory.write_text("of the server")
                connection.sendall(str(memory).encode())
            elif command == "get_server_list":
                connection.sendall(f"{server}\n".encode())
            elif command == "quit":
                os.kill(server, signal.SIGTERM)
                memory.unlink(missing_ok=True)
                own.unlink()
                os._exit(0)


def send(pipe: Path) -> None:
    """Be the front end: each line of stdin is a command."""
    for line in sys.stdin:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(pipe / "control"))
            connection.sendall(line.encode())
            sys.stdout.write(connection.recv(4096).decode())


if __name__ == "__main__":
    pipes = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    if "-d" in sys.argv:
        begin(pipes)
    else:
        send(pipes)
