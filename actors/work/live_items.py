"""The items of a step that still runs, for the step that takes them: asked for over the door of this host, one run of
the producer alone.

A thread asks for what comes next and says how many were taken, which holds the producer back (item_spool.py). What it
has asked for once comes from one attempt of the producer: where that is over without having succeeded, or its items
are gone, this is broken, and so is what was made of it. It is the host that says so in the end, by an outcome that
costs no retry, and the graph has the step run again.
"""

from __future__ import annotations

import base64
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from actorgrid.dag.step_items import ItemReader
from actorgrid.errors import ActorGridError, InputLost, MalformedBody

from .item_spool import loads_item

PIECE_BYTES = 512 * 1024
BUFFERED_ITEMS, BUFFERED_BYTES = 128, 4 * 2**20
WAIT_S = 0.25
"""How long the door waits for another item: as long may pass until it hears what was taken meanwhile."""
PING_S = 4.0
"""So often the producer's host hears that somebody takes, while nothing more is asked for."""
PATIENCE_S = 60.0
"""For how long an unreachable door or host is tried again."""
AGAIN_S = 0.5
OVER, RUNNING = "over", "running"


class ItemDoor(Protocol):
    """What asks for items: ``AdminHttp`` of a client."""

    def post(self, path: str, body: Any = None, *, repeat: bool = False) -> Any:
        """The answer to a request. Raises ActorGridError."""


class LiveItems(Iterator[Any]):
    """The values of *step* of a graph, as they come, to be taken by the attempt *by*."""

    def __init__(self, door: ItemDoor, graph_id: str, step: int, by: str) -> None:
        self._door = door
        self._path = f"/api/graphs/{graph_id}/steps/{step}/items"
        self._step = step
        self._by = by
        self._reader = ItemReader()
        self._changed = threading.Condition()
        self._items: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._taken = 0
        self._attempt = ""
        self._is_closed = False  # nothing more is taken: only the end is waited for
        self._is_over = False
        self.broken: InputLost | None = None
        threading.Thread(target=self._follow, daemon=True, name=f"items of step {step}").start()

    def __next__(self) -> Any:
        with self._changed:
            while not self._items and not self._is_over and self.broken is None:
                self._changed.wait()
            if self.broken is not None:
                raise self.broken
            if not self._items:
                raise StopIteration
            content = self._items.popleft()
            self._buffered_bytes -= len(content)
            self._taken += 1
            self._changed.notify_all()
        return loads_item(content)

    def settle(self) -> None:
        """Take no more, and wait until the producer has succeeded. Raises InputLost where what it gave does not count.

        What was made of its items is to count only with them.
        """
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._buffered_bytes = 0
            self._changed.notify_all()
            while not self._is_over and self.broken is None:
                self._changed.wait()
            if self.broken is not None:
                raise self.broken

    # -- the thread

    def _follow(self) -> None:
        failed_since = 0.0
        while True:
            with self._changed:
                if self._is_full():
                    self._changed.wait_for(lambda: not self._is_full(), PING_S)
                wants = 0 if self._is_full() or self._is_closed else PIECE_BYTES
                asked = {
                    "attempt_id": self._attempt,
                    "position": self._reader.position,
                    "size": wants,
                    "taken": 2**53 - 1 if self._is_closed else self._taken,
                    "by": self._by,
                    "wait_s": WAIT_S if wants or self._is_closed else 0.0,
                }
            try:
                answer = self._door.post(self._path, asked, repeat=True)
                ended = self._took(answer)
            except (ActorGridError, MalformedBody, KeyError, TypeError, ValueError) as error:
                now = time.monotonic()
                failed_since = failed_since or now
                if now - failed_since > PATIENCE_S or isinstance(error, (InputLost, MalformedBody)):
                    self._break(error if isinstance(error, InputLost) else self._lost(str(error)))
                    return
                time.sleep(AGAIN_S)
                continue
            failed_since = 0.0
            if ended:
                return

    def _is_full(self) -> bool:
        return len(self._items) >= BUFFERED_ITEMS or self._buffered_bytes >= BUFFERED_BYTES

    def _took(self, answer: dict[str, Any]) -> bool:
        """Take an answer; whether it is the last one. Raises InputLost, MalformedBody."""
        state, attempt_id, size = str(answer["state"]), str(answer["attempt_id"]), int(answer["size"])
        if state not in (OVER, RUNNING) or (self._attempt and attempt_id != self._attempt):
            raise self._lost(f"its attempt {self._attempt or attempt_id or '?'} is over", gone=state == "gone")
        data = base64.b64decode(answer["data"])
        with self._changed:
            self._attempt = attempt_id
            if not self._is_closed:
                found = self._reader.feed(data)
                self._items += found
                self._buffered_bytes += sum(map(len, found))
            has_all = self._reader.position >= size or self._is_closed
            if state == OVER and has_all:
                if not self._is_closed and not self._reader.is_whole:
                    raise MalformedBody("the items of a step are cut off", found=f"{size} bytes")
                self._is_over = True
            self._changed.notify_all()
            return self._is_over

    def _lost(self, why: str, *, gone: bool = False) -> InputLost:
        return InputLost(
            f"the items of step {self._step} do not go on: {why}"[:500],
            asked=str(self._step),
            hint="the step that takes them is run again",
            steps=[self._step] if gone else [],
        )

    def _break(self, error: InputLost) -> None:
        with self._changed:
            self.broken = error
            self._changed.notify_all()


class KeptItems(Iterator[Any]):
    """The values of a step that is over."""

    def __init__(self, contents: Iterator[bytes]) -> None:
        self._contents = contents

    def __next__(self) -> Any:
        return loads_item(next(self._contents))
