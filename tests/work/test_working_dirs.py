"""Archives of working directories are hostile until they are unpacked, and the unpacked ones are bounded."""

from __future__ import annotations

import io
import os
import stat
import threading
import zipfile
from pathlib import Path

import pytest

from actorgrid.actors.work import working_dirs
from actorgrid.actors.work.archives import ArchiveKind, checked_bytes, unpack
from actorgrid.actors.work.working_dirs import SENT, WorkingDirs
from actorgrid.client.working_dir_archive import pack
from actorgrid.errors import DiskFull, MalformedBody

LINK = stat.S_IFLNK | 0o777


def archive(*members: tuple[str, str, int]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, mode << 16
            file.writestr(info, content)
    return buffer.getvalue()


def digest_of(number: int) -> str:
    return f"{number:064x}"


def test_what_was_packed_comes_out_again_and_its_files_are_read_only(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "empty").mkdir(parents=True)
    (source / "a" / "run.sh").write_text("#!/bin/sh")
    (source / "a" / "run.sh").chmod(0o700)
    (source / "link").symlink_to("a/run.sh")
    packed = pack(source)
    dirs = WorkingDirs(tmp_path / "kept")
    held = dirs.hold(packed.digest)
    assert not dirs.has(packed.digest)
    place = dirs.add(packed.digest, lambda: packed.archive)
    assert dirs.add(packed.digest, lambda: b"not asked for again") == place
    assert stat.S_IMODE((place / "a" / "run.sh").stat().st_mode) == 0o555
    assert (place / "link").read_text() == "#!/bin/sh" and (place / "a" / "empty").is_dir()
    os.close(held)


@pytest.mark.parametrize(
    "members",
    [
        [("../out", "x", stat.S_IFREG | 0o644)],
        [("/etc/out", "x", stat.S_IFREG | 0o644)],
        [("a//b", "x", stat.S_IFREG | 0o644)],
        [("a/./b", "x", stat.S_IFREG | 0o644)],
        [("a\\b", "x", stat.S_IFREG | 0o644)],
        [("pipe", "", stat.S_IFIFO | 0o644)],
        [("device", "", stat.S_IFCHR | 0o644)],
        [("link", "/etc", LINK)],
        [("link", "../x", LINK)],
        [("a/link", "b/../../..", LINK)],
        [("dot", ".", LINK), ("dot/out", "..", LINK)],
        [("link", "a", LINK), ("link/file", "x", stat.S_IFREG | 0o644), ("a/", "", stat.S_IFDIR | 0o755)],
        [("a", "x", stat.S_IFREG | 0o644), ("a/b", "x", stat.S_IFREG | 0o644)],
        [("link", "x" * 2000, LINK)],
        [("n" * 2000, "x", stat.S_IFREG | 0o644)],
    ],
)
def test_what_would_lead_out_is_refused_and_nothing_is_left(
    tmp_path: Path, members: list[tuple[str, str, int]]
) -> None:
    dirs = WorkingDirs(tmp_path / "kept")
    held = dirs.hold(digest_of(1))
    with pytest.raises(MalformedBody):
        dirs.add(digest_of(1), lambda: archive(*members))
    os.close(held)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [".build", f"{digest_of(1)}.lock"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]


def test_two_of_one_name_are_refused() -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = archive(("a", "x", stat.S_IFREG), ("a", "y", stat.S_IFREG))
    with pytest.raises(MalformedBody):
        checked_bytes(io.BytesIO(twice), SENT)


def test_what_is_no_archive_or_holds_more_than_it_says_is_refused(tmp_path: Path) -> None:
    good = archive(("file", "content" * 1000, stat.S_IFREG | 0o644))
    for bad in (b"", b"PK", good[: len(good) // 2]):
        with pytest.raises(MalformedBody):
            checked_bytes(io.BytesIO(bad), SENT)
    size = (7000).to_bytes(4, "little")
    with pytest.raises(MalformedBody):
        unpack(io.BytesIO(good.replace(size, (10).to_bytes(4, "little"))), tmp_path / "into", SENT)


def test_bounds_hold_for_what_an_archive_says_and_for_what_comes_out(tmp_path: Path) -> None:
    many = io.BytesIO(archive(*((f"f{number}", "x", stat.S_IFREG | 0o644) for number in range(5))))
    with pytest.raises(MalformedBody, match="too many"):
        checked_bytes(many, ArchiveKind("archive", 4, 100))
    small = ArchiveKind("archive", 9, 4)
    with pytest.raises(MalformedBody, match="too large"):
        checked_bytes(many, small)
    with pytest.raises(MalformedBody, match="more than it says"):
        unpack(many, tmp_path / "into", small)


def test_the_one_used_longest_ago_goes_and_one_in_use_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_dirs, "KEPT_MAX", 2)
    dirs = WorkingDirs(tmp_path)
    one = archive(("file", "x", stat.S_IFREG | 0o644))

    def use(number: int) -> int:
        held = dirs.hold(digest_of(number))
        os.utime(tmp_path / f"{digest_of(number)}.lock", (number, number))
        dirs.add(digest_of(number), lambda: one)
        os.utime(tmp_path / f"{digest_of(number)}.lock", (number, number))
        return held

    first, second = use(1), use(2)
    with pytest.raises(DiskFull, match="in use"):
        os.close(use(3))
    os.close(second)
    third = use(3)
    assert [dirs.has(digest_of(number)) for number in (1, 2, 3)] == [True, False, True]
    os.close(first)
    os.close(third)
    monkeypatch.setattr(working_dirs, "KEPT_MAX", 9)
    monkeypatch.setattr(working_dirs, "KEPT_BYTES_MAX", 2)
    os.close(use(4))
    assert [dirs.has(digest_of(number)) for number in (1, 3, 4)] == [False, True, True]


def test_two_that_need_it_at_once_unpack_it_once(tmp_path: Path) -> None:
    dirs = WorkingDirs(tmp_path)
    one = archive(("file", "x", stat.S_IFREG | 0o644))
    asked: list[int] = []

    def use() -> None:
        held = dirs.hold(digest_of(1))
        dirs.add(digest_of(1), lambda: asked.append(1) or one)  # type: ignore[func-returns-value]
        os.close(held)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1 and not list(tmp_path.glob(".draft-*"))
