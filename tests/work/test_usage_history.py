"""Usage by user, job, device and label; and what of it stays on a host's disk."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actorgrid.actors.work.usage_history import DAY_S, UsageHistory
from actorgrid.actors.work.usage_meter import HeldDevice, HeldWork, UsageMeter
from actorgrid.actors.work.usage_rows import OTHERS, UsageEntry, empty_row, entry_of, merged, row_from, rows_of, within

NOW = 1_700_000_000.0


def entry(work_id: str, user: str = "ann", gpu_s: float = 10.0, ended_at: float | None = NOW, **fields: Any) -> Any:
    """Work that held a device for so long, whole."""
    meter = UsageMeter()
    work = HeldWork(
        work_id,
        fields.pop("kind", "attempt"),
        work_id.partition(".")[0],
        user,
        1000,
        2000,
        fields.pop("devices", (HeldDevice("GPU-0", "H100"),)),
        (NOW if ended_at is None else ended_at) - gpu_s,
        fields.pop("labels", {}),
    )
    meter.begin(work, 0.0)
    usage = meter.end(work_id, gpu_s)
    assert usage is not None
    made = entry_of(usage, ended_at, **fields)
    return json.loads(json.dumps(made))


def keys(rows: list[Any]) -> dict[str, float]:
    return {row["key"]: round(row["gpu_s"], 6) for row in rows}


def test_each_attempt_counts_for_its_user_job_labels_and_devices() -> None:
    two = (HeldDevice("GPU-0", "H100"), HeldDevice("GPU-1", "A100", simulated=True))
    entries: list[UsageEntry] = [
        entry("a.1", labels={"team": "x", "run": "1"}, cpu_s=3.0, max_rss_bytes=5),
        entry("a.2", labels={"team": "x"}, cpu_s=4.0, max_rss_bytes=9),
        entry("b.1", user="bob", devices=two),
        entry("s.0", kind="session", ended_at=None),
    ]

    def by(what: str) -> dict[str, float]:
        return keys(rows_of(entries, what, 0.0, NOW, "h1"))

    assert by("user") == by("tenant") == {"ann": 30.0, "bob": 20.0}
    assert by("job") == {"a": 20.0, "b": 20.0, "s": 10.0}
    assert by("gpu") == {"GPU-0": 40.0, "GPU-1": 10.0}
    assert by("model") == {"H100": 40.0, "A100": 10.0}
    assert by("host") == {"h1": 50.0}
    assert by("kind") == {"attempt": 40.0, "session": 10.0}
    assert by("label") == {"team=x": 20.0, "run=1": 10.0, "": 30.0}
    assert by("label:team") == {"x": 20.0, "": 30.0}
    (job,) = [row for row in rows_of(entries, "job", 0.0, NOW) if row["key"] == "a"]
    assert (job["works"], job["cpu_s"], job["max_rss_bytes"], job["core_s"]) == (2, 7.0, 9, 40.0)
    ann, bob = rows_of(entries, "user", 0.0, NOW)
    assert (ann["running"], ann["energy_j"], ann["energy_of_gpu_s"], bob["cpu_s"]) == (1, None, 0.0, None)
    assert (bob["simulated_gpu_s"], bob["models"]) == (10.0, {"H100": 10.0, "A100": 10.0})


def test_of_work_that_began_before_as_much_counts_as_of_its_time_came_after() -> None:
    entries = [entry("a.1", gpu_s=100.0), entry("old.1", gpu_s=100.0, ended_at=NOW - 500)]
    assert keys(rows_of(entries, "job", NOW - 25, NOW)) == {"a": 25.0}
    running = [entry("a.1", gpu_s=100.0, ended_at=None)]
    assert keys(rows_of(running, "job", NOW - 25, NOW)) == {"a": 25.0}


def test_a_sum_with_gaps_says_for_how_much_it_is_known() -> None:
    known = entry("a.1")
    known["devices"][0] |= {"energy_j": 50.0, "memory_mib_s": 7.0}
    (row,) = rows_of([known, entry("b.1", gpu_s=30.0)], "user", 0.0, NOW)
    assert (row["energy_j"], row["energy_of_gpu_s"], row["memory_mib_s"], row["gpu_s"]) == (50.0, 10.0, 7.0, 40.0)


def test_rows_of_several_hosts_are_added_up_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*rows_of([entry("a.1")], "user", 0.0, NOW), *rows_of([entry("b.1", gpu_s=5.0)], "user", 0.0, NOW)]
    assert keys(merged(rows)) == {"ann": 15.0}
    monkeypatch.setattr("actorgrid.actors.work.usage_rows.ROWS_MAX", 3)
    many = rows_of([entry(f"j{n}.1", gpu_s=n) for n in range(1, 6)], "job", 0.0, NOW)
    assert keys(merged(many)) == {"j5": 5.0, "j4": 4.0, OTHERS: 6.0}
    cut = within(many, 2 * len(msgpack.packb(many[0])) + 10)
    assert keys(cut) == {"j5": 5.0, "j4": 4.0, OTHERS: 6.0} and within(many, 2**20) == many
    assert [row["key"] for row in merged([*cut, *many])] == ["j5", "j4", OTHERS], "of two hosts' others one row"
    assert sum(keys(merged([*cut, *many])).values()) == 30.0


@pytest.mark.parametrize(
    "told",
    [
        None,
        {},
        {"key": "a"},
        {**empty_row("a"), "gpu_s": -1.0},
        {**empty_row("a"), "gpu_s": "1"},
        {**empty_row("a"), "energy_j": float("nan")},
        {**empty_row("a"), "models": {"x": None}},
        {**empty_row("x" * 2000)},
    ],
)
def test_what_a_hostile_host_tells_is_no_row(told: object) -> None:
    assert row_from(told) is None


def test_a_row_of_another_host_comes_through_whole() -> None:
    (row,) = rows_of([entry("a.1", cpu_s=1.5)], "user", 0.0, NOW)
    assert row_from(json.loads(json.dumps({**row, "later": 1}))) == row


# -- the file


def test_what_ended_is_there_for_the_next_agent(tmp_path: Path) -> None:
    history = UsageHistory(tmp_path / "history.db")
    history.add([entry("a.1"), entry("b.1", user="bob")], NOW)
    history.add([entry("a.1")], NOW)  # told again
    history.close()
    again = UsageHistory(tmp_path / "history.db")
    assert keys(again.rows([entry("c.1", ended_at=None)], "user", 0.0, NOW)) == {"ann": 20.0, "bob": 10.0}
    assert keys(again.rows([], "user", 0.0, NOW, user_id="bob")) == {"bob": 10.0}
    assert again.kept_since() == 0.0
    again.close()


def test_what_is_known_whole_is_not_replaced_by_a_part(tmp_path: Path) -> None:
    history = UsageHistory(tmp_path / "history.db")
    history.add([entry("a.1", gpu_s=30.0)], NOW)
    history.add([entry("a.1", gpu_s=20.0, incomplete="no agent was here")], NOW)
    assert keys(history.rows([], "job", 0.0, NOW)) == {"a": 30.0}
    history.close()


def test_the_oldest_are_brought_together_by_day_and_still_count_for_their_users(tmp_path: Path) -> None:
    history = UsageHistory(tmp_path / "history.db", entries_max=20)
    old = NOW - 3 * DAY_S
    history.add([entry(f"old{n}.1", "ann" if n % 2 else "bob", 2.0, old + n) for n in range(15)], NOW)
    history.add([entry(f"new{n}.1", "ann", 2.0) for n in range(10)], NOW)
    assert keys(history.rows([], "user", 0.0, NOW)) == {"ann": 34.0, "bob": 16.0}, "nothing of it is lost"
    assert history.kept_since() == old + 5
    assert len(history.rows([], "job", 0.0, NOW)) == 19
    assert keys(history.rows([], "user", NOW - DAY_S, NOW)) == {"ann": 20.0}
    history.add([], NOW + 500 * DAY_S)
    assert sum(keys(history.rows([], "user", 0.0, NOW)).values()) == 38.0, "days are kept for 400 days"
    history.close()


def test_what_a_machine_took_along_and_what_came_after_it_count_together(tmp_path: Path) -> None:
    history = UsageHistory(tmp_path / "history.db")
    before = entry("a.1", gpu_s=30.0, incomplete="the machine went down", ended_at=NOW - 100)
    before["devices"][0] |= {"energy_j": 50.0, "memory_high_mib": 9}
    history.add([before, entry("a.1", gpu_s=5.0, cpu_s=1.0)], NOW)
    history.add([before], NOW)  # read once more from a file that was not written since
    (row,) = history.rows([], "job", 0.0, NOW)
    assert (row["works"], row["gpu_s"], row["energy_j"], row["cpu_s"], row["incomplete"]) == (1, 35.0, 50.0, 1.0, 1)
    assert (row["memory_high_mib"], row["core_s"]) == (9, 70.0)
    history.close()


def test_what_was_written_since_it_was_looked_at_counts_once(tmp_path: Path) -> None:
    history = UsageHistory(tmp_path / "history.db")
    ends = [entry("a.1"), entry("b.1", incomplete="no agent was here")]
    running = [*ends, entry("c.1", ended_at=None)]
    assert keys(history.rows(running, "job", 0.0, NOW)) == {"a": 10.0, "b": 10.0, "c": 10.0}
    history.add(ends, NOW)
    assert keys(history.rows(running, "job", 0.0, NOW)) == {"a": 10.0, "b": 10.0, "c": 10.0}
    history.close()


def test_entries_with_many_labels_take_no_more_room_than_others(tmp_path: Path) -> None:
    history = UsageHistory(tmp_path / "history.db", bytes_max=200_000)
    labels = {f"label-{number}": "x" * 60 for number in range(16)}
    for first in range(0, 400, 20):
        history.add([entry(f"j{first + n}.1", gpu_s=1.0, ended_at=NOW + first, labels=labels) for n in range(20)], NOW)
    assert (tmp_path / "history.db").stat().st_size < 400_000
    assert keys(history.rows([], "user", 0.0, NOW)) == {"ann": 400.0}, "nothing of it is lost"
    history.close()


def test_a_file_that_is_no_history_is_told(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"this is no database, and longer than a header of one is" * 40)
    with pytest.raises(sqlite3.DatabaseError):
        UsageHistory(path)
