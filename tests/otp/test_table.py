"""The table of OTP's promises names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    line
    for line in (ROOT / "docs" / "otp.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| promise", "| ---"))
]
NAMED = re.compile(r"`(tests/\w+/test_\w+\.py)::(test_\w+)`")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:50])
def test_every_promise_names_a_test_that_exists(row: str) -> None:
    named = NAMED.findall(row.split("|")[-2])
    assert named, "no test shows it"
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {name}"
