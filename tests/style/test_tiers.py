"""The two tiers of the tests: the table in the documents says what runs where, and every command is in it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `tests/(\w+)` \| .+ \| (.+) \|$", re.MULTILINE)


def system_files() -> dict[str, set[str]]:
    """For each folder of tests, the files of which something is in the second tier."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        folder = path.relative_to(ROOT / "tests").parts[0]
        files = found.setdefault(folder, set())
        if folder != "system" and path != Path(__file__) and "pytest.mark.system" in path.read_text(encoding="utf-8"):
            files.add(str(path.relative_to(ROOT / "tests" / folder)))
    return found


def test_the_table_says_of_every_folder_what_runs_where() -> None:
    page = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
    told = {folder: set(re.findall(r"`([\w/]+\.py)`", where)) for folder, where in ROW.findall(page)}
    assert told == system_files()


def test_each_test_is_in_one_tier_and_ci_runs_both() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    marks = dict(
        re.findall(r"^([\w-]+): \$\(TESTING\)\n\t\$\(BIN\)/python -m pytest -m '?([\w ]+?)'? [$-]", makefile, re.M)
    )
    assert marks == {"test": "not system and not soak", "test-system": "system and not soak", "soak": "soak"}
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert [line for line in ci if re.match(r"(timeout .*)?make ", line)] == [
        "make lint",
        "make types",
        "timeout --kill-after 30 25m make test",
        "timeout --kill-after 30 50m make test-system || make test-system-again",
    ]
