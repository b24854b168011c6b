from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from actorgrid.client import working_dir_archive
from actorgrid.client.working_dir_archive import pack
from actorgrid.errors import BadRequest, BodyTooLarge


def write(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    return root


def names(folder: Path, *exclude: str) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(pack(folder, exclude).archive)) as archive:
        return archive.namelist()


def test_the_same_content_is_the_same_archive_wherever_and_whenever(tmp_path: Path) -> None:
    one = write(tmp_path / "one", "b.py", "a/c.py", "z.py")
    other = write(tmp_path / "other", "z.py", "a/c.py", "b.py")
    os.utime(other / "b.py", (1, 1))
    (other / "b.py").chmod(0o640)
    assert pack(one) == pack(other)
    (other / "b.py").write_text("changed")
    assert pack(one).digest != pack(other).digest


def test_what_is_generated_or_excluded_stays(tmp_path: Path) -> None:
    write(tmp_path, ".git/config", "a/__pycache__/m.pyc", ".venv/bin/python", "data/big.bin", "a/m.py", "a/m.log")
    assert names(tmp_path, "*.log", "data/") == ["a/", "a/m.py"]
    write(tmp_path, "deep/data/x", "top/x", "deep/top/x")
    assert names(tmp_path, "data/", "top/x", "a") == ["deep/", "deep/top/", "deep/top/x", "top/"]


def test_a_link_inside_goes_along_and_one_that_leads_out_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a/m.py")
    (tmp_path / "a" / "n.py").symlink_to("../a/m.py")
    assert names(tmp_path) == ["a/", "a/m.py", "a/n.py"]
    (tmp_path / "data").symlink_to("/etc")
    with pytest.raises(BadRequest, match="leads out") as caught:
        pack(tmp_path)
    assert caught.value.asked == "data"
    assert "data" not in names(tmp_path, "data")


def test_too_much_names_the_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "small.py", "large.bin")
    (tmp_path / "large.bin").write_bytes(os.urandom(3000))
    for bound, value in (("CONTENT_BYTES_MAX", 2000), ("ARCHIVE_BYTES_MAX", 2000), ("FILES_MAX", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(working_dir_archive, bound, value)
            with pytest.raises(BodyTooLarge) as caught:
                pack(tmp_path)
            assert caught.value.details["largest"][0] == "large.bin"
            assert "large.bin (3000 bytes)" in caught.value.found


def test_what_is_no_folder_and_a_single_text_of_patterns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no directory"):
        pack(tmp_path / "none")
    with pytest.raises(BadRequest, match="list of patterns"):
        pack(tmp_path, "*.log")
