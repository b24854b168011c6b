"""Folders of work at full are looked into with its rights, and are those in which it began."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.work.checkpoint_link import link_checkpoint, unlink_checkpoint
from actorgrid.actors.work.isolation.work_folder import WorkFolder, below, owner_of, rights_of
from actorgrid.errors import NotARegularFile

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act with the rights of another uid")


def spec_of(cwd: Path, attempt: Path, level: str = "full", uid: int = 0) -> Any:
    wanted = {"folder": str(attempt / "checkpoint"), "link": str(cwd / "a" / "ckpt"), "state": "", "takes": True}
    apart = {"level": level, "uid": uid, "attempt": str(attempt), "hidden": []}
    return {"id": "j.1", "cwd": str(cwd), "outputs": {}, "checkpoint": wanted, "apart": apart}


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "cwd").mkdir()
    return tmp_path / "cwd"


def test_whose_the_folders_are_goes_by_the_level(cwd: Path) -> None:
    assert owner_of(None) is None and owner_of(spec_of(cwd, cwd, "basic")) is None
    assert owner_of(spec_of(cwd, cwd)) == os.geteuid() and owner_of(spec_of(cwd, cwd, uid=4242)) == 4242


def test_a_directory_that_is_replaced_while_the_work_runs_is_refused(cwd: Path, tmp_path: Path) -> None:
    held = WorkFolder(spec_of(cwd, tmp_path / "j.1"), tmp_path / "j.1")
    with held.opened() as fd:
        assert os.path.samestat(os.fstat(fd), cwd.stat())
    cwd.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError), held.opened():
        pass
    for replace in (cwd.mkdir, lambda: cwd.rmdir() or cwd.symlink_to("/etc")):
        replace()
        with pytest.raises(NotARegularFile, match="another directory"), held.opened():
            pass
    held.close()


def test_where_the_agents_files_are_or_around_them_is_no_place_for_work_with_its_uid(tmp_path: Path) -> None:
    data, attempt = tmp_path / "data", tmp_path / "data" / "attempts" / "j.1"
    (attempt / "home").mkdir(parents=True)
    (tmp_path / "around").symlink_to(tmp_path)
    for cwd in (data, tmp_path, tmp_path / "around", attempt, data / "attempts"):
        spec = spec_of(cwd, attempt)
        spec["apart"]["hidden"] = [str(data)]
        held = WorkFolder(spec, attempt)
        assert not held.may_be_entered
        with pytest.raises(PermissionError), held.opened():
            pass
        link_checkpoint(spec)
        assert not (cwd / "a").exists()
    assert WorkFolder(spec_of(attempt / "home", attempt), attempt).may_be_entered


def test_one_in_the_attempts_folder_is_opened_when_it_is_there(tmp_path: Path) -> None:
    own = WorkFolder(spec_of(tmp_path / "j.1" / "home", tmp_path / "j.1"), tmp_path / "j.1")
    with pytest.raises(FileNotFoundError), own.opened():
        pass
    (tmp_path / "j.1" / "home").mkdir(parents=True)
    with own.opened() as fd:
        assert os.listdir(f"/proc/self/fd/{fd}") == []


def test_the_link_is_made_and_removed_below_the_directory_alone(cwd: Path, tmp_path: Path) -> None:
    (tmp_path / "j.1").mkdir()
    spec = spec_of(cwd, tmp_path / "j.1")
    held = WorkFolder(spec, tmp_path / "j.1")
    link_checkpoint(spec)
    assert os.readlink(cwd / "a" / "ckpt") == str(tmp_path / "j.1" / "checkpoint")
    # The work puts a link in the way, to a folder with such a link that is another's.
    (cwd / "a").rename(tmp_path / "theirs")
    (cwd / "a").symlink_to(tmp_path / "theirs")
    unlink_checkpoint(spec["checkpoint"], held)
    assert os.path.lexists(tmp_path / "theirs" / "ckpt")
    (tmp_path / "theirs" / "ckpt").unlink()
    with pytest.raises(OSError, match="Not a directory"):
        link_checkpoint(spec)
    assert not os.listdir(tmp_path / "theirs")
    held.close()


@root_only
def test_what_a_uid_may_not_reach_is_not_reached_for_it_and_ours_is_as_before(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "shut").mkdir(mode=0o700)
    before = (os.geteuid(), os.getegid(), os.getgroups())
    top = os.open(tmp_path, os.O_PATH)
    with pytest.raises(PermissionError), rights_of(60_000):
        os.listdir(tmp_path / "shut")
    with pytest.raises(PermissionError) as refused, below(top, ["made"], 60_000, make=True):
        pass
    assert refused.value.errno == errno.EACCES
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before
    with below(top, ["shut"], None) as fd:
        assert os.listdir(f"/proc/self/fd/{fd}") == []
    os.close(top)
