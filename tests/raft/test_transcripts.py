"""REWRITE_TRANSCRIPTS=1 writes down what happens now; review the difference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.raft.transcript import run

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_commands_of_each_transcript_lead_to_its_states(path: Path) -> None:
    expected = path.read_text()
    found = run(expected)
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(found)
    else:
        assert found == expected


def test_there_is_something_to_compare() -> None:
    assert len(FILES) >= 15
    assert all(path.read_text().startswith("# ") for path in FILES), "each begins with a sentence on what it shows"
