"""A small host for tests of the client: the real worker code behind a few routes of the admin door."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from actorgrid.client.client import Client
from actorgrid.errors import ActorGridError, Overloaded, StartFailed, UnknownAllocation, UnknownSession, WrongToken
from actorgrid.transports.frames import FrameDecoder, encode_frame

_WORKER = """
import socket, sys
from actorgrid.actors.work.worker import serve
from actorgrid.actors.work.worker_process import WorkerDeadline
from actorgrid.actors.work.worker_switch import WorkerHost
host = WorkerHost({"worker": {"objects": sys.argv[4]}}, WorkerDeadline(lambda: False, -1)) if sys.argv[4] else None
serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])), socket.socket(fileno=int(sys.argv[3])), host)
"""


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Poll *condition*; fails after the deadline."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.005)


class WorkerProcess:
    def __init__(self, folder: Path, number: int, objects: str = "") -> None:
        self.worker_id = f"w{number}"
        self.path = str(folder / f"{number}.sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.path)
        listener.listen(4)
        self._control, theirs = socket.socketpair()
        with listener, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _WORKER, self.worker_id, str(listener.fileno()), str(theirs.fileno()), objects],
                pass_fds=(listener.fileno(), theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def begin(self, session: str, env: dict[str, str]) -> str:
        secret = secrets.token_hex(8)
        fields = {"secret": secret, "session": session, "env": {**os.environ, **env}, "gpu_uuids": [], "title": "t"}
        self._control.sendall(encode_frame(["session", fields]))
        decoder = FrameDecoder()
        frames: list[list[Any]] = []
        while not frames:
            try:
                data = self._control.recv(4096)
            except OSError as error:
                raise StartFailed("the worker is gone") from error
            if not data:
                raise StartFailed("the worker is gone")
            frames = decoder.feed(data)
        assert frames[0][0] == "ready"
        return secret

    def stop(self) -> None:
        self._control.close()
        self.process.kill()
        self.process.wait()


class StandIn:
    """``workers_max`` workers at most; a lease beyond that is refused as Overloaded. *objects*: of an object store."""

    def __init__(self, workers_max: int = 2, objects: str = "") -> None:
        self.workers_max = workers_max
        self.objects = objects
        self.token = secrets.token_hex(8)
        self.requests: list[tuple[str, str]] = []
        self.sessions: set[str] = set()
        self.leases: dict[str, WorkerProcess] = {}
        self.lease_sessions: dict[str, str] = {}
        self.lease_requests: list[dict[str, Any]] = []
        self.routes: dict[tuple[str, str], Callable[[dict[str, Any], dict[str, str]], Any]] = {}
        self.lease_error: ActorGridError | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="ag-")
        self._spare: list[WorkerProcess] = []
        self._made = 0
        self._lock = threading.Lock()
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Open the door, at the same port again after :meth:`shut`."""
        handler = type("Handler", (_Handler,), {"host": self})
        self._server = _Server(("127.0.0.1", self.port), handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def shut(self) -> None:
        """The door is gone, workers go on: what a killed gateway looks like."""
        if self._server is not None:
            self._server.shutdown()
            self._server.cut()
            self._server.server_close()
            self._server = None

    def close(self) -> None:
        self.shut()
        with self._lock:  # a request that is being served may be about to start one more
            self.workers_max = 0
        for worker in [*self.leases.values(), *self._spare]:
            worker.stop()
        self._folder.cleanup()

    def kill_worker(self, index: int = 0) -> None:
        os.kill(list(self.leases.values())[index].process.pid, signal.SIGKILL)

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        parts = path.strip("/").split("/")[1:]
        self.requests.append((method, path))
        special = self.routes.get((method, path))
        if special is not None:
            return 200, special(body, query)
        match (method, parts):
            case ("GET", ["config"]):
                return 200, {"settings": []}
            case ("GET", ["members"]):
                return 200, {"members": []}
            case ("GET", ["allocations"]):
                return 200, {"allocations": []}
            case ("POST", ["sessions"]):
                session_id = secrets.token_hex(4)
                self.sessions.add(session_id)
                return 200, {"session_id": session_id, "renew_s": 0.1, "expires_s": 10.0, "objects": self.objects}
            case (_, ["sessions", session_id, *_]) if session_id not in self.sessions:
                raise UnknownSession("no such session", asked=session_id)
            case ("POST", ["sessions", _, "renew"]):
                return 200, {"done": True}
            case ("DELETE", ["sessions", session_id]):
                self.sessions.discard(session_id)
                owned = [each for each, owner in self.lease_sessions.items() if owner == session_id]
                for lease_id in owned if self.objects else ():  # many clients of one door: its workers are few
                    del self.lease_sessions[lease_id]
                    ended = self.leases.pop(lease_id, None)
                    if ended is not None:
                        ended.stop()
                return 200, {"done": True}
            case ("POST", ["sessions", session_id, "leases"]):
                return 200, self._lease(session_id, body)
            case ("DELETE", ["sessions", _, "leases", lease_id]):
                worker = self.leases.pop(lease_id, None)
                if worker is not None:
                    worker.stop()
                return 200, {"done": True}
            case ("POST", ["leases", lease_id, "cancel"]):
                worker = self.leases.pop(lease_id, None)
                if worker is None:
                    raise UnknownAllocation("no such lease", asked=lease_id)
                worker.stop()
                return 200, {"lease_id": lease_id}
        raise ActorGridError(f"the stand-in does not serve {method} {path}")

    def _lease(self, session_id: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.lease_requests.append(body)
            if self.lease_error is not None:
                raise self.lease_error
            if len(self.leases) >= self.workers_max:
                raise Overloaded("no room")
            self._made += 1
            worker = WorkerProcess(Path(self._folder.name), self._made, self.objects)
            lease_id = f"l{self._made}"
            self.leases[lease_id] = worker
            self.lease_sessions[lease_id] = session_id
        return {
            "lease_id": lease_id,
            "worker_id": worker.worker_id,
            "socket_path": worker.path,
            "secret": worker.begin(session_id, body.get("env", {})),
            "token": [1, self._made],
            "gpu_uuids": [],
            "enforcement": "none",
            "tenancy": "single",
            "python": "3.11",
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any) -> None:
        self.connections: set[socket.socket] = set()
        super().__init__(*args)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(BaseHTTPRequestHandler):
    host: StandIn
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Type") == "application/msgpack":
            import msgpack

            body = msgpack.unpackb(raw)
        else:
            body = json.loads(raw) if raw else None
        try:
            if self.headers.get("Authorization") != f"Bearer {self.host.token}":
                raise WrongToken("the token is wrong")
            status, answer = self.host.answer(self.command, parts.path, dict(parse_qsl(parts.query)), body)
        except ActorGridError as error:
            status, answer = error.http_status, {"error": error.to_dict()}
        kind = "application/json"
        if isinstance(answer, bytes):
            kind, data = "application/octet-stream", answer
        else:
            data = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = _serve


def client_of_stand_in() -> Iterator[Client]:
    """A client of a host of its own, for a fixture."""
    host = StandIn()
    client = Client(host.url, host.token)
    yield client
    client.close()
    host.close()
