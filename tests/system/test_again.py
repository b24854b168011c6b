"""What CI asks once more: a test that fails alone too, or one of many, stays failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import FEW, again, failed

TESTS = """
from pathlib import Path

def test_first_time():
    ran = Path("ran")
    before, _ = ran.exists(), ran.touch()
    assert before

def test_always():
    assert not Path("broken").exists()

def test_never():
    pass
"""


ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(folder: Path, source: str = TESTS, *options: str) -> Path:
    (folder / "pytest.ini").write_text("[pytest]\n")
    hooks = "pytest_testnodedown, start_anew as pytest_sessionstart"
    (folder / "conftest.py").write_text(f"from tests.again import {hooks}\n")
    (folder / "test_it.py").write_text(source)
    subprocess.run([sys.executable, "-m", "pytest", "-q", *options], cwd=folder, check=False, capture_output=True)
    return folder


def test_what_passes_alone_is_named_and_passes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert failed(run(tmp_path)) == ["test_it.py::test_first_time"]
    assert again(tmp_path) == 0
    assert "passed alone:\n  test_it.py::test_first_time" in capfd.readouterr().out


def test_what_fails_alone_too_stays_failed(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    assert len(failed(run(tmp_path))) == 2
    assert again(tmp_path) == 1


def test_many_are_not_asked_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "".join(f"def test_{number}():\n    assert False\n" for number in range(FEW + 1)))
    assert again(tmp_path) == 1
    assert f"{FEW + 1} failed" in capfd.readouterr().err


def test_a_run_that_broke_off_before_any_test_is_not_asked_again(tmp_path: Path) -> None:
    assert again(tmp_path) == 1


def test_a_run_that_lost_a_process_is_not_asked_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    dies = "import os\n\ndef test_dies():\n    os._exit(1)\n"
    run(tmp_path, dies, "-n", "1", "--max-worker-restart", "0")
    assert failed(tmp_path) == ["test_it.py::test_dies"]
    assert again(tmp_path) == 1
    assert "a process of tests was lost" in capfd.readouterr().err
