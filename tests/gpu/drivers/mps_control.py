"""A stand-in for NVIDIA's ``nvidia-cuda-mps-control``: its daemon, its commands, and no GPU.

As the real one, ``-d`` puts a daemon into the background, which writes its process id into the pipe directory, starts
a server as its child when it is told to, and ends on ``quit``; without an option it sends the commands on its stdin.
What it was started with it adds to MPS_STUB_LOG; while MPS_STUB_BROKEN is a file, it does not start.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

PROGRAM = "nvidia-cuda-mps-control"
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
    with open(os.environ["MPS_STUB_LOG"], "a") as file:
        file.write(json.dumps({name: os.environ.get(name) for name in VARIABLES} | {"pid": os.getpid()}) + "\n")
    server = os.fork()
    if server == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pause()
    own = pipe / f"{PROGRAM}.pid"
    own.with_suffix(".new").write_text(str(os.getpid()))
    own.with_suffix(".new").rename(own)
    while True:
        connection, _ = listener.accept()
        with connection:
            command = connection.recv(4096).decode().strip()
            if command == "get_server_list":
                connection.sendall(f"{server}\n".encode())
            elif command == "quit":
                os.kill(server, signal.SIGTERM)
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
