"""Credentials of work: made of the grant alone, good for that grant on that host, and for nothing that was changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.work.credentials import PREFIX, credential, opens, read_key, work_id_of, write_file
from actorgrid.errors import DataDirUnusable

KEY = bytes(range(32))
GRANT: dict[str, Any] = {"allocation_id": "job.with.dots.1", "token": [3, 70], "user_id": "ann", "host": "h1"}


def test_it_opens_for_its_own_grant_and_no_other() -> None:
    text = credential(KEY, GRANT)
    assert work_id_of(text) == "job.with.dots.1"
    assert opens(KEY, text, GRANT, "h1")
    for other in ({"token": [3, 71]}, {"user_id": "bob"}, {"allocation_id": "job.with.dots.2"}):
        assert not opens(KEY, text, {**GRANT, **other}, "h1"), other
    assert not opens(KEY, text, None, "h1"), "the grant is over"
    assert not opens(KEY, text, GRANT, "h2"), "it is held elsewhere"
    assert not opens(bytes(32), text, GRANT, "h1"), "another host's key"


@given(st.text(max_size=400))
def test_any_text_is_answered_without_an_error(text: str) -> None:
    assert not opens(KEY, text, GRANT, "h1") or text == credential(KEY, GRANT)
    found = work_id_of(text)
    assert found is None or text.startswith(f"{PREFIX}.{found}.")


def test_the_key_is_made_once_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "work.key"
    key = read_key(path)
    assert read_key(path) == key and len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.listdir(tmp_path) == ["work.key"]
    path.write_text("ab")
    with pytest.raises(DataDirUnusable, match="cut short"):
        read_key(path)
    path.write_text("no key")
    with pytest.raises(DataDirUnusable, match="cannot read"):
        read_key(path)


def test_a_file_that_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "credential.json"
    assert write_file(path, "http://x", "text") is False
    path.parent.mkdir()
    assert write_file(path, "http://x", "text") is True
    assert os.listdir(path.parent) == ["credential.json"] and stat.S_IMODE(path.stat().st_mode) == 0o600
