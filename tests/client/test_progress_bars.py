"""Bars for who waits for many tasks: what is shown, where, and where nothing is."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import actorgrid
from actorgrid.client.client import Client
from actorgrid.client.progress_bars import ProgressBar
from tests.client.stand_in import client_of_stand_in
from tests.terminals import seen_on_terminal

client = pytest.fixture(scope="module")(client_of_stand_in)

PROGRAM = """
from concurrent.futures import Future
import actorgrid
futures = [Future() for _ in range(3)]
for number, future in enumerate(futures):
    future.set_exception(KeyError()) if number == 2 else future.set_result(number)
print(len(actorgrid.wait(futures, progress="[bold]square").done))
print(len(list(actorgrid.as_completed(futures, progress=True))))
"""


class Notebook:
    """What of IPython a bar speaks to."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def HTML(self, page: str) -> str:
        return page

    def display(self, page: str, *, display_id: bool) -> SimpleNamespace:
        self.pages.append(page)
        return SimpleNamespace(update=self.pages.append)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    found: Any = Notebook()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[misc]
    monkeypatch.setitem(sys.modules, "IPython.display", found)
    return found  # type: ignore[no-any-return]


def plain(seen: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)


def test_on_a_terminal_there_is_a_bar_and_without_colour_where_none_is_wanted() -> None:
    quiet = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    command = [sys.executable, "-c", PROGRAM]
    seen = seen_on_terminal(command, {**quiet, "TERM": "xterm", "COLUMNS": "120"})
    assert "[bold]square" in plain(seen) and "3/3 1 failed" in plain(seen) and "\x1b[3" in seen
    seen = seen_on_terminal(command, {**quiet, "TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"})
    assert "3/3 1 failed" in plain(seen) and not re.search(r"\x1b\[[0-9;]*3[0-9]", seen)


def test_where_nobody_watches_nothing_is_written() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n3\n", "")


def test_in_a_notebook_one_cell_is_drawn_anew_and_names_are_text(notebook: Notebook) -> None:
    parts: list[Future[int]] = [Future(), Future()]
    for part in parts:
        part.set_result(1)
    assert len(actorgrid.wait(parts, progress="<b>").done) == 2
    assert 'value="0"' in notebook.pages[0] and "&lt;b&gt;: 0 of 2" in notebook.pages[0]
    assert 'value="2"' in notebook.pages[-1] and "&lt;b&gt;: 2 of 2" in notebook.pages[-1]


def test_a_map_counts_what_its_tasks_have_done(client: Client, notebook: Notebook) -> None:
    assert list(client.map(abs, range(10), chunksize=3, progress=True)) == list(range(10))
    assert "abs: 10 of 10" in notebook.pages[-1]
    assert list(client.map(abs, iter([-1]), progress=True)) == [1]
    assert "abs: 1, " in notebook.pages[-1] and 'value="1"' in notebook.pages[-1]


def test_leaving_a_map_early_ends_its_bar(client: Client, notebook: Notebook) -> None:
    results = client.map(abs, range(10), progress=True)
    assert next(results) == 0
    bar = results._bar
    assert bar is not None and bar.is_shown
    del results
    assert not bar.is_shown
    with pytest.raises(ValueError):
        list(client.map(int, ["x"], progress=True))
    assert "int: " in notebook.pages[-1]


def test_it_is_drawn_seldom_and_its_end_always() -> None:
    out = io.StringIO()
    with ProgressBar("many", 10_000, Console(file=out, force_terminal=True, width=120)) as bar:
        for _ in range(10_000):
            bar.advance(1)
        bar.close()
    assert "10000/10000" in plain(out.getvalue()) and len(out.getvalue()) < 100_000
