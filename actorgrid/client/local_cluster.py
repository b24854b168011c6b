"""A cluster of one's own for scripts, notebooks and tests: a real agent in a process of its own."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actorgrid.configs.paths import HostPaths
from actorgrid.errors import ActorGridError, BadRequest, HostError, StartFailed, error_from_dict

from .client import Client
from .local_dirs import make_own, remove, sweep

if TYPE_CHECKING:
    from types import TracebackType

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
STDERR_KEPT = 16 * 1024
# The agent asks the kernel for SIGTERM at our end. PR_SET_PDEATHSIG counts the *thread* that made the process as the
# parent: ours lives as long as the cluster. Should we be gone before it asked, it sees that it has another parent.
# A temporary directory of an owner that was killed is removed here, at the end: nobody else is left to do it.
_BOOTSTRAP = """
import ctypes, os, runpy, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)
owner, temporary, here = int(sys.argv.pop(1)), sys.argv.pop(1), os.getpid()
if os.getppid() != owner: sys.exit(1)
sys.path[:] = [entry for entry in sys.path if entry]
try:
    runpy.run_module("actorgrid", run_name="__main__", alter_sys=True)
finally:
    if temporary and os.getpid() == here and os.getppid() != owner:
        from pathlib import Path
        from actorgrid.client.local_dirs import remove
        remove(Path(temporary))
"""


class _Agent:
    """The agent of one cluster, with the thread that is its parent. Holds no LocalCluster, which so can be dropped."""

    def __init__(self, data_dir: Path, own_dir: bool) -> None:
        self.data_dir = data_dir
        self.owner_pid = os.getpid()
        self.started: queue.Queue[dict[str, Any] | ActorGridError] = queue.Queue()
        self.process: subprocess.Popen[bytes] | None = None
        self.said = b""
        self._own_dir = own_dir
        self._error: ActorGridError | None = None
        self._exited = threading.Event()
        self._dropped = False
        self._thread: threading.Thread | None = None

    def start(self, command: list[str]) -> None:
        """Start it. What comes of it is in ``started``: its first event, or why there is none."""
        self._thread = threading.Thread(target=self._run, args=(command,), name="actorgrid-local-cluster", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop it in order, by force after 20 s, and remove a directory of its own."""
        process = self.process
        if process is not None and not self._exited.is_set():
            _send(process, signal.SIGTERM)
            if not self._exited.wait(STOP_TIMEOUT_S):
                _send(process, signal.SIGKILL)
                self._exited.wait(STOP_TIMEOUT_S)
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
        if self._own_dir:
            remove(self.data_dir)
        _agents.discard(self)

    def let_go(self) -> None:
        """Stop it without a wait: nobody holds its cluster any more. Takes no lock, as a finalizer must not."""
        if self.owner_pid != os.getpid():
            return  # a fork's copy: the agent is the parent's
        self._dropped = True
        if self.process is not None and not self._exited.is_set():
            _send(self.process, signal.SIGTERM)

    def _run(self, command: list[str]) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTORGRID_")}
        root = str(Path(__file__).resolve().parent.parent.parent)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH", ""))))
        temporary = str(self.data_dir) if self._own_dir else ""
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, str(os.getpid()), temporary, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the user's program; it closes us in its own time
            )
        except OSError as error:
            self._exited.set()
            self.started.put(StartFailed(f"cannot start Python: {error}", asked=sys.executable))
            return
        self.process = process
        assert process.stdout is not None and process.stderr is not None
        errors = threading.Thread(
            target=self._drain, args=(process.stderr,), name="actorgrid-agent-stderr", daemon=True
        )
        errors.start()
        with process.stdout:
            for line in process.stdout:
                self._hear(line)
        code = process.wait()
        errors.join(STOP_TIMEOUT_S)
        self._exited.set()
        self.started.put(_failure(self._error, code, self.said))
        if self._dropped:
            if self._own_dir:
                remove(self.data_dir)
            _agents.discard(self)

    def _hear(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return  # not for us
        if isinstance(event, dict) and event.get("event") == "ready":
            self.started.put(event)
        elif isinstance(event, dict) and isinstance(event.get("error"), dict):
            self._error = error_from_dict(event["error"])

    def _drain(self, pipe: Any) -> None:
        with pipe:
            while piece := pipe.read1(4096):
                self.said = (self.said + piece)[-STDERR_KEPT:]


_agents: set[_Agent] = set()
"""Those that have not been stopped yet."""


class LocalCluster:
    """One host with simulated GPUs, up when this returns, gone after ``close()`` or with this process.

    ``gpus``: how many to simulate (of *gpu_model*, like ``H100-80GB``); ``None``: the machine's own; 0: none.
    ``settings``: by dotted path, ``{"work.pools.general.warm": 4}``. Without *data_dir*, a temporary one is used
    and removed at the end: by ``close()``, when it is collected, when the interpreter ends, by the agent when this
    process was killed; what is left even so goes at the next start of one. Clients of its own keep it from being
    collected, and so does what they have submitted. Raises StartFailed with what the agent said.
    """

    def __init__(
        self,
        hosts: int = 1,
        gpus: int | None = 8,
        *,
        gpu_model: str = "H100-80GB",
        data_dir: str | os.PathLike[str] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        if hosts != 1:
            raise BadRequest(
                "several hosts come with the cluster release", asked=f"hosts={hosts}", hint="use hosts=1 for now"
            )
        if gpus is not None and not 0 <= gpus <= 1024:
            raise BadRequest("simulate 0 to 1024 GPUs", asked=f"gpus={gpus}")
        if data_dir is None:
            sweep()
        self.data_dir = make_own() if data_dir is None else Path(data_dir).absolute()
        self._agent = _Agent(self.data_dir, own_dir=data_dir is None)
        _agents.add(self._agent)
        weakref.finalize(self, self._agent.let_go).atexit = False  # at the end of the program: _stop_left_running
        self._closed = False
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()
        self._client: Client | None = None
        # What it is like is said here, each time: nothing is taken from what a start before was told.
        command = ["up", "--json", "--forget", "--port", "0", "--data-dir", str(self.data_dir)]
        if gpus is not None:
            command += ["--gpus", f"simulated:{gpus}x{gpu_model}" if gpus else "none"]
        for key, value in (settings or {}).items():
            command += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        self._agent.start(command)
        try:
            ready = self._agent.started.get(timeout=START_TIMEOUT_S)
            if isinstance(ready, ActorGridError):
                raise ready
        except queue.Empty:
            said = self._agent.said + self._log()
            self.close()
            raise StartFailed(f"the host was not ready within {START_TIMEOUT_S:g} s", found=_last(said)) from None
        except BaseException:
            self.close()
            raise
        self.url = str(ready["url"])
        self.token = HostPaths(self.data_dir).token_file.read_text(encoding="ascii").strip()

    @property
    def pid(self) -> int:
        """The agent's process id."""
        assert self._agent.process is not None
        return self._agent.process.pid

    def client(self, **options: Any) -> Client:
        """A client of this cluster, closed with it. Options as for Client."""
        client = Client(self.url, self.token, **options)
        client.http.owner = self
        self._clients.add(client)
        return client

    def close(self) -> None:
        """Stop the agent in order, by force after 20 s; leave nothing behind. Again: harmless."""
        if self._closed:
            return
        self._closed = True
        for client in list(self._clients):
            client.close()
        self._agent.stop()

    def __enter__(self) -> LocalCluster:
        from .task import push_default

        self._client = self.client()
        push_default(self._client)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        from .task import pop_default

        if self._client is not None:
            pop_default(self._client)
        self.close()

    def __repr__(self) -> str:
        return f"<LocalCluster {getattr(self, 'url', 'not up')}{' closed' if self._closed else ''}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from .html_cards import card

        rows = [("host", getattr(self, "url", "")), ("agent's pid", self.pid), ("directory", self.data_dir)]
        return card("LocalCluster", rows, *(("closed", "over") if self._closed else ("up", "good")))

    def _log(self) -> bytes:
        try:
            return HostPaths(self.data_dir).log_file.read_bytes()[-STDERR_KEPT:]
        except OSError:
            return b""


@atexit.register
def _stop_left_running() -> None:
    """A program that forgets to close one, or fails, leaves nothing behind; a fork of it leaves its parent's alone."""
    for agent in list(_agents):
        if agent.owner_pid == os.getpid():
            agent.stop()


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _failure(named: ActorGridError | None, code: int, said: bytes) -> ActorGridError:
    """The error of an agent that ended at its start, with what it said."""
    if isinstance(named, HostError):
        return named
    if named is not None:
        failed = StartFailed(named.message, asked=named.asked, found=named.found, hint=named.hint)
        failed.__cause__ = named
        return failed
    return StartFailed(f"the host left with status {code} before it was ready", found=_last(said))


def _last(said: bytes) -> str:
    return said.decode("utf-8", "replace").strip()[-2000:]
