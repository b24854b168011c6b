"""Runs a command of a setting: without a shell, for a limited time, keeping a limited part of what it says.

For hooks that restart machines. The server goes on meanwhile: nothing here waits in the kernel.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess  # nosec B404 - the administrator's command line, as a list, never through a shell
from collections.abc import Sequence
from dataclasses import dataclass

from actorgrid.supervisors.server import Server

OUTPUT_KEPT = 1500
LOOK_S = 0.05
READ_AT_ONCE = 2**16


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended. ``status``: its exit status, minus a signal, or ``None``: it was not back in time."""

    status: int | None
    said: str


async def run_command(server: Server, argv: Sequence[str], timeout_s: float, told: bytes = b"") -> CommandEnd:
    """Run *argv*, with *told* (at most 4 KiB) on its standard input. One that cannot be started has status 127."""
    reading, writing = os.pipe()
    with contextlib.suppress(OSError):
        os.write(writing, told[:4096])
    os.close(writing)
    try:
        process = subprocess.Popen(  # nosec B603
            list(argv),
            stdin=reading,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
        )
    except (OSError, ValueError) as error:
        return CommandEnd(127, f"it cannot be started: {error}"[:OUTPUT_KEPT])
    finally:
        os.close(reading)
    assert process.stdout is not None
    said = b""
    os.set_blocking(process.stdout.fileno(), False)
    deadline = server.runtime.monotonic() + timeout_s
    try:
        while process.poll() is None:
            said = _read(process.stdout.fileno(), said)
            if server.runtime.monotonic() >= deadline:
                return CommandEnd(None, _text(said))
            await server.sleep(LOOK_S)
        return CommandEnd(process.returncode, _text(_read(process.stdout.fileno(), said)))
    finally:
        # What it left running in its session goes with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.poll() is None:
            process.wait()
        process.stdout.close()


def _read(descriptor: int, said: bytes) -> bytes:
    """What was said until now, with what is there; all is read, so that the command does not wait, and little kept."""
    try:
        more = os.read(descriptor, READ_AT_ONCE)
    except BlockingIOError:
        return said
    return (said + more)[:OUTPUT_KEPT]


def _text(said: bytes) -> str:
    return said.decode("utf-8", "replace").strip()
