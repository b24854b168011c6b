"""The directory that follows a job is packed whole or not at all, whatever its work has put there."""

from __future__ import annotations

import io
import os
import socket
import stat
import zipfile
from pathlib import Path

import pytest

from actorgrid.actors.work import checkpoint_packing
from actorgrid.actors.work.archives import checked_bytes, unpack
from actorgrid.actors.work.checkpoint_packing import PACKED, ChangedMeanwhile, list_directory, pack
from actorgrid.checkpoints import CHECKPOINT_BYTES_MAX, READY_MARK
from actorgrid.errors import BodyTooLarge, MalformedBody


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "ckpt"
    (made / "sub" / "empty").mkdir(parents=True)
    (made / "model.pt").write_bytes(b"weights" * 1000)
    (made / "sub" / "run.sh").write_text("echo")
    (made / "sub" / "run.sh").chmod(0o700)
    (made / "last").symlink_to("model.pt")
    return made


def packed(folder: Path) -> io.BytesIO:
    buffer = io.BytesIO(b"a head in front")
    buffer.seek(0, os.SEEK_END)
    pack(folder, list_directory(folder), buffer)
    return buffer


def test_it_comes_out_as_it_was_and_can_be_written_to(folder: Path, tmp_path: Path) -> None:
    (folder / "half.tmp").write_text("not yet")
    (folder / "sub" / "half.partial").write_text("not yet")
    (folder / READY_MARK).touch()
    buffer = packed(folder)
    checked_bytes(buffer, PACKED)
    unpack(buffer, tmp_path / "out", PACKED, writable=True)
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*"))
    assert found == ["last", "model.pt", "sub", "sub/empty", "sub/run.sh"]
    assert (tmp_path / "out" / "last").read_bytes() == b"weights" * 1000
    assert stat.S_IMODE((tmp_path / "out" / "sub" / "run.sh").stat().st_mode) & 0o700 == 0o700
    (tmp_path / "out" / "model.pt").write_bytes(b"newer")
    assert list_directory(folder).digest == list_directory(folder).digest
    (folder / "model.pt").write_bytes(b"x")
    assert list_directory(folder).digest != list_directory(tmp_path / "out").digest


def test_what_is_no_file_or_leads_out_stays_behind(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    os.mkfifo(folder / "fifo")
    (folder / "out").symlink_to("../secret")
    (folder / "sub" / "abs").symlink_to("/etc/passwd")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listing = list_directory(folder)
        assert sorted(listing.left_out) == ["fifo", "out", "socket", "sub/abs"]
        buffer = packed(folder)
    with zipfile.ZipFile(buffer) as archive:
        assert archive.namelist() == ["last", "model.pt", "sub/", "sub/empty/", "sub/run.sh"]
    assert b"secret" not in buffer.getvalue()


def test_a_sparse_file_counts_with_its_length_and_is_not_read(folder: Path) -> None:
    with open(folder / "huge", "wb") as file:
        file.truncate(CHECKPOINT_BYTES_MAX + 1)
    with pytest.raises(BodyTooLarge, match="too large for a checkpoint"):
        list_directory(folder)


def test_names_that_cannot_go_along_are_refused(folder: Path) -> None:
    for name in (b"\xff\xfe", b"back\\slash"):
        path = os.fsencode(folder) + b"/" + name
        with open(path, "wb"):
            pass
        with pytest.raises(MalformedBody):
            list_directory(folder)
        os.unlink(path)
    deep = folder
    for _ in range(70):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    with pytest.raises(MalformedBody, match="cannot go along"):
        list_directory(folder)


def test_what_changed_since_the_first_look_is_no_checkpoint(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "run.sh").write_text("evil")

    def grows() -> None:
        with open(folder / "model.pt", "ab") as file:
            file.write(b"more")

    def swapped() -> None:
        (folder / "model.pt").unlink()
        (folder / "model.pt").symlink_to("/etc/passwd")

    def folder_swapped() -> None:
        (folder / "sub" / "run.sh").unlink()
        (folder / "sub" / "empty").rmdir()
        (folder / "sub").rmdir()
        (folder / "sub").symlink_to(tmp_path / "etc")

    def added() -> None:
        (folder / "another").touch()

    for change in (added, grows, swapped, folder_swapped):
        listing = list_directory(folder)
        change()
        with pytest.raises(ChangedMeanwhile):
            pack(folder, listing, io.BytesIO())
    listing = list_directory(folder)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.rmdir()
    with pytest.raises(ChangedMeanwhile):
        pack(folder, listing, io.BytesIO())


def test_what_could_not_be_unpacked_again_is_not_packed(folder: Path, tmp_path: Path) -> None:
    (folder / "long").symlink_to("./" * 600 + "model.pt")
    os.symlink(b"\xff\xfe", os.fsencode(folder) + b"/bytes")
    (folder / "sub" / "up").symlink_to("..")
    (folder / "chain").symlink_to("sub/up/../secret")
    (folder / "l0").symlink_to("model.pt")
    for each in range(1, 60):
        (folder / f"l{each}").symlink_to(f"l{each - 1}")
    deepest = folder / "/".join(["d" * 200] * 5) / ("e" * 19)
    deepest.mkdir(parents=True)
    assert len(str(deepest.relative_to(folder))) == 1024
    assert {"long", "bytes", "chain"} < {*list_directory(folder).left_out}
    buffer = packed(folder)
    checked_bytes(buffer, PACKED)
    unpack(buffer, tmp_path / "out", PACKED, writable=True)
    assert (tmp_path / "out" / "sub" / "up" / "model.pt").exists() and (tmp_path / "out" / "l30").exists()
    assert (tmp_path / "out" / deepest.relative_to(folder)).is_dir()


def test_what_stays_behind_is_counted_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_packing, "FILES_MAX", 8)
    list_directory(folder)
    for each in range(4):
        os.mkfifo(folder / f"fifo{each}")
    with pytest.raises(BodyTooLarge, match="too large for a checkpoint"):
        list_directory(folder)


def test_of_work_with_a_uid_of_its_own_only_that_uids_files_go_along(folder: Path) -> None:
    own = os.geteuid()
    assert list_directory(folder, own).entries == list_directory(folder).entries
    found = list_directory(folder, own + 1)  # a second name of a file that is somebody else's
    assert {entry.path for entry in found.entries} == {"sub", "sub/empty", "last"}
    assert {*found.left_out} == {"model.pt", "sub/run.sh"}
