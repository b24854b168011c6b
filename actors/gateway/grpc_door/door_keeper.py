"""The agent's side of the gRPC door: starts its process where ``grpc.listen`` is set, and starts it again.

A part of the server of the HTTP door, and it ends with that: what it translates to would not be there. Bounds: it is
begun again after 1 s, 2 s, ... up to 60 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

from actorgrid.actors.ledger.names import is_loopback
from actorgrid.errors import MalformedMessage
from actorgrid.supervisors.server import Server

from .door_spec import DoorSpec, read_word, write_spec

LOOK_S = 0.5
BACKOFF_FIRST_S, BACKOFF_MAX_S = 1.0, 60.0
STOP_S = 3.0
WORD_BYTES_MAX = 4096
LOG_FILE, LOG_BYTES_MAX = "grpc.log", 2**20
"""In the data directory. A process that is begun when it is full begins it anew; hardly anything is logged."""
LIBRARIES = ("grpc", "grpc_reflection", "grpc_health", "google.protobuf")
INSTALL = "pip install 'actorgrid[grpc]'"


def missing_libraries() -> list[str]:
    """What the door needs and is not installed; it is not loaded for that."""
    found = []
    for name in LIBRARIES:
        try:
            there = find_spec(name) is not None
        except ModuleNotFoundError:  # of a package that holds it
            there = False
        if not there:
            found.append(name)
    return found


class GrpcKeeper:
    """The gRPC door of the host of *server*. *url*: its HTTP door on loopback, which knows the *secret*."""

    def __init__(self, server: Server, url: str, secret: str) -> None:
        self._server = server
        self._url = url
        self._secret = secret
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = b""
        self._is_over = False
        self._failures = 0
        self._begin_at = 0.0
        self.address = ""
        self.problem = ""
        """Why it does not serve; empty: it does, or is being started."""

    def start(self) -> None:
        """Begin, if the libraries are there."""
        missing = missing_libraries()
        if missing:
            self.problem = f"unavailable: {', '.join(missing)} not installed; {INSTALL}"
            self._server.log.error("the gRPC door is %s", self.problem)
            return
        self._tick()

    def stop(self) -> None:
        """End it in order."""
        self._is_over = True
        process = self._process
        if process is None:
            return
        self._let_go()
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _tick(self) -> None:
        if self._is_over:
            return
        if self._process is not None and self._process.poll() is not None:
            self._server.log.warning("the gRPC door ended with %s", self._process.returncode)
            self._let_go()
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process, self.address = None, ""
        now = self._server.runtime.monotonic()
        if self._process is None and now >= self._begin_at:
            self._begin_at = now + min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self._failures, 10))
            self._failures += 1
            self._begin()
        self._server.runtime.after(LOOK_S, self._tick)

    def _begin(self) -> None:
        host = self._server.host
        asked = host.settings.grpc
        inside = is_loopback(asked.listen.rpartition(":")[0].strip("[]"))
        if not inside and host.enrolment is None:
            self.problem = "beyond loopback it needs the certificate of a cluster's host: actorgrid up --listen"
            self._server.log.error("the gRPC door does not serve at %s: %s", asked.listen, self.problem)
            return
        spec = DoorSpec(
            listen=asked.listen,
            url=self._url,
            security="" if inside and not asked.client_authorities else str(host.paths.security_dir),
            client_authorities=asked.client_authorities,
            message_bytes_max=host.settings.security.max_body_bytes,
        )
        path = host.paths.data_dir / LOG_FILE
        try:
            full = path.exists() and path.stat().st_size > LOG_BYTES_MAX
            with open(path, "wb" if full else "ab") as lines:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "actorgrid.actors.gateway.grpc_door.main", write_spec(spec)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=lines,
                    start_new_session=True,
                    cwd="/",
                )
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(self._secret.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            self._server.log.warning("the gRPC door cannot be started: %s", error)
            return
        self._heard = b""
        os.set_blocking(self._process.stdout.fileno(), False)
        self._server.runtime.watch(self._process.stdout.fileno(), self._hear)

    def _hear(self) -> None:
        process = self._process
        if process is None or process.stdout is None or process.stdout.closed:
            return
        try:
            piece = os.read(process.stdout.fileno(), WORD_BYTES_MAX)
        except BlockingIOError:
            return
        self._heard += piece
        line, end, _ = self._heard.partition(b"\n")
        if not piece or len(self._heard) > WORD_BYTES_MAX:
            self._let_go()
        if not end or self.address:
            return
        try:
            word = read_word(line)
        except MalformedMessage as error:
            self._server.log.warning("%s", error)
            return
        self.address, self.problem = word.address, word.error
        if word.address:
            self._failures = 0
            self._server.log.info("gRPC is served at %s", word.address)
        else:
            self._server.log.error("the gRPC door does not serve: %s", word.error)

    def _let_go(self) -> None:
        """Listen to the process no more."""
        process = self._process
        if process is not None and process.stdout is not None and not process.stdout.closed:
            self._server.runtime.unwatch(process.stdout.fileno())
            process.stdout.close()
