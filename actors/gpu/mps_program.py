"""NVIDIA's program that controls MPS, as a host runs it: a daemon for each GPU and tenant, and its finding again.

A daemon of work that has a uid of its own runs as that uid, kept apart as the work is. So no process of root's listens
to a tenant, the server has the uid of its clients, and what its user does to it (end it, change its limits) is done to
that user's shares alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess  # nosec B404 - starts NVIDIA's control program with a fixed argument list
import sys
from contextlib import suppress
from pathlib import Path

import actorgrid
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import NotARegularFile

from ..files.untrusted_files import open_to_read, read_whole, remove_tree
from .mps_journal import DaemonProcess
from .mps_shares import MpsKey

PROGRAM = "nvidia-cuda-mps-control"
PID_FILE = f"{PROGRAM}.pid"
"""What the daemon writes into its pipe directory, and takes away when it ends in order."""
PID_BYTES_MAX = 20
LOG_TAIL = 2048
APART_HOME = "home"
"""In the folder of a daemon that is kept apart: what is its uid's (``work/isolation/own_folders.py``)."""
START_LOG = "start.log"
"""Beside it: why it could not be kept apart."""
_FOR_OTHERS = frozenset({"PATH", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "XDG_RUNTIME_DIR"})
# By its name: how work is kept apart is the room's above us, and this is another process.
_BOOT = "import sys; sys.path.append(sys.argv[1]); from actorgrid.actors.work.isolation.helper import main; main()"


def program_path() -> str | None:
    """Where the program is; it comes with NVIDIA's driver."""
    return shutil.which(PROGRAM)


class MpsFolders:
    """The folders of one daemon: where its clients find it, and where it logs.

    Work that has a uid of its own finds a folder of its uid's at the place of the host's sockets; its daemon does, too.
    """

    def __init__(self, paths: HostPaths, key: MpsKey) -> None:
        words = [str(paths.data_dir), key.uuid, key.tenant, *([str(key.uid)] if key.uid else [])]
        name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
        self._paths, self.data_dir, self.uid = paths, paths.data_dir, key.uid
        self.pipe = paths.work_sockets_dir / f"m-{name}"  # short: its sockets' paths hold 107 bytes
        """As the daemon and its clients name it."""
        self._pipe_here = paths.own_sockets_dir(key.uid) / self.pipe.name if key.uid else self.pipe
        self.own = paths.mps_logs_dir / name
        self.log = self.own / APART_HOME if key.uid else self.own

    def make(self) -> None:
        """Have what is ours of them, for our user alone; what is another uid's it makes by itself. Raises OSError."""
        for folder in (self.own,) if self.uid else (self.pipe, self.log):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def remove(self) -> None:
        """Take away the pipe directory; the logs stay."""
        remove_tree(self._pipe_here)

    def clear_shared_memory(self) -> None:
        """Take away what work of that uid has left in the memory that it shares with its daemons."""
        remove_tree(self._paths.shared_memory_dir(self.uid))

    def last_words(self) -> str:
        """The last line of the daemon's log; empty: it has none."""
        for folder, name in ((self.own, START_LOG), (self.log, "control.log")):
            with suppress(OSError, NotARegularFile), open_to_read(folder, name) as fd:
                data = os.pread(fd, LOG_TAIL, max(0, os.fstat(fd).st_size - LOG_TAIL))
                if lines := data.decode(errors="replace").strip().splitlines():
                    return lines[-1][:200]
        return ""

    def daemon(self) -> DaemonProcess | None:
        """The daemon that says it serves this pipe directory, if it lives.

        What another uid has written there is believed of that uid's own processes only: they are signalled.
        """
        try:
            pid = int((read_whole(self._pipe_here, PID_FILE, PID_BYTES_MAX) or b"").decode())
            owner = os.stat(f"/proc/{pid}").st_uid
        except (OSError, ValueError, NotARegularFile):
            return None
        ticks = start_ticks(pid)
        is_its = owner == (self.uid or os.geteuid()) and _is_program(pid)
        return None if ticks is None or not is_its else DaemonProcess(pid, ticks)


def begin_daemon(program: str, key: MpsKey, folders: MpsFolders) -> subprocess.Popen[bytes]:
    """Run the program that puts a daemon into the background, for one GPU. Raises OSError."""
    return subprocess.Popen(  # nosec B603
        [*_apart(folders), program, "-d"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**_environment(folders), "CUDA_VISIBLE_DEVICES": key.uuid},
        start_new_session=True,
    )


def ask_to_quit(program: str, folders: MpsFolders) -> subprocess.Popen[bytes]:
    """Tell the daemon to end, by the program's own command. Raises OSError."""
    asking = subprocess.Popen(  # nosec B603
        [*_apart(folders), program],
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


def _apart(folders: MpsFolders) -> list[str]:
    """What begins the command of a program that is kept apart as the work under it is; nothing: it is the agent's."""
    if not folders.uid:
        return []
    root = str(Path(actorgrid.__file__).resolve().parent.parent)
    return [sys.executable, "-I", "-c", _BOOT, root, str(folders.data_dir), str(folders.uid), str(folders.own)]


def _environment(folders: MpsFolders) -> dict[str, str]:
    # What has another uid has what it needs, and nothing that is meant for the agent.
    ours = {
        name: value
        for name, value in os.environ.items()
        if (name in _FOR_OTHERS if folders.uid else not name.startswith("CUDA_"))
    }
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
