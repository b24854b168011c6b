"""What models used, on the disk of a host: added up by the hour, bounded, and read by what people ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorgrid.actors.model_gateway.usage_store import (
    OTHERS,
    USAGE_NAME,
    ModelUsageRow,
    UsageStore,
    merged_usage,
    read_usage_rows,
    usage_row_from,
    usage_within,
)
from actorgrid.actors.serving.table import ModelUsage
from actorgrid.errors import BadRequest, StorageError

AT = 1_795_000_020.0


def used(key: str = "k1", user: str = "ann@lab", model: str = "m", tokens: int = 10, **more: int) -> ModelUsage:
    counts = {"requests": 1, "aborted": 0, "cached_tokens": 2, "completion_tokens": 5, "estimated_tokens": 0, **more}
    return ModelUsage(key, user, user.partition("@")[2] or "default", "chat", model, prompt_tokens=tokens, **counts)


def told(folder: Path, by: str, since: float = 0.0, **of: str) -> list[tuple[str, str, int, int]]:
    rows, _ = read_usage_rows(folder, by, since, **of)
    return [(row["key"], row["user"], row["requests"], row["prompt_tokens"]) for row in rows]


def test_it_is_known_by_key_user_tenant_and_model_and_outlasts_its_writer(tmp_path: Path) -> None:
    assert read_usage_rows(tmp_path, "key", 0.0) == ([], 0.0)
    store = UsageStore(tmp_path)
    store.add([used(), used(model="n"), used("k2", "eve")], AT)
    store.add([used(tokens=100)], AT + 1)
    store.close()
    UsageStore(tmp_path).add([used(tokens=1)], AT + 7_200)
    assert told(tmp_path, "key") == [("k1", "ann@lab", 4, 121), ("k2", "eve", 1, 10)]
    assert told(tmp_path, "model") == [("m", "", 4, 121), ("n", "ann@lab", 1, 10)]
    assert told(tmp_path, "tenant", user="eve") == [("default", "eve", 1, 10)]
    assert told(tmp_path, "user", tenant="lab") == [("ann@lab", "ann@lab", 4, 121)]
    assert told(tmp_path, "all", AT + 7_300) == [("", "ann@lab", 1, 1)], "by whole hours"
    assert told(tmp_path, "service", AT + 9e6) == []
    with pytest.raises(BadRequest):
        read_usage_rows(tmp_path, "colour", 0.0)
    assert (tmp_path / USAGE_NAME).stat().st_mode & 0o77 == 0


def test_the_oldest_hours_go_first_and_it_is_said_from_when_on_all_is_known(tmp_path: Path) -> None:
    store = UsageStore(tmp_path, rows_max=4)
    for hour in range(5):
        store.add([used(f"k{hour}"), used(f"l{hour}")], AT + 3_600 * hour)
    rows, kept = read_usage_rows(tmp_path, "key", 0.0)
    assert [row["key"] for row in rows] == ["k3", "k4", "l3", "l4"]
    assert kept == (AT + 3 * 3_600) // 3_600 * 3_600
    store.add([used("late")], AT + 401 * 86_400)
    assert [row["key"] for row in read_usage_rows(tmp_path, "key", 0.0)[0]] == ["late"]
    store.close()


def test_a_broken_file_is_put_aside_and_another_begun(tmp_path: Path) -> None:
    (tmp_path / USAGE_NAME).write_bytes(b"no database " * 1_000)
    store = UsageStore(tmp_path)
    with pytest.raises(StorageError):
        store.add([used()], AT)
    with pytest.raises(StorageError):
        (tmp_path / f"other-{USAGE_NAME}").write_bytes(b"")
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / USAGE_NAME).write_bytes(b"no database " * 1_000)
        read_usage_rows(tmp_path / "b", "key", 0.0)
    store.add([used()], AT)
    assert told(tmp_path, "key") == [("k1", "ann@lab", 1, 10)]
    assert (tmp_path / f"broken-{USAGE_NAME}").exists()
    store.close()


def row(key: str, tokens: int, user: str = "ann") -> ModelUsageRow:
    return {
        "key": key,
        "user": user,
        "requests": 1,
        "aborted": 0,
        "prompt_tokens": tokens,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "estimated_tokens": 0,
    }


def test_hosts_are_added_up_and_what_is_too_much_is_one_row() -> None:
    many = [row(f"k{number:04}", 5_000 - number) for number in range(5_000)]
    assert merged_usage([*many, row("k0000", 1, "eve")])[0] == {**row("k0000", 5_001, ""), "requests": 2}
    cut = usage_within(many, 20_000)
    assert len(cut) < 500 and cut[-1]["key"] == OTHERS
    assert sum(each["prompt_tokens"] for each in cut) == sum(each["prompt_tokens"] for each in many)
    again = merged_usage([*cut, *cut], 10)
    assert [each["key"] for each in again].count(OTHERS) == 1 and len(again) <= 10
    assert usage_within(many[:3], 20_000) == many[:3]


@pytest.mark.parametrize(
    "plain",
    [None, [], {}, {**row("k", 1), "user": 3}, {**row("k", 1), "requests": -1}, {**row("k", 1), "aborted": 1.5}],
)
def test_rows_of_other_hosts_that_make_no_sense_are_none(plain: object) -> None:
    assert usage_row_from(plain) is None
    assert usage_row_from({**row("k", 1), "more": 1}) == row("k", 1)
