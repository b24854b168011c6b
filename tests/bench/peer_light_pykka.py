"""``python peer_light_pykka.py`` in Pykka's environment: its actors, which are threads, given light processes' work."""

from __future__ import annotations

import json
import threading
import time
from importlib.metadata import version
from typing import Any

import pykka

MESSAGES = 20_000
RING = 100
CALLS = 20_000
PROCESSES = 1_000


class Node(pykka.ThreadingActor):  # type: ignore[misc]
    """Passes a number on, less one."""

    def __init__(self, done: threading.Event) -> None:
        super().__init__()
        self.done = done
        self.following: Any = None

    def on_receive(self, message: Any) -> Any:
        if not isinstance(message, int):
            self.following = message
        elif message:
            self.following.tell(message - 1)
        else:
            self.done.set()


class Echo(pykka.ThreadingActor):  # type: ignore[misc]
    """Answers with what it is asked."""

    def on_receive(self, message: Any) -> Any:
        return message


def passed_round(size: int) -> float:
    done = threading.Event()
    nodes = [Node.start(done) for _ in range(size)]
    for node, following in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        node.ask(following)
    began = time.perf_counter()
    nodes[0].tell(MESSAGES)
    done.wait(120)
    took = time.perf_counter() - began
    for node in nodes:
        node.stop()
    return MESSAGES / took


def main() -> dict[str, Any]:
    try:
        found: dict[str, Any] = {"version": version("pykka")}
        found["ping_pong"] = passed_round(2)
        found["ring"] = passed_round(RING)
        server = Echo.start()
        began = time.perf_counter()
        for number in range(CALLS):
            server.ask(number)
        found["calls"] = CALLS / (time.perf_counter() - began)
        began = time.perf_counter()
        many = [Echo.start() for _ in range(PROCESSES)]
        found["spawn_s"] = (time.perf_counter() - began) / PROCESSES
        for number, actor in enumerate(many):
            actor.ask(number)
        found["million_s"] = (time.perf_counter() - began) * 1_000_000 / PROCESSES
        return found
    finally:
        pykka.ActorRegistry.stop_all()


if __name__ == "__main__":
    print(json.dumps(main()))
