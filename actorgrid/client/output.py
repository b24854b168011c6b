"""Shows what session tasks print, each line with its task and worker in front."""

from __future__ import annotations

import queue
import sys
import threading

MAX_HELD = 10_000


class OutputPrinter:
    """Prints output in a thread of its own: a stopped terminal must not stop results.

    Holds 10,000 pieces, then drops.
    """

    def __init__(self) -> None:
        self._held: queue.Queue[tuple[str, str, str, bytes] | None] = queue.Queue(MAX_HELD)
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def put(self, task: str, worker: str, stream: str, data: bytes) -> None:
        """Queue one piece of output."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="actorgrid-output", daemon=True)
            self._thread.start()
        try:
            self._held.put_nowait((task, worker, stream, data))
        except queue.Full:
            self._dropped += 1

    def close(self, wait_s: float = 1.0) -> None:
        """Print what is held, for at most *wait_s*."""
        if self._thread is not None:
            try:
                self._held.put(None, timeout=wait_s)
            except queue.Full:
                return
            self._thread.join(wait_s)

    def _run(self) -> None:
        while (piece := self._held.get()) is not None:
            task, worker, stream, data = piece
            target = sys.stdout if stream == "stdout" else sys.stderr
            label = f"({task} {worker[-8:]}) "
            text = "".join(f"{label}{line}\n" for line in data.decode("utf-8", "replace").splitlines())
            if self._dropped:
                text += f"(… {self._dropped} pieces of output dropped)\n"
                self._dropped = 0
            try:
                target.write(text)
                target.flush()
            except (OSError, ValueError):
                continue  # the stream was closed: nobody reads any more
