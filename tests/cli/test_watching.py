"""``--watch``: in place on a terminal, lines of JSON elsewhere, and a host that is away for a moment is waited for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.cli import watching
from actorgrid.cli.watching import CLEAR, HOME, keep_showing
from actorgrid.errors import HostUnreachable


@pytest.fixture
def three_rounds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes by itself; the third wait is Ctrl-C."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    return waited


def shown(capsys: pytest.CaptureFixture[str], show: Callable[[], Any], **more: Any) -> Any:
    keep_showing(show, more.get("every_s", 2.0), more.get("as_json", False))
    return capsys.readouterr()


def test_without_it_a_thing_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, lambda: print("x"), every_s=None).out == "x\n"


def test_elsewhere_than_on_a_terminal_pictures_follow_each_other(
    capsys: pytest.CaptureFixture[str], three_rounds: list[float]
) -> None:
    assert shown(capsys, lambda: print("x")).out == "x\nx\nx\n"
    assert three_rounds == [2.0, 2.0, 2.0]


def test_on_a_terminal_it_is_drawn_in_place(
    capsys: pytest.CaptureFixture[str], three_rounds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "on_terminal", lambda: True)
    out = shown(capsys, lambda: print("x")).out
    assert out.startswith(HOME + CLEAR)
    assert out.count(HOME) == 4
    assert out.count("every 2 s") == 3


def test_json_is_a_stream_of_lines_on_a_terminal_too(
    capsys: pytest.CaptureFixture[str], three_rounds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "on_terminal", lambda: True)
    lines = shown(capsys, lambda: print(json.dumps({"gpus": []})), as_json=True).out.splitlines()
    assert [json.loads(line) for line in lines] == [{"gpus": []}] * 3


def test_a_host_that_is_away_is_asked_again(capsys: pytest.CaptureFixture[str], three_rounds: list[float]) -> None:
    answers = iter([None, HostUnreachable("nobody answers"), None])

    def show() -> None:
        answer = next(answers)
        if answer is not None:
            raise answer
        print("x")

    told = shown(capsys, show)
    assert told.out == "x\nx\n"
    assert "still asking" in told.err
