"""What a job asked to keep is kept whole or said to be missing; what lies in its place later leads nowhere."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.links.output_pages import OutputsPage, outputs_page
from actorgrid.actors.work import collected_outputs
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.collected_outputs import (
    Collected,
    OutputSource,
    bound_outputs,
    collect,
    link_tree,
    listing,
    read_output,
)
from actorgrid.actors.work.housekeeping import sizes_of_outputs
from actorgrid.actors.work.isolation import work_folder
from actorgrid.actors.work.isolation.work_folder import WorkFolder
from actorgrid.errors import MalformedMessage
from actorgrid.output_paths import inside, is_outputs


def taken(cwd: Path, wanted: list[str], into: Path, bytes_max: int, *, level: str = "off", **fields: Any) -> Collected:
    """What comes of collecting out of *cwd* what work at *level* left there."""
    apart = {"level": level, "uid": 0, "hidden": []}
    held = WorkFolder({"cwd": str(cwd), "apart": apart, "outputs": {}}, cwd.parent / "attempts" / "j.1")  # type: ignore[typeddict-item]
    try:
        return collect(OutputSource(held, **fields), wanted, into, bytes_max)
    finally:
        held.close()


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "cwd"
    (folder / "results" / "deep").mkdir(parents=True)
    (folder / "results" / "a.txt").write_text("first")
    (folder / "results" / "deep" / "b.bin").write_bytes(bytes(5000))
    (folder / "results" / "run.sh").write_text("#!/bin/sh")
    (folder / "results" / "run.sh").chmod(0o755)
    (folder / "results" / "latest").symlink_to("deep/b.bin")
    (folder / "results" / "out").symlink_to("/etc")
    os.mkfifo(folder / "results" / "pipe")
    (folder / "left.txt").write_text("not asked for")
    return folder


@pytest.mark.parametrize("level", ["off", "full"])
@pytest.mark.parametrize("moves", [False, True])
def test_files_folders_and_links_inside_are_kept(cwd: Path, tmp_path: Path, moves: bool, level: str) -> None:
    into = tmp_path / "outputs"
    found = taken(cwd, ["results", "gone/at/all"], into, 10**6, moves=moves, level=level)
    assert (found.files, found.size_bytes, found.missing, found.problem) == (3, 5014, ("gone/at/all",), "")
    assert sorted(str(path.relative_to(into)) for path in into.rglob("*")) == [
        "results",
        "results/a.txt",
        "results/deep",
        "results/deep/b.bin",
        "results/latest",
        "results/run.sh",
    ]
    entries, behind = listing(into)
    assert [each.path for each in entries] == ["results/a.txt", "results/deep/b.bin", "results/run.sh"] and not behind
    assert [each.executable for each in entries] == [False, False, True]
    assert (cwd / "results" / "a.txt").exists() != moves


def test_what_is_too_large_is_named_and_what_was_kept_until_then_stays(
    cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = taken(cwd, ["results"], tmp_path / "outputs", 100)
    assert "more than 100 bytes" in found.problem and found.files >= 1
    assert (tmp_path / "outputs" / "results" / "a.txt").read_text() == "first"
    monkeypatch.setattr(collected_outputs, "OUTPUT_FILES_MAX", 1)
    assert "more than 1 files" in taken(cwd, ["results"], tmp_path / "outputs", 10**6).problem
    assert len(taken(cwd, [f"gone{n}" * 100 for n in range(64)], tmp_path / "o", 1).to_plain()["missing"]) < 64


def test_pages_of_a_listing_follow_each_other_without_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a", "a-b/c", "a.txt", "a/b", "a/b-c/d", "a/b/c", "b"]
    for number, name in enumerate(names):
        path = tmp_path / "kept" / (f"{name}/x" if name in ("a", "a/b") else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    whole = [each.path for each in listing(tmp_path / "kept")[0]]
    assert whole == sorted(whole) and len(whole) == len(names)
    monkeypatch.setattr(collected_outputs, "PAGE_BYTES", 150)
    paged: list[str] = []
    behind = ""
    while True:
        entries, behind = listing(tmp_path / "kept", behind)
        paged += [each.path for each in entries]
        if not behind:
            break
    assert paged == whole
    assert listing(tmp_path / "nothing") == ([], "")


def test_what_lies_in_place_of_a_file_is_not_read_through(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "folder").mkdir(parents=True)
    (kept / "folder" / "file").write_text("mine")
    (tmp_path / "secret").write_text("not yours")
    (kept / "link").symlink_to(tmp_path / "secret")
    (kept / "away").symlink_to(tmp_path)
    os.mkfifo(kept / "pipe")
    assert read_output(kept, "folder/file", 1, 2) == (b"in", 4)
    for path in (
        "link",
        "away/secret",
        "pipe",
        "folder",
        "../secret",
        "/etc/passwd",
        "folder/../../secret",
        "gone",
        "",
    ):
        assert read_output(kept, path, 0, 100) is None, path
    assert [each.path for each in listing(kept)[0]] == ["folder/file"]


def test_a_copy_of_a_directory_that_was_sent_is_its_own(tmp_path: Path) -> None:
    source = tmp_path / "sent"
    (source / "empty").mkdir(parents=True)
    (source / "data").mkdir()
    (source / "data" / "text").write_text("sent")
    (source / "data" / "text").chmod(0o444)
    (source / "short").symlink_to("data/text")
    (source / "folder").symlink_to("data")
    link_tree(source, tmp_path / "own")
    own = tmp_path / "own"
    assert (own / "short").read_text() == "sent" and (own / "folder").is_symlink() and (own / "empty").is_dir()
    (own / "data" / "new").write_text("only here")
    (own / "data" / "text").unlink()
    assert (source / "data" / "text").read_text() == "sent" and not (source / "data" / "new").exists()


def test_the_outputs_that_ended_longest_ago_go_first(tmp_path: Path) -> None:
    for number in range(3):
        directory = AttemptDir(tmp_path, f"job{number}.1")
        directory.create({"id": f"job{number}.1"})
        (tmp_path / "cwd").mkdir(exist_ok=True)
        (tmp_path / "cwd" / "f").write_bytes(bytes(100))
        collected = taken(tmp_path / "cwd", ["f"], directory.outputs, 1000)
        directory.write_status({"reason": "exited", "outputs": collected.to_plain()}, durably=False)
        os.utime(directory.status_file, (1000 - number, 1000 - number))
    sizes = {name: size for name, size in sizes_of_outputs(tmp_path).items()}
    assert list(sizes) == ["job2.1", "job1.1", "job0.1"] and set(sizes.values()) == {100}
    assert bound_outputs(tmp_path, 250, sizes) == ["job2.1"]
    page = outputs_page(AttemptDir(tmp_path, "job2.1"), "")
    assert page.exists and not page.kept and page.entries == []


def test_pages_go_between_hosts_and_others_are_refused(tmp_path: Path) -> None:
    directory = AttemptDir(tmp_path, "job.1")
    directory.create({"id": "job.1"})
    (tmp_path / "f").write_text("x")
    collected = taken(tmp_path, ["f", "gone"], directory.outputs, 1000)
    directory.write_status({"outputs": collected.to_plain()}, durably=False)
    page = outputs_page(directory, "")
    assert page.missing == ["gone"] and OutputsPage.of_plain(page.to_plain()) == page
    plain = page.to_plain()
    for wrong in (
        None,
        {},
        {**plain, "entries": [["f", -1, 1.0, True]]},
        {**plain, "entries": [["f"]]},
        {**plain, "missing": [1]},
        {**plain, "kept": 1},
    ):
        with pytest.raises(MalformedMessage):
            OutputsPage.of_plain(wrong)
    hostile = AttemptDir(tmp_path, "other.1")
    hostile.create({"id": "other.1"})
    hostile.write_status({"outputs": ["not", "a", "map"]}, durably=False)
    assert outputs_page(hostile, "").missing == []


def test_paths_are_written_plainly_or_are_none() -> None:
    assert [inside(path) for path in ("results/", "./a//b/.", "a")] == ["results", "a/b", "a"]
    assert [inside(path) for path in ("", ".", "..", "a/../b", "/a", "~/a", "a\0", "a" * 2000)] == [None] * 8
    assert is_outputs(["a/b"]) and not any(map(is_outputs, (["a/"], ["../a"], [1], "a", ["a"] * 65)))


def test_what_lies_in_the_directory_that_follows_the_job_may_be_an_output(tmp_path: Path) -> None:
    (tmp_path / "followed").mkdir()
    (tmp_path / "followed" / "model").write_text("best")
    (tmp_path / "cwd").mkdir()
    elsewhere = {"ckpt": tmp_path / "followed"}
    found = taken(tmp_path / "cwd", ["ckpt/model"], tmp_path / "kept", 1000, elsewhere=elsewhere)
    assert (found.files, found.missing) == (1, ())
    assert (tmp_path / "kept" / "ckpt" / "model").read_text() == "best"


@pytest.mark.parametrize("level", ["off", "full"])
def test_what_is_named_and_no_output_is_refused_by_name_and_the_others_are_kept(
    cwd: Path, tmp_path: Path, level: str
) -> None:
    (cwd / "shadow").symlink_to("/etc/shadow")
    (cwd / "theirs").symlink_to("/etc")
    os.mkfifo(cwd / "pipe")
    wanted = ["shadow", "pipe", "left.txt", *(["theirs/shadow", "theirs/nothing"] if level == "full" else [])]
    found = taken(cwd, wanted, tmp_path / "outputs", 10**6, level=level)
    assert found.files == 1 and (tmp_path / "outputs" / "left.txt").exists()
    assert found.missing == () and sorted(os.listdir(tmp_path / "outputs")) == ["left.txt"]
    assert "shadow: it is a link that leads out; pipe: it is no file, folder or link" in found.problem
    assert found.problem.count("behind a link that leads out") == len(wanted) - 3


def test_links_on_the_way_are_followed_where_they_stay_inside(cwd: Path, tmp_path: Path) -> None:
    (cwd / "last").symlink_to("results/deep/../deep")
    (cwd / "around").symlink_to("around")
    (cwd / "up").symlink_to("results/../../cwd")
    found = taken(cwd, ["last/b.bin", "around/x", "up/left.txt"], tmp_path / "outputs", 10**6, level="full")
    assert (tmp_path / "outputs" / "last" / "b.bin").stat().st_size == 5000
    assert found.files == 1 and found.problem.count("behind a link that leads out") == 2


def test_second_names_of_files_of_others_are_no_outputs(
    cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.link(cwd / "left.txt", cwd / "hard")
    assert taken(cwd, ["hard"], tmp_path / "outputs", 10**6, level="full").files == 1
    own = os.geteuid()
    monkeypatch.setattr(WorkFolder, "owner", property(lambda _: own + 1, lambda *_: None), raising=False)
    monkeypatch.setattr(collected_outputs, "rights_of", lambda _owner: nullcontext())
    monkeypatch.setattr(work_folder, "rights_of", lambda _owner: nullcontext())
    found = taken(cwd, ["hard", "results"], tmp_path / "outputs", 10**6, level="full")
    assert found.problem == "hard: it is another name of a file that is not the work's" and found.files == 3 + 1
    assert taken(cwd, ["hard"], tmp_path / "outputs", 10**6, level="full", has_ours=True).problem == ""


def test_a_file_that_grows_or_is_exchanged_under_the_copy_is_bounded_or_refused(
    cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, read = cwd / "left.txt", os.read

    def grows(fd: int, size: int) -> bytes:
        with source.open("a") as file:
            file.write("more")
        return read(fd, size)

    with monkeypatch.context() as patched:
        patched.setattr(collected_outputs.os, "read", grows)
        found = taken(cwd, ["left.txt"], tmp_path / "outputs", 10**6, level="full")
    assert (found.size_bytes, found.problem) == (len("not asked for"), "")
    rename = os.rename

    def exchanged(name: str, target: Path, **fields: Any) -> None:
        source.unlink()
        source.symlink_to("/etc/shadow")
        rename(name, target, **fields)

    monkeypatch.setattr(collected_outputs.os, "rename", exchanged)
    found = taken(cwd, ["left.txt"], tmp_path / "outputs", 10**6, level="full", moves=True)
    assert "it changed while" in found.problem and not os.listdir(tmp_path / "outputs")
