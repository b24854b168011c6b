"""Folders of distributions on the way of a process that serves many calls: read once, and anew when they change."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid import import_environment
from actorgrid.import_environment import ImportEnvironment, machine, take


@pytest.fixture
def site_packages(tmp_path: Path) -> Iterator[Path]:
    """A folder that was left alone for long, with one ``.pth`` file; ``sys.path`` is put back."""
    folder = tmp_path / "site-packages"
    (tmp_path / "first").mkdir()
    folder.mkdir()
    (folder / "a.pth").write_text(f"{tmp_path / 'first'}\n# a remark\nimport os\n")
    _age(folder)
    before = list(sys.path)
    yield folder
    sys.path[:] = before
    import_environment._read_folders.clear()


def _age(folder: Path) -> None:
    for path in (folder / "a.pth", folder):
        os.utime(path, (1_000_000_000, 1_000_000_000))


def found(folder: Path, before: list[str]) -> list[str]:
    """What a call from there adds to a ``sys.path`` that is set anew."""
    sys.path[:] = before
    assert take(ImportEnvironment(machine(), "", (), (str(folder),)))
    return [os.path.basename(entry) for entry in sys.path if str(folder.parent) in entry]


def test_what_pth_files_name_is_found_without_reading_them_again(
    site_packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(sys.path)
    assert found(site_packages, before) == ["site-packages", "first"]
    monkeypatch.setattr("site.addsitedir", lambda *_: pytest.fail("it was read already"))
    assert found(site_packages, before) == ["site-packages", "first"]
    # Of a call that has a part of it anyway.
    assert found(site_packages, [*before, str(site_packages.parent / "first")]) == ["site-packages", "first"]


def test_what_has_changed_is_read(site_packages: Path) -> None:
    before, folder = list(sys.path), site_packages.parent
    assert found(site_packages, before) == ["site-packages", "first"]
    (folder / "second").mkdir()
    (site_packages / "b.pth").write_text(f"{folder / 'second'}\n")
    assert found(site_packages, before) == ["site-packages", "first", "second"]
    # Not kept yet, as it has changed just now: a change in the same tick would be missed.
    assert str(site_packages) not in import_environment._read_folders
    (site_packages / "a.pth").write_text("# nothing\n")
    assert found(site_packages, before) == ["site-packages", "second"]
    (site_packages / "b.pth").unlink()
    assert found(site_packages, before) == ["site-packages"]


def test_a_folder_that_comes_later_is_found(site_packages: Path) -> None:
    before, folder = list(sys.path), site_packages.parent
    (site_packages / "a.pth").write_text(f"{folder / 'later'}\n")
    _age(site_packages)
    assert found(site_packages, before) == ["site-packages"]
    (folder / "later").mkdir()
    assert found(site_packages, before) == ["site-packages", "later"]
