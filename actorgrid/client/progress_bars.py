"""``progress=True``: how far many tasks are, for people who watch: on a terminal, or below a notebook's cell.

Nothing is shown where standard error is no terminal, so logs and pipes stay clean. Without colours where ``NO_COLOR``
is set. It costs a clock reading for each task, and is drawn ten times a second at most.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from html import escape
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

DRAW_EVERY_S = 0.1

Draw = Callable[[int, int, int | None, bool], None]
"""Shows how many are done, how many of them failed, of how many (``None``: unknown); and whether that is the end."""


class ProgressBar:
    """Counts what is done of *total* (``None``: nobody knows) and shows it. Any thread may tell it."""

    def __init__(self, label: str, total: int | None, console: Console | None = None) -> None:
        """*console*: where to show it, instead of looking for a notebook or a terminal."""
        self._total = total
        self._done = self._failed = 0
        self._drawn_at = 0.0
        self._lock = threading.RLock()  # close() may come of a finalizer, wherever that runs
        self._draw = _drawn_in(label, total, console)
        if self._draw is not None:
            self._draw(0, 0, total, False)

    @property
    def is_shown(self) -> bool:
        """Whether anybody sees it; else nothing needs to be counted."""
        return self._draw is not None

    def advance(self, count: int, failed: bool = False) -> None:
        """*count* more are done."""
        with self._lock:
            self._done += count
            self._failed += count if failed else 0
            now = time.monotonic()
            if self._draw is not None and now - self._drawn_at >= DRAW_EVERY_S:
                self._drawn_at = now
                self._draw(self._done, self._failed, self._total, False)

    def follow(self, futures: Iterable[Future[Any]], count: int = 1) -> None:
        """Advance by *count* at the end of each."""
        if self.is_shown:
            for future in futures:
                future.add_done_callback(lambda ended: self.advance(count, _says_failed(ended)))

    def close(self) -> None:
        """Show how it is for the last time. Again: harmless."""
        with self._lock:
            draw, self._draw = self._draw, None
        if draw is not None:
            draw(self._done, self._failed, self._total, True)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _says_failed(future: Future[Any]) -> bool:
    """Whether it is known to have no value; unpickles nothing."""
    says: Callable[[], bool] | None = getattr(future, "says_failed", None)
    return future.cancelled() or (says() if says is not None else future.exception() is not None)


def _drawn_in(label: str, total: int | None, console: Console | None) -> Draw | None:
    if console is None:
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        if hasattr(shell, "kernel"):
            return _cell(label)
        if not sys.stderr.isatty():
            return None
    return _terminal(label, total, console)


def _terminal(label: str, total: int | None, console: Console | None) -> Draw:
    from rich.console import Console
    from rich.markup import escape as plain
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    layout = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]}"))
    bars = Progress(*layout, TimeElapsedColumn(), TimeRemainingColumn(), console=console or Console(stderr=True))
    bar = bars.add_task(plain(label), total=total, failed="")
    bars.start()

    def draw(done: int, failed: int, total: int | None, end: bool) -> None:
        bars.update(bar, completed=done, failed=f"{failed} failed" if failed else "")
        if end:
            bars.stop()

    return draw


def _cell(label: str) -> Draw:
    display: Any = import_module("IPython.display")  # there: a notebook runs us
    shown: Any = None
    started = time.monotonic()

    def draw(done: int, failed: int, total: int | None, end: bool) -> None:
        nonlocal shown
        of = "" if total is None else f" of {total}"
        lost = f", {failed} failed" if failed else ""
        at = f'max="{max(1, total)}" value="{done}"' if total is not None else ("" if not end else 'max="1" value="1"')
        text = escape(f"{label}: {done}{of}{lost}, {time.monotonic() - started:.1f} s")
        page = display.HTML(
            f'<div style="font-family:sans-serif;font-size:13px"><progress {at}></progress> {text}</div>'
        )
        if shown is None:
            shown = display.display(page, display_id=True)
        else:
            shown.update(page)

    return draw
