"""Two data directories of one machine never give one uid out, however their paths hash."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from actorgrid.actors.work.isolation import uid_blocks
from actorgrid.actors.work.isolation.uid_blocks import BLOCK, FIRST_UID, claim_block
from actorgrid.actors.work.isolation.uids import WorkUids
from actorgrid.errors import IsolationNotGiven


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(uid_blocks, "BLOCKS", 8)  # so that paths meet
    return tmp_path / "lib" / "uid_blocks.json"


def made(tmp_path: Path, count: int) -> list[Path]:
    folders = [tmp_path / f"data-{number}" for number in range(count)]
    for folder in folders:
        folder.mkdir()
    return folders


def test_directories_whose_paths_hash_alike_have_blocks_of_their_own(tmp_path: Path, registry: Path) -> None:
    folders = made(tmp_path, 8)
    blocks = [claim_block(folder, (), registry) for folder in folders]
    assert sorted(blocks) == list(range(8))
    assert [claim_block(folder, (), registry) for folder in folders] == blocks
    with pytest.raises(IsolationNotGiven, match="every block"):
        claim_block(tmp_path, (), registry)
    folders[3].rmdir()
    assert claim_block(tmp_path, (), registry) == blocks[3]


def _claim(folder: Path, registry: Path) -> int:
    uid_blocks.BLOCKS = 8
    return claim_block(folder, (), registry)


def test_agents_that_claim_at_once_do_not_meet(tmp_path: Path, registry: Path) -> None:
    folders = made(tmp_path, 8)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        blocks = pool.starmap(_claim, [(folder, registry) for folder in folders], chunksize=1)
    assert sorted(blocks) == list(range(8))


def test_uids_stay_in_the_block_and_a_copied_directory_is_refused(tmp_path: Path, registry: Path) -> None:
    first, copy = made(tmp_path, 2)
    uids = WorkUids(first, registry)
    ann, bob = uids.uid_of("ann@lab"), uids.uid_of("bob@lab")
    assert (ann - FIRST_UID) // BLOCK == (bob - FIRST_UID) // BLOCK and ann != bob
    assert WorkUids(first, registry).uid_of("ann@lab") == ann
    (copy / "uids.json").write_bytes((first / "uids.json").read_bytes())
    with pytest.raises(IsolationNotGiven, match="another data directory"):
        WorkUids(copy, registry).uid_of("ann@lab")
    (first / "uids.json").unlink()
    first.rmdir()
    assert WorkUids(copy, registry).uid_of("ann@lab") == ann  # it was moved


def test_a_registry_that_is_none_is_said_and_not_guessed_around(tmp_path: Path, registry: Path) -> None:
    registry.parent.mkdir()
    for nonsense in ("[]", "{", json.dumps({"9000": "x"}), json.dumps({"1": 2})):
        registry.write_text(nonsense)
        with pytest.raises(IsolationNotGiven, match="settled"):
            claim_block(tmp_path, (), registry)
    registry.unlink()
    registry.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("{}")
    with pytest.raises(IsolationNotGiven, match="settled"):
        claim_block(tmp_path, (), registry)


def test_what_users_may_map_is_not_given_to_work(tmp_path: Path) -> None:
    subuid = tmp_path / "subuid"
    subuid.write_text(f"ann:{FIRST_UID}:65536\nnonsense\nbob:100000:65536\n")
    ranges = uid_blocks.subordinate_ranges([subuid, tmp_path / "none"])
    assert ranges == [(FIRST_UID, FIRST_UID + 65536), (100000, 165536)]
    assert uid_blocks._is_subordinate(0, ranges) and not uid_blocks._is_subordinate(1, ranges)
