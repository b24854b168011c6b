"""The runtime directory has a name that can be guessed: it is used only where it is ours, and no link."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.configs.paths import HostPaths
from actorgrid.errors import DataDirUnusable


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostPaths]:
    shared = Path("/tmp") / f"t{os.getpid()}"  # short: sockets lie below it
    shared.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared))
    yield HostPaths(tmp_path / "data")
    shutil.rmtree(shared)


def test_a_link_in_its_place_is_not_followed(paths: HostPaths, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    paths.runtime_dir.symlink_to(home)
    with pytest.raises(DataDirUnusable, match=r"symbolic link.*XDG_RUNTIME_DIR"):
        paths.make()
    assert stat.S_IMODE(home.stat().st_mode) == 0o755
    assert list(home.iterdir()) == []


def test_a_folder_of_ours_is_used_and_closed_to_others(paths: HostPaths) -> None:
    paths.runtime_dir.mkdir(mode=0o777)
    paths.runtime_dir.chmod(0o777)
    paths.make()
    assert stat.S_IMODE(paths.runtime_dir.stat().st_mode) == 0o700


def test_a_data_directory_that_is_a_link_is_ours_to_use(paths: HostPaths, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    paths.data_dir.symlink_to(tmp_path / "elsewhere")
    paths.make()
    assert (tmp_path / "elsewhere" / "ledger").is_dir()


def test_an_empty_one_is_left_behind_by_nobody(paths: HostPaths) -> None:
    paths.make()
    assert os.readlink(paths.runtime_dir / "data") == os.path.realpath(paths.data_dir)
    boot = paths.boot_dir("b")
    boot.mkdir()
    paths.leave()
    assert sorted(os.listdir(paths.runtime_dir)) == ["boot-b", "data"], "what is used still says whose it is"
    boot.rmdir()
    paths.make()
    paths.leave()
    assert not paths.runtime_dir.exists()


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root makes directories of others")
def test_a_directory_of_another_user_is_not_taken_for_ours(
    paths: HostPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    os.chown(foreign, 12345, 12345)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(foreign)[:40] if len(str(foreign)) > 40 else str(foreign))
    assert not paths.runtime_dir.is_relative_to(foreign)
