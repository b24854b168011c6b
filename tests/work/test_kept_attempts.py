"""What a host keeps of ended graphs for later ones: what is there, and up to how many bytes."""

from __future__ import annotations

from pathlib import Path

from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.kept_attempts import CachedResults, kept_attempts


def attempt(folder: Path, name: str, size: int) -> Path:
    made = AttemptDir(folder, name)
    made.path.mkdir(parents=True)
    made.result.write_bytes(b"x" * size)
    return made.path


def test_attempts_without_a_result_and_names_that_are_none_are_not_there(tmp_path: Path) -> None:
    attempt(tmp_path, "g.0-1.1", 5)
    (tmp_path / "g.1-1.1").mkdir()
    assert kept_attempts(tmp_path, ["g.0-1.1", "g.1-1.1", "g.2-1.1", "../g.0-1.1", ""]) == ["g.0-1.1"]


def test_the_oldest_go_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    newest_first = [attempt(tmp_path, f"g.{number}-1.1", 10) for number in (3, 2, 1)]
    kept = CachedResults()
    assert kept.too_many(newest_first, [], 30) == []
    assert kept.too_many(newest_first, [], 30) == [], "they are counted once"
    assert kept.bytes == 30
    newest = attempt(tmp_path, "g.4-1.1", 15)
    assert [path.name for path in kept.too_many([newest], [], 30)] == ["g.1-1.1", "g.2-1.1"]
    assert kept.too_many([], [newest], 1_000) == [], "its graph is known no more"
    assert kept.bytes == 10
