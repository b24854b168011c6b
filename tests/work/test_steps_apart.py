"""What the agent takes from a step that is kept apart, and gives to it, file by file: what is no such file is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from actorgrid.actors.links.pieces import Piece
from actorgrid.actors.links.step_items import ItemRequest, ItemTaker
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.command_steps import put_taken_files
from actorgrid.actors.work.isolation.own_folders import HOME, INPUTS, TAKERS, give_inputs, remove_own_folders
from actorgrid.actors.work.isolation.plan import full_spec
from actorgrid.actors.work.item_spool import OWN_ITEMS, ItemSpool, note_taken, taken
from actorgrid.actors.work.work_records import ApartSpec, WorkSpec
from actorgrid.actors.work.worker_process import take_draft, worker_draft
from actorgrid.configs.paths import HostPaths
from actorgrid.dag.step_files import pack_files
from actorgrid.dag.step_items import items_of
from actorgrid.errors import NotARegularFile

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root has another uid for work")


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    made = AttemptDir(tmp_path, "g.1-1.1")
    for folder in (made.path, made.path / HOME, made.path / TAKERS):
        folder.mkdir()
    return made


def apart(attempt: AttemptDir, uid: int = 0, **more: Any) -> ApartSpec:
    spec = full_spec(attempt.path, uid, HostPaths(attempt.path.parent / "data"), [])
    return cast("ApartSpec", {**spec, **more})


def take(attempt: AttemptDir, uid: int = 0) -> None:
    function = {"result_path": str(attempt.path / HOME / "result.bin")}
    take_draft(cast("WorkSpec", {"function": function, "apart": apart(attempt, uid)}), attempt, is_late=False)


def test_the_result_of_a_step_is_the_agents_once_it_is_taken(attempt: AttemptDir) -> None:
    draft = worker_draft(attempt.path / HOME / "result.bin")
    draft.write_bytes(b"given")
    uid = 1_234_567_890 if os.geteuid() == 0 else 0
    if uid:
        os.chown(draft, uid, uid)
    take(attempt, uid)
    facts = attempt.result.stat()
    assert (attempt.result.read_bytes(), facts.st_uid) == (b"given", os.geteuid())
    assert not uid or facts.st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "second name"])
def test_what_is_no_file_of_its_own_is_no_result(attempt: AttemptDir, tmp_path: Path, kind: str) -> None:
    draft, secret = worker_draft(attempt.path / HOME / "result.bin"), tmp_path / "secret"
    secret.write_text("not yours")
    if kind == "link":
        draft.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(draft)
    elif kind == "folder":
        draft.mkdir()
    else:
        os.link(secret, draft)
    take(attempt)
    assert not os.path.lexists(attempt.result) and secret.read_text() == "not yours"


@root_only
def test_what_another_uid_has_left_is_no_result(attempt: AttemptDir) -> None:
    worker_draft(attempt.path / HOME / "result.bin").write_bytes(b"roots")
    take(attempt, 1_234_567_890)
    assert not os.path.lexists(attempt.result)


def test_its_items_are_read_where_it_writes_and_takers_noted_where_it_does_not(attempt: AttemptDir) -> None:
    note_taken(attempt.path, "g.2-1.1", 0)
    note_taken(attempt.path, "g.2-1.1", 7)
    (noted,) = (attempt.path / TAKERS).iterdir()
    assert noted.stat().st_mode & 0o777 == 0o644 and taken(attempt.path / TAKERS) == [7]
    data = ItemSpool(attempt.path / HOME / OWN_ITEMS, attempt.path / TAKERS, 2**20).write_all(range(20))
    piece = ItemRequest(attempt, 0, 2**20, ItemTaker("g.2-1.1", 9)).read()
    assert piece.data == data and len(list(items_of(piece.data))) == 20 and taken(attempt.path / TAKERS) == [9]
    remove_own_folders(apart(attempt))
    assert ItemRequest(attempt, 0, 2**20, ItemTaker("g.2-1.1", 9)).read() == Piece(b"", 0)


@pytest.mark.parametrize("kind", ["link", "fifo", "second name", "link to its home"])
def test_what_is_no_file_of_its_own_are_no_items(attempt: AttemptDir, tmp_path: Path, kind: str) -> None:
    items, secret = attempt.path / HOME / OWN_ITEMS, tmp_path / "secret"
    secret.write_text("not yours")
    if kind == "link":
        items.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(items)
    elif kind == "second name":
        os.link(secret, items)
    else:
        (tmp_path / OWN_ITEMS).write_text("not yours")
        (attempt.path / HOME).rmdir()
        (attempt.path / HOME).symlink_to(tmp_path)
    with pytest.raises((NotARegularFile, NotADirectoryError)):
        ItemRequest(attempt, 0, 100, ItemTaker("g.2-1.1", 0)).read()


def test_it_has_what_others_gave_by_second_names_that_go_with_it(attempt: AttemptDir, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_bytes(b"given")
    given.chmod(0o600)
    spec = apart(attempt, inputs={"0": str(given), "1": str(given)})
    give_inputs(spec)
    give_inputs(spec)  # its attempt began anew
    there = attempt.path / INPUTS
    assert sorted(path.name for path in there.iterdir()) == ["0", "1"]
    assert (there / "1").read_bytes() == b"given" and (there / "1").samefile(given)
    remove_own_folders(spec)
    assert not there.exists() and given.read_bytes() == b"given"
    for wrong in ("link", "fifo"):
        place = tmp_path / wrong
        place.symlink_to(given) if wrong == "link" else os.mkfifo(place)
        with pytest.raises(NotARegularFile):
            give_inputs(apart(attempt, inputs={"0": str(place)}))


def test_where_a_file_has_no_second_name_it_is_copied(
    attempt: AttemptDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuses)
    (tmp_path / "given").write_bytes(bytes(3 * 2**20))
    give_inputs(apart(attempt, inputs={"0": str(tmp_path / "given")}))
    assert (attempt.path / INPUTS / "0").read_bytes() == bytes(3 * 2**20)


def test_files_that_a_command_takes_come_from_no_link(tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "out").write_text("given")
    (tmp_path / "cwd").mkdir()
    pack = pack_files(tmp_path / "left", 2**20)
    (tmp_path / "pack").write_bytes(pack)
    spec: Any = {"cwd": str(tmp_path / "cwd"), "step": {"takes": [[str(tmp_path / "pack"), 0, len(pack)]]}}
    put_taken_files(spec)
    assert (tmp_path / "cwd" / "out").read_text() == "given"
    (tmp_path / "other").symlink_to(tmp_path / "pack")
    spec["step"]["takes"][0][0] = str(tmp_path / "other")
    with pytest.raises(NotARegularFile):
        put_taken_files(spec)
