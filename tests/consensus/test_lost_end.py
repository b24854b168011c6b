"""A log whose end is lost, and with it the mark of how far it was durable: who notices, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorgrid.actors.consensus.ledger_check import check as check_files
from actorgrid.actors.ledger.commands import SetSetting
from actorgrid.errors import LogCorrupted
from tests.consensus.rig import AT
from tests.consensus.test_actor import MakeHost
from tests.consensus.test_cluster import Town, three, town  # noqa: F401 - fixtures


def cut(folder: Path, count: int) -> None:
    """Take the last *count* bytes from the log, and its mark."""
    (folder / "segments" / "acknowledged").unlink()
    last = max((folder / "segments").glob("*.log"))
    content = last.read_bytes()
    assert len(content) > count, "the cut is to be within a segment"
    last.write_bytes(content[:-count])


def test_a_voter_whose_leader_knows_that_it_lost_its_end_does_not_start(three: Town) -> None:  # noqa: F811
    town = three  # noqa: F811
    lost = next(host_id for host_id in town.live if host_id != town.leader)
    for number in range(3):
        town.propose(SetSetting("a", number, "me", at=AT), town.leader or "")
    town.until(town.settled, "everybody has it")
    folder = town.contexts[lost].paths.ledger_dir
    town.kill(lost)
    cut(folder, 500)
    with pytest.raises(LogCorrupted, match="lost") as raised:
        town.start(lost)
    assert "actorgrid leave --host" in raised.value.hint and "--join" in raised.value.hint
    town.live.pop(lost, None)
    town.propose(SetSetting("a", 9, "me", at=AT), town.leader or "")  # the others go on


def test_verify_compares_with_what_the_store_noted_and_says_that_the_mark_is_missing(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    for number in range(20):
        host.propose(SetSetting(f"k{number}", number, "me", at=AT))
    folder = host.context.paths.ledger_dir
    host.live._replica._store.write(host.live._replica.ledger.index, [], [])
    host.kill()
    assert check_files(folder, lambda *_: None).log.marked
    whole = max((folder / "segments").glob("*.log")).read_bytes()
    cut(folder, len(whole) // 3)
    with pytest.raises(LogCorrupted, match="before an entry that was acknowledged"):
        check_files(folder, lambda *_: None)
    max((folder / "segments").glob("*.log")).write_bytes(whole)
    assert not check_files(folder, lambda *_: None).log.marked


def test_a_start_without_the_mark_says_so_once(make_host: MakeHost, caplog: pytest.LogCaptureFixture) -> None:
    host = make_host()
    host.start()
    host.propose(SetSetting("a", 1, "me", at=AT))
    host.kill()
    (host.context.paths.ledger_dir / "segments" / "acknowledged").unlink()
    for expected in (1, 1):
        host.start()
        assert sum("no mark of how far" in record.message for record in caplog.records) == expected
        host.kill()
