"""Long work where nobody watches: a line for each step, and none for each tick."""

from __future__ import annotations

import json

import pytest

from actorgrid.cli.show import progress


def test_each_step_is_a_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(False, steps=True) as report:
        for label, done in (("host 1", 0.0), ("host 1", 0.0), ("host 1 is back after 3s", 1.0), ("host 2", 1.0)):
            report(label, done, 2.0)
    said = capsys.readouterr()
    assert said.out == "" and [line.split(" ", 1)[1] for line in said.err.splitlines()] == [
        "host 1 (0 of 2 done)",
        "host 1 is back after 3s (1 of 2 done)",
        "host 2 (1 of 2 done)",
    ]


def test_with_json_a_step_is_a_document_beside_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(True, steps=True) as report:
        report("handing over", 1.0, 0.0)
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err) == {"event": "step", "step": "handing over", "done": 1.0, "of": None}


def test_what_ticks_often_is_not_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(False) as report:
        for number in range(1000):
            report(f"seed {number}", number, 1000.0)
    assert capsys.readouterr().err == ""
