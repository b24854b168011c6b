"""Packs of files: the same for the same files, whole or not at all, and nothing of them leads out of its folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from actorgrid import StepFiles
from actorgrid.dag.step_files import MAGIC, pack_files, put_files
from actorgrid.errors import MalformedBody, OutputMissing


def made(folder: Path) -> Path:
    (folder / "plots" / "empty").mkdir(parents=True)
    (folder / "plots" / "a.svg").write_text("<svg/>")
    (folder / "run").write_text("#!/bin/sh")
    (folder / "run").chmod(0o755)
    (folder / "latest").symlink_to("plots/a.svg")
    return folder


def test_the_same_files_give_the_same_pack_and_come_out_as_they_were(tmp_path: Path) -> None:
    pack = pack_files(made(tmp_path / "one"), 2**20)
    assert pack == pack_files(made(tmp_path / "two"), 2**20)
    files = StepFiles(pack)
    assert dict(files) == {"plots/a.svg": b"<svg/>", "run": b"#!/bin/sh"}
    files.write_to(tmp_path / "out")
    assert pack == pack_files(tmp_path / "out", 2**20)


def test_what_is_there_already_stays_and_other_names_of_a_file_keep_what_they_had(tmp_path: Path) -> None:
    pack = pack_files(made(tmp_path / "one"), 2**20)
    out = tmp_path / "out"
    out.mkdir()
    (out / "run").write_text("other")
    (tmp_path / "kept").hardlink_to(out / "run")
    put_files(pack, out)
    assert (tmp_path / "kept").read_text() == "other"
    before = (out / "run").stat()
    put_files(pack, out)
    assert (out / "run").stat().st_ino == before.st_ino


def test_too_much_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputMissing, match="too large"):
        pack_files(made(tmp_path / "one"), 1000)


def hostile(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member)
    return MAGIC + buffer.getvalue()


@pytest.mark.parametrize(
    "pack",
    [
        b"",
        MAGIC + b"no tar at all" * 100,
        hostile("../out"),
        hostile("/etc/x"),
        hostile("a/../../b"),
        hostile("link", tarfile.SYMTYPE, "../../x"),
        hostile("link", tarfile.SYMTYPE, "/etc"),
        hostile("hard", tarfile.LNKTYPE, "a"),
        hostile("pipe", tarfile.FIFOTYPE),
        hostile("device", tarfile.CHRTYPE),
        pack_files(Path(__file__).parent / "workflows", 2**24)[:-40_000],
    ],
)
def test_what_leads_out_or_is_no_file_is_refused(pack: bytes, tmp_path: Path) -> None:
    with pytest.raises(MalformedBody):
        put_files(pack, tmp_path / "in" / "out")
    with pytest.raises(MalformedBody):
        StepFiles(pack)
    assert not [path for path in tmp_path.rglob("*") if path.name not in ("in", "out")]


def test_a_link_of_the_pack_does_not_lead_others_of_it_out(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "way").symlink_to(tmp_path / "outside")
    put_files(hostile("way", tarfile.SYMTYPE, "inside"), folder)
    assert (folder / "way").readlink() == Path("inside")


def packed(*members: tuple[str, str | bytes]) -> bytes:
    """A pack of files (bytes) and links (text), whoever might write such."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return MAGIC + buffer.getvalue()


@pytest.mark.parametrize(
    "pack",
    [
        packed(("a/b/up", "../.."), ("out", "a/b/up/../.."), ("out/evil", b"x")),
        packed(("a/b/up", "../.."), ("out", "a/b/up/../../etc")),
        packed(("inner", "a"), ("inner/file", b"x")),
        packed(("inner/file", b"x"), ("inner", "a")),
    ],
    ids=["two links lead out", "a link leads out behind another", "behind a link", "before its link"],
)
def test_links_of_a_pack_do_not_lead_out_together(pack: bytes, tmp_path: Path) -> None:
    with pytest.raises(MalformedBody, match="link"):
        put_files(pack, tmp_path / "deep" / "in")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_links_by_way_of_others_come_out_and_one_that_goes_up_behind_another_is_named(tmp_path: Path) -> None:
    folder = made(tmp_path / "one")
    (folder / "best").symlink_to("plots/../plots")
    (folder / "plots" / "empty" / "last").symlink_to("../../best/a.svg")
    put_files(pack_files(folder, 2**20), tmp_path / "out")
    assert (tmp_path / "out/plots/empty/last").read_text() == "<svg/>"
    (folder / "odd").symlink_to("best/../run")
    with pytest.raises(OutputMissing, match="behind another link"):
        pack_files(folder, 2**20)
