"""Calls of one process make few files, and what is one file under two names is as safe as two files were."""

from __future__ import annotations

import errno
import fcntl
import os
import select
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actorgrid.actors.files.untrusted_files import open_to_write
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.attempt_results import TOGETHER_MAX, result_sync, sync_all
from actorgrid.actors.work.containment import RECORD, InitEnclosure, read_record, write_record
from actorgrid.actors.work.file_threads import FileThreads, one_by_one
from actorgrid.actors.work.linux import MARK_ATTEMPT, boot_id
from actorgrid.actors.work.output import OutputStream
from actorgrid.supervisors.runtime import Waiter


@pytest.fixture
def folder(tmp_path: Path) -> AttemptDir:
    found = AttemptDir(tmp_path, "a.1")
    found.create({"v": 1}, durably=False)  # type: ignore[typeddict-item]
    return found


def _no_links(*_given: Any, **_named: Any) -> None:
    raise OSError(errno.EPERM, "this file system knows no second names")


@pytest.mark.parametrize("links", [True, False])
def test_an_attempt_is_taken_once_whether_or_not_files_can_have_two_names(
    folder: AttemptDir, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    assert folder.read_started() is None
    lock = folder.take()
    assert lock is not None
    os.close(lock)  # its shim was killed
    assert folder.take() is None
    assert folder.read_started() == {"pid": os.getpid(), "boot_id": boot_id()}
    assert (os.stat(folder.path / "started").st_nlink == 2) is links


def test_one_that_was_killed_before_it_began_leaves_no_mark_and_the_next_one_begins(folder: AttemptDir) -> None:
    (folder.path / "lock").write_bytes(msgpack.packb({"pid": 2**22, "boot_id": "of a longer text than ours" * 9}))
    assert folder.read_started() is None
    lock = folder.take()
    assert lock is not None
    assert folder.read_started() == {"pid": os.getpid(), "boot_id": boot_id()}
    os.close(lock)


def test_one_that_begins_in_another_process_is_not_taken(folder: AttemptDir) -> None:
    told, tell = os.pipe()
    end, ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends)
        os.write(tell, b"x" if folder.take() is not None else b"")
        os.read(end, 1)
        os._exit(0)
    os.close(tell)
    assert os.read(told, 1) == b"x"
    assert folder.take() is None
    assert folder.shim_pid() == child
    assert folder.read_started() == {"pid": child, "boot_id": boot_id()}
    assert folder.shim_pid() == child, "to read the mark takes the lock from nobody else"
    os.close(ends)
    os.waitpid(child, 0)
    assert folder.shim_pid() is None and folder.take() is None
    assert folder.read_started() == {"pid": child, "boot_id": boot_id()}, "who comes too late changes no mark"
    for fd in (told, end):
        os.close(fd)


def test_the_credential_of_what_is_reported_is_gone_and_is_emptied_under_no_other_name(
    folder: AttemptDir, tmp_path: Path
) -> None:
    folder.credential_file.write_text("secret")
    folder.mark_reported()
    assert folder.reported() and not folder.credential_file.exists()
    assert (folder.path / "reported").read_text() == ""
    other = AttemptDir(tmp_path, "a.2")
    other.create({"v": 1}, durably=False)  # type: ignore[typeddict-item]
    (tmp_path / "of a user").write_text("kept")
    os.link(tmp_path / "of a user", other.credential_file)
    other.mark_reported()
    assert other.reported() and not other.credential_file.exists()
    assert (tmp_path / "of a user").read_text() == "kept"


@pytest.mark.parametrize("found", ["nothing", "a directory", "a link to nothing"])
def test_what_has_no_credential_is_reported_too(folder: AttemptDir, found: str) -> None:
    if found == "a directory":
        folder.credential_file.mkdir()
    elif found == "a link to nothing":
        folder.credential_file.symlink_to("nowhere")
    folder.mark_reported()
    assert folder.reported()


def test_a_record_that_is_a_workers_names_the_attempt_in_whose_folder_it_is(folder: AttemptDir, tmp_path: Path) -> None:
    worker = tmp_path / "functions-1"
    worker.mkdir()
    write_record(worker, "host", InitEnclosure(7, 8))
    os.link(worker / RECORD, folder.path / RECORD)
    of_worker, of_attempt = read_record(worker), read_record(folder.path)
    assert of_worker is not None and of_attempt is not None
    assert of_worker[MARK_ATTEMPT] == "functions-1" and of_attempt[MARK_ATTEMPT] == "a.1"
    assert {**of_worker, MARK_ATTEMPT: ""} == {**of_attempt, MARK_ATTEMPT: ""}


def test_a_stream_makes_its_file_with_the_first_output(folder: AttemptDir) -> None:
    read, write = os.pipe()
    stream = OutputStream(read, lambda: open_to_write(folder.path, "stdout", os.O_APPEND), 100)
    assert not stream.drain(0.0) and not folder.stdout.exists()
    os.write(write, b"one ")
    assert stream.drain(0.0)
    os.write(write, b"two")
    assert stream.drain(0.0) and folder.read_output("stdout") == b"one two"
    stream.close()
    os.close(write)


def test_output_whose_place_was_taken_or_is_gone_is_dropped_and_counted(folder: AttemptDir) -> None:
    folder.stdout.mkdir()
    for where in (folder.path, folder.path / "gone"):
        read, write = os.pipe()
        stream = OutputStream(read, lambda where=where: open_to_write(where, "stdout", os.O_APPEND), 100)  # type: ignore[misc]
        os.write(write, b"lost")
        assert stream.drain(0.0)
        os.write(write, b" too")
        assert stream.drain(0.0)
        stream.close()
        assert stream.dropped == 8
        os.close(write)


def test_the_lock_is_one_for_both_names(folder: AttemptDir) -> None:
    lock = folder.take()
    assert lock is not None
    child = os.fork()
    if child == 0:
        code = 1
        with open(folder.path / "started", "r+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    os.close(lock)


def test_of_results_that_are_synced_together_each_has_its_own_error(tmp_path: Path) -> None:
    def made(parent: str, name: str) -> tuple[Path, str]:
        (tmp_path / parent / name).mkdir(parents=True)
        (tmp_path / parent / name / "result.bin").write_bytes(b"x")
        return tmp_path / parent / name, "result.bin"

    missing, one, other, replaced = tmp_path / "p" / "none", made("p", "a.1"), made("q", "b.1"), made("p", "c.1")
    (replaced[0] / "result.bin").unlink()
    (replaced[0] / "result.bin").mkdir()
    errors = sync_all([one, (missing, "result.bin"), other, replaced])
    assert [type(error).__name__ for error in errors] == [
        "NoneType",
        "FileNotFoundError",
        "NoneType",
        "NotARegularFile",
    ]


class _Loop:
    """As much of a server's loop as one descriptor takes."""

    in_place = False

    def __init__(self) -> None:
        self.watched: list[tuple[int, Callable[[], None]]] = []

    def watch(self, fd: int, told: Callable[[], None]) -> None:
        self.watched.append((fd, told))

    def run_until(self, done: Callable[[], bool]) -> None:
        while not done():
            ((fd, told),) = self.watched
            assert select.select([fd], [], [], 60.0)[0], "nothing was told"
            told()


def test_more_results_than_are_synced_at_once_are_all_told_each_with_its_own_error(tmp_path: Path) -> None:
    loop = _Loop()
    told: dict[int, type[OSError] | None] = {}
    synced = result_sync(loop)  # type: ignore[arg-type]

    async def ask(number: int, folder: Path) -> None:
        try:
            await synced.run((folder, "result.bin"))
        except OSError as error:
            told[number] = type(error)
        else:
            told[number] = None

    count = 6 * TOGETHER_MAX
    for number in range(count):
        folder = tmp_path / f"a.{number}"
        folder.mkdir()
        if number % 5:
            (folder / "result.bin").write_bytes(b"x")
        _begin(ask(number, folder))
    loop.run_until(lambda: len(told) == count)
    assert told == {number: None if number % 5 else FileNotFoundError for number in range(count)}


def test_what_nobody_expected_reaches_who_asked_and_the_threads_go_on() -> None:
    loop = _Loop()
    threads: FileThreads[Callable[[], int], int] = FileThreads(loop, one_by_one, 1)  # type: ignore[arg-type]
    told: list[int | type[Exception]] = []

    async def ask(work: Callable[[], int]) -> None:
        try:
            told.append(await threads.run(work))
        except (KeyError, ZeroDivisionError) as error:
            told.append(type(error))

    for work in (lambda: 1, lambda: {}["no such key"], lambda: 1 // 0, lambda: 2):
        _begin(ask(work))
    loop.run_until(lambda: len(told) == 4)
    assert told == [1, KeyError, ZeroDivisionError, 2]


def _begin(work: Coroutine[Waiter, None, None]) -> None:
    """Carry a coroutine on whenever what it waits for is there."""
    with suppress(StopIteration):
        work.send(None).on_done(lambda: _begin(work))
