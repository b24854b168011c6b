from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from actorgrid.actors.files.identity import ensure_token, next_incarnation, write_atomically
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import DataDirUnusable


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    return HostPaths(tmp_path)


def test_a_host_keeps_its_id_and_counts_its_starts(paths: HostPaths) -> None:
    first, second = next_incarnation(paths), next_incarnation(paths)
    assert first[0] == second[0] and (first[1], second[1]) == (1, 2)
    assert json.loads(paths.host_file.read_text()) == {"host_id": first[0], "incarnation": 2}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host_id": "x", "incarnation": 1}', '{"incarnation": 1}'])
def test_a_damaged_identity_is_refused_and_kept(paths: HostPaths, text: str) -> None:
    paths.host_file.write_text(text)
    with pytest.raises(DataDirUnusable, match="cannot be read") as caught:
        next_incarnation(paths)
    assert caught.value.hint and paths.host_file.read_text() == text


def test_a_token_is_made_once_and_kept_private(paths: HostPaths) -> None:
    ensure_token(paths)
    token = paths.token_file.read_text()
    paths.token_file.chmod(0o644)
    ensure_token(paths)
    assert paths.token_file.read_text() == token and len(token.strip()) >= 43
    assert stat.S_IMODE(paths.token_file.stat().st_mode) == 0o600


def test_writing_leaves_no_temporary_file_and_names_what_failed(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"one")
    write_atomically(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"two" and os.listdir(tmp_path) == ["file"]
    with pytest.raises(DataDirUnusable, match="cannot write"):
        write_atomically(tmp_path / "missing" / "file", b"x")
