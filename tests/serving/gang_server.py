"""A replica that is a gang, as the work of services in tests: rank 0 answers as OpenAI's servers do, with a word from
each of the others, which it asks each time.

``gang_server.py PORT RANK SIZE ADDRESS:PORT_OF_RANK_0 [--say WORD]``
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TextIO


class GangHandler(BaseHTTPRequestHandler):
    """Answers with what the members say."""

    protocol_version = "HTTP/1.1"
    say = "hello"
    others: list[TextIO] = []
    lock = threading.Lock()

    def do_GET(self) -> None:
        """Its models."""
        self._answer({"object": "list", "data": [{"id": "small", "object": "model"}]})

    def do_POST(self) -> None:
        """A completion to which each member adds a word."""
        self.rfile.read(int(self.headers.get("content-length") or 0))
        words = [f"{self.say}/0/{os.getpid()}"]
        with self.lock:
            for each in self.others:
                print("next", file=each, flush=True)
                words.append(each.readline().strip())
        message = {"role": "assistant", "content": " ".join(words)}
        self._answer({"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def help_rank_0(where: tuple[str, int], word: str) -> None:
    """Say *word* whenever rank 0 asks, until it is gone."""
    while True:
        try:
            with socket.create_connection(where) as connection:
                lines = connection.makefile("rw")
                for _ in lines:
                    print(word, file=lines, flush=True)
            return
        except ConnectionRefusedError:
            time.sleep(0.02)


def main() -> None:
    """Serve, or help rank 0 to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("rank", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("first")
    parser.add_argument("--say", default="hello")
    given = parser.parse_args()
    address, _, port = given.first.rpartition(":")
    if given.rank:
        help_rank_0((address, int(port)), f"{given.say}/{given.rank}/{os.getpid()}")
        return
    with socket.create_server((address, int(port))) as meeting:
        GangHandler.others = [meeting.accept()[0].makefile("rw") for _ in range(given.size - 1)]
    GangHandler.say = given.say
    ThreadingHTTPServer(("127.0.0.1", given.port), GangHandler).serve_forever()


if __name__ == "__main__":
    main()
