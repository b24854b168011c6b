from __future__ import annotations

import pytest

from tests.raft import test_requests, test_safety
from tests.raft.mutants import CAUGHT_BY, MUTANTS

TESTS = {name: test for module in (test_safety, test_requests) for name, test in vars(module).items()}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_known_bug_put_back_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for test in CAUGHT_BY[name]:
        with pytest.raises(AssertionError):
            TESTS[test]()


def test_every_safety_test_catches_some_bug() -> None:
    catching = {test for tests in CAUGHT_BY.values() for test in tests}
    without = {name for name in vars(test_safety) if name.startswith("test_")} - catching
    assert without == {
        "test_a_conflict_cuts_the_log",  # the other half of "every append cuts the log"
        "test_a_receiver_that_restarts_within_a_snapshot_is_sent_the_rest",
        "test_a_log_compacted_behind_a_snapshot_on_its_way_leaves_nobody_behind",
    }
