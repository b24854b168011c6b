"""NVIDIA's program that controls MPS, as a host runs it: a daemon for each GPU and tenant, and its finding again."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess  # nosec B404 - starts NVIDIA's control program with a fixed argument list
from contextlib import suppress
from pathlib import Path

from .mps_journal import DaemonProcess
from .mps_shares import MpsKey

PROGRAM = "nvidia-cuda-mps-control"
PID_FILE = f"{PROGRAM}.pid"
"""What the daemon writes into its pipe directory, and takes away when it ends in order."""
LOG_TAIL = 2048


def program_path() -> str | None:
    """Where the program is; it comes with NVIDIA's driver."""
    return shutil.which(PROGRAM)


class MpsFolders:
    """The folders of one daemon: where its clients find it, and where it logs."""

    def __init__(self, sockets: Path, logs: Path, tag: str, key: MpsKey) -> None:
        name = hashlib.sha256("\0".join((tag, *key)).encode()).hexdigest()[:16]
        self.pipe = sockets / f"m-{name}"  # short: its sockets' paths hold 107 bytes
        self.log = logs / name

    def make(self) -> None:
        """Have both there, for our user alone. Raises OSError."""
        for folder in (self.pipe, self.log):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def remove(self) -> None:
        """Take away the pipe directory; the logs stay."""
        shutil.rmtree(self.pipe, ignore_errors=True)

    def last_words(self) -> str:
        """The last line of the daemon's log; empty: it has none."""
        try:
            with open(self.log / "control.log", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1][:200] if lines else ""

    def daemon(self) -> DaemonProcess | None:
        """The daemon that says it serves this pipe directory, if it lives."""
        try:
            pid = int((self.pipe / PID_FILE).read_text()[:20])
        except (OSError, ValueError):
            return None
        ticks = start_ticks(pid)
        return None if ticks is None or not _is_program(pid) else DaemonProcess(pid, ticks)


def begin_daemon(program: str, key: MpsKey, folders: MpsFolders) -> subprocess.Popen[bytes]:
    """Run the program that puts a daemon into the background, for one GPU. Raises OSError."""
    return subprocess.Popen(  # nosec B603
        [program, "-d"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**_environment(folders), "CUDA_VISIBLE_DEVICES": key.uuid},
        start_new_session=True,
    )


def ask_to_quit(program: str, folders: MpsFolders) -> subprocess.Popen[bytes]:
    """Tell the daemon to end, by the program's own command. Raises OSError."""
    asking = subprocess.Popen(  # nosec B603
        [program],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_environment(folders),
        start_new_session=True,
    )
    assert asking.stdin is not None
    with suppress(OSError):
        asking.stdin.write(b"quit\n")
        asking.stdin.close()
    return asking


def _environment(folders: MpsFolders) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    return {
        **ours,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_MPS_PIPE_DIRECTORY": str(folders.pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(folders.log),
    }


def start_ticks(pid: int) -> int | None:
    """When the process started, in ticks after the machine did; ``None``: it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in ("Z", "X") else int(fields[18])


def lives(daemon: DaemonProcess) -> bool:
    """Whether that process, and no other of its id, runs."""
    return start_ticks(daemon.pid) == daemon.ticks


def end(daemon: DaemonProcess, number: signal.Signals) -> None:
    """Send a signal, if it runs."""
    if lives(daemon):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(daemon.pid, number)


def with_servers(daemon: DaemonProcess) -> list[int]:
    """The daemon's process id, and those of its servers: its children, which hold memory of the GPU."""
    try:
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
    except OSError:
        children = []
    return [daemon.pid, *map(int, children)]


def _is_program(pid: int) -> bool:
    try:
        return PROGRAM.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
