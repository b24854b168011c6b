"""The C of the compiled ring between two threads, under ThreadSanitizer."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests import race_ring

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("setarch")), reason="needs gcc and setarch"),
]


@pytest.fixture(scope="module", autouse=True)
def sanitizer() -> None:
    found = subprocess.run(["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True).stdout
    if "/" not in found:
        pytest.skip("this gcc has no ThreadSanitizer")


def test_two_threads_on_one_ring_are_no_race() -> None:
    done = race_ring.run(planted=False)
    assert done.returncode == 0, done.stdout + done.stderr[:4000]


def test_without_acquire_and_release_they_are_found_to_be_one() -> None:
    assert "data race" in race_ring.run(planted=True).stderr
