"""Who has sent which file: by tenant, over restarts, within bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actorgrid.actors.files import sent_files
from actorgrid.actors.files.sent_files import MARK_S, SentFiles
from actorgrid.errors import StorageError

D = [f"{number:064x}" for number in range(20)]


def test_what_a_tenant_has_sent_is_its_own_and_outlives_the_process(tmp_path: Path) -> None:
    sent = SentFiles(tmp_path / "sent")
    assert not sent.has("lab", D[0])
    sent.note("lab", D[0])
    sent.note("lab", D[0])
    again = SentFiles(tmp_path / "sent")
    assert again.has("lab", D[0]) and not again.has("biz", D[0]) and not again.has("lab", D[1])
    assert (tmp_path / "sent").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("tenant", ["", "../x", "a/b", "lab.", "ü" * 300])
def test_no_name_of_a_tenant_leads_anywhere_else(tmp_path: Path, tenant: str) -> None:
    sent = SentFiles(tmp_path / "sent")
    sent.note(tenant, D[0])
    assert sent.has(tenant, D[0]) and not sent.has("lab", D[0])
    assert len(list((tmp_path / "sent").iterdir())) == 1 and list(tmp_path.iterdir()) == [tmp_path / "sent"]


def test_those_that_nobody_asked_for_go_and_of_too_many_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_files, "MARKS_MAX", 8)
    sent = SentFiles(tmp_path)
    for number in range(8):
        sent.note("lab", D[number])
        os.utime(next(tmp_path.glob(f"*.{D[number]}")), (1000.0 + number, 1000.0 + number))
    sent.sweep(1000.0 + MARK_S + 1.5)
    assert sorted(path.name.partition(".")[2] for path in tmp_path.iterdir()) == D[2:8]
    for number in range(8, 12):
        sent.note("lab", D[number])
    sent.sweep(1000.0)
    assert sorted(path.name.partition(".")[2] for path in tmp_path.iterdir()) == D[6:12]


def test_a_question_keeps_it(tmp_path: Path) -> None:
    sent = SentFiles(tmp_path)
    sent.note("lab", D[0])
    os.utime(next(tmp_path.iterdir()), (1000.0, 1000.0))
    assert sent.has("lab", D[0])
    sent.sweep(1000.0 + 2 * MARK_S)
    assert sent.has("lab", D[0])


def test_a_disk_that_fails_is_said(tmp_path: Path) -> None:
    (tmp_path / "sent").write_text("a file")
    with pytest.raises(StorageError, match="who has sent a file"):
        SentFiles(tmp_path / "sent").note("lab", D[0])
    with pytest.raises(StorageError):
        SentFiles(tmp_path / "sent").has("lab", D[0])
