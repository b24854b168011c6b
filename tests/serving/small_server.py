"""A small HTTP server as the work of services in tests: OpenAI's completions, real ones, of a model that says little.

``small_server.py PORT [--say WORD] [--start-s S] [--die] [--fail] [--fail-clients] [--slow-clients]
[--gate FOLDER]``; who asks whether it is ready, for one token, is no client. Streams have a piece for each letter; with
``--gate`` all but the first wait for FOLDER/go, and where the client is gone FOLDER/gone is written.
``POST /wedge`` has it answer nothing any more while its port stays open, ``POST /die`` ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SLOW_S = 1.0


class Handler(BaseHTTPRequestHandler):
    """Answers as its options say."""

    protocol_version = "HTTP/1.1"
    say, fail, ready_at = "hello", False, 0.0
    fails_clients = slow_clients = False
    gate: Path | None = None
    wedged = threading.Event()

    def do_GET(self) -> None:
        """Models, health, and where it runs."""
        self._wait()
        if time.monotonic() < self.ready_at:
            self._answer(503, {"error": {"message": "loading"}})
        elif self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": "small", "object": "model"}]})
        else:
            self._answer(200, {"pid": os.getpid(), "say": self.say})

    def do_POST(self) -> None:
        """A completion of one word."""
        size = int(self.headers.get("content-length") or 0)
        asked = json.loads(self.rfile.read(size) or b"{}")
        if self.path == "/die":
            os._exit(3)
        if self.path == "/wedge":
            self.wedged.set()
            self._answer(200, {})
            return
        self._wait()
        if time.monotonic() < self.ready_at:
            self._answer(503, {"error": {"message": "loading"}})
        elif self.fail or (self.fails_clients and asked.get("max_tokens") != 1):
            self._answer(500, {"error": {"message": "broken"}})
        else:
            if asked.get("stream"):
                self._stream(str(asked.get("model")))
                return
            if self.slow_clients and asked.get("max_tokens") != 1:
                threading.Event().wait(SLOW_S)
            choice = {"index": 0, "message": {"role": "assistant", "content": self.say}, "finish_reason": "stop"}
            self._answer(200, {"id": "1", "model": asked.get("model"), "choices": [choice]})

    def _stream(self, model: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for at, letter in enumerate(self.say):
            if at == 1 and self.gate is not None and not self._may_go_on(self.gate):
                self.close_connection = True
                return
            choice = {"index": 0, "delta": {"content": letter}, "finish_reason": None}
            self._piece(json.dumps({"id": "1", "object": "chat.completion.chunk", "model": model, "choices": [choice]}))
        self._piece("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _piece(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def _may_go_on(self, gate: Path) -> bool:
        while not (gate / "go").exists():
            if select.select([self.connection], [], [], 0.01)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                (gate / "gone").touch()
                return False
        return True

    def _wait(self) -> None:
        if self.wedged.is_set():
            threading.Event().wait()

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--say", default="hello")
    parser.add_argument("--start-s", type=float, default=0.0)
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--fail-clients", action="store_true")
    parser.add_argument("--slow-clients", action="store_true")
    parser.add_argument("--gate", type=Path)
    given = parser.parse_args()
    if given.die:
        raise SystemExit("this model cannot be loaded")
    Handler.say, Handler.fail, Handler.ready_at = given.say, given.fail, time.monotonic() + given.start_s
    Handler.fails_clients, Handler.slow_clients = given.fail_clients, given.slow_clients
    Handler.gate = given.gate
    print(f"serving at {given.port}", flush=True)
    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
