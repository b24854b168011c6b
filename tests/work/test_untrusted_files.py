"""What lies where a file of an attempt belongs may be anything: reading and writing there never waits or strays."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from actorgrid.actors.files.untrusted_files import open_to_write, read_whole, remove_tree, size_of
from actorgrid.actors.links.pieces import read_piece, read_result_piece
from actorgrid.actors.work.attempt_dir import RESULT_FILE_BYTES_MAX, AttemptDir
from actorgrid.errors import NotARegularFile, ResultGone


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


REPLACEMENTS: dict[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a symbolic link": lambda path: path.symlink_to("/dev/zero"),
    "a directory": Path.mkdir,
    "a socket": _socket,
}


@pytest.fixture
def folder(tmp_path: Path) -> AttemptDir:
    made = AttemptDir(tmp_path, "job.1")
    made.create({"id": "job.1"})
    return made


@pytest.mark.parametrize("found", REPLACEMENTS)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_that_is_no_file_is_a_named_error(folder: AttemptDir, found: str, stream: str) -> None:
    (folder.path / stream).unlink()
    REPLACEMENTS[found](folder.path / stream)
    with pytest.raises(NotARegularFile) as refused:
        folder.read_output(stream)
    assert refused.value.found == found
    assert refused.value.http_status == 409
    assert folder.output_size(stream) == 0


@pytest.mark.parametrize("found", REPLACEMENTS)
def test_a_result_and_records_that_are_no_files_are_none(folder: AttemptDir, found: str) -> None:
    for name in ("result.bin", "status.msgpack", "spec.msgpack", "started"):
        (folder.path / name).unlink(missing_ok=True)
        REPLACEMENTS[found](folder.path / name)
    with pytest.raises(NotARegularFile):
        read_piece(folder.result, 0, 10)
    assert folder.read_result(100) is None
    assert folder.read_status() is None
    assert folder.read_spec() is None
    assert folder.read_started() == {}


def test_a_folder_that_became_a_link_is_not_entered(folder: AttemptDir, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "stdout").write_text("not of this attempt")
    (elsewhere / "kept").touch()
    folder.path.rename(tmp_path / "aside")
    folder.path.symlink_to(elsewhere)
    with pytest.raises(NotARegularFile):
        folder.read_output("stdout")
    folder.mark_reported()
    folder.remove()
    assert not folder.path.is_symlink()
    assert sorted(path.name for path in elsewhere.iterdir()) == ["kept", "stdout"]


@pytest.mark.parametrize("found", ["a FIFO", "a symbolic link", "a socket"])
def test_what_is_written_replaces_what_is_no_file(folder: AttemptDir, found: str, tmp_path: Path) -> None:
    for name in ("status.tmp", "reported", "stdout"):
        (folder.path / name).unlink(missing_ok=True)
        REPLACEMENTS[found](folder.path / name)
    folder.mark_reported()
    folder.write_status({"reason": "exited"})
    os.close(open_to_write(folder.path, "stdout", os.O_APPEND))
    assert folder.read_status() == {"reason": "exited"}
    assert folder.read_output("stdout") == b""
    assert size_of(folder.path, "reported") == 0


def test_a_directory_that_is_in_the_way_is_not_removed(folder: AttemptDir) -> None:
    (folder.path / "stdout").unlink()
    (folder.path / "stdout").mkdir()
    with pytest.raises(NotARegularFile):
        open_to_write(folder.path, "stdout")
    assert (folder.path / "stdout").is_dir()


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root makes device nodes")
def test_a_device_that_is_in_the_way_is_not_removed(folder: AttemptDir) -> None:
    (folder.path / "stdout").unlink()
    os.mknod(folder.path / "stdout", 0o600 | stat.S_IFCHR, os.makedev(1, 7))
    with pytest.raises(NotARegularFile):
        open_to_write(folder.path, "stdout")
    assert stat.S_ISCHR((folder.path / "stdout").lstat().st_mode)


def test_a_link_to_another_file_is_replaced_and_the_other_file_left_alone(folder: AttemptDir, tmp_path: Path) -> None:
    other = tmp_path / "diary"
    other.write_text("mine")
    (folder.path / "status.tmp").unlink()
    (folder.path / "status.tmp").symlink_to(other)
    folder.write_status({"reason": "exited"})
    assert other.read_text() == "mine"


def test_a_sparse_file_is_no_result(folder: AttemptDir) -> None:
    with open(folder.result, "wb") as file:
        file.truncate(2**40)
    assert folder.read_result(RESULT_FILE_BYTES_MAX) is None
    with pytest.raises(ResultGone, match=r"found: a file of 1099511627776"):
        read_result_piece(folder, 0, 100)


def test_a_whole_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "ten").write_bytes(b"0123456789")
    assert read_whole(tmp_path, "ten", 10) == b"0123456789"
    assert read_whole(tmp_path, "ten", 9) is None


def test_a_tree_deeper_than_the_stack_and_than_any_path_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "attempt"
    root.mkdir()
    within = os.open(root, os.O_RDONLY)
    for _ in range(3_000):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=within))
        os.mkdir("down", dir_fd=within)
        below = os.open("down", os.O_RDONLY, dir_fd=within)
        os.close(within)
        within = below
    os.close(within)
    remove_tree(root)
    assert not root.exists()
