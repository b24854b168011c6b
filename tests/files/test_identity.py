from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from actorgrid.actors.files.identity import create_secret, next_incarnation, read_token, write_atomically
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
    token = read_token(paths.token_file)
    assert paths.token_file.read_text() == f"{token}\n" and len(token) >= 43
    paths.token_file.chmod(0o644)
    assert read_token(paths.token_file) == token
    assert stat.S_IMODE(paths.token_file.stat().st_mode) == 0o600
    assert os.listdir(paths.token_file.parent) == [paths.token_file.name]


@pytest.mark.parametrize(
    ("content", "match"), [(b"abc", "too short"), (b"", "too short"), ("é".encode() * 20, "cannot read")]
)
def test_a_token_that_keeps_nobody_out_is_refused_and_kept(paths: HostPaths, content: bytes, match: str) -> None:
    paths.token_file.write_bytes(content)
    with pytest.raises(DataDirUnusable, match=match):
        read_token(paths.token_file)
    assert paths.token_file.read_bytes() == content


def test_of_several_makers_of_a_secret_the_first_counts(tmp_path: Path) -> None:
    create_secret(tmp_path / "secret", "one")
    create_secret(tmp_path / "secret", "two")
    assert (tmp_path / "secret").read_text() == "one\n" and os.listdir(tmp_path) == ["secret"]
    with pytest.raises(DataDirUnusable, match="cannot write"):
        create_secret(tmp_path / "missing" / "secret", "x")


def test_writing_leaves_no_temporary_file_and_names_what_failed(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"one")
    write_atomically(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"two" and os.listdir(tmp_path) == ["file"]
    with pytest.raises(DataDirUnusable, match="cannot write"):
        write_atomically(tmp_path / "missing" / "file", b"x")
