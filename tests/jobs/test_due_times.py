"""When schedules are due: cron expressions where clocks change, intervals, and what has passed."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.jobs import due_times
from actorgrid.actors.jobs.due_times import check_trigger, next_due, passed, upcoming, zone
from actorgrid.errors import InvalidSchedule

DAY_S = 86_400


def cron(text: str, zone: str = "UTC") -> Any:
    return {"kind": "cron", "cron": text, "zone": zone}


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def local(due: list[int], name: str) -> list[str]:
    return [datetime.fromtimestamp(each, zone(name)).strftime("%m-%d %H:%M") for each in due]


def test_a_night_job_runs_once_where_clocks_are_put_forward_and_once_where_they_are_put_back() -> None:
    berlin = "Europe/Berlin"
    spring = upcoming(cron("30 2 * * *", berlin), at("2026-03-28T00:00+01:00"), 0, 3)
    assert local(spring, berlin) == ["03-28 02:30", "03-29 03:00", "03-30 02:30"], "there is no 02:30 on the 29th"
    autumn = upcoming(cron("30 2 * * *", berlin), at("2026-10-24T12:00+02:00"), 0, 2)
    assert local(autumn, berlin) == ["10-25 02:30", "10-26 02:30"]
    assert autumn[0] == at("2026-10-25T02:30+02:00"), "the first of the two"
    assert autumn[1] - autumn[0] == DAY_S + 3600


def test_what_runs_every_hour_follows_the_time_that_passes() -> None:
    for begin in ("2026-03-28T22:00+01:00", "2026-10-24T22:00+02:00"):
        due = upcoming(cron("0 * * * *", "Europe/Berlin"), at(begin), 0, 10)
        assert {second - first for first, second in pairwise(due)} == {3600}


@pytest.mark.parametrize("back", [False, True])
def test_a_start_within_a_repeated_hour_gives_nothing_that_is_over(back: bool) -> None:
    # 02:10 in summer time is an hour before 02:10 in winter time.
    start = at("2026-10-25T02:10+01:00" if back else "2026-10-25T02:10+02:00")
    due = next_due(cron("30 2 * * *", "Europe/Berlin"), start, 0)
    assert due is not None and due > start
    assert due == (at("2026-10-26T02:30+01:00") if back else at("2026-10-25T02:30+02:00"))


def test_zones_of_other_halves_of_the_world() -> None:
    assert next_due(cron("0 3 * * *", "Asia/Kolkata"), at("2026-01-01T00:00+00:00"), 0) == at("2026-01-01T21:30+00:00")
    sydney = upcoming(cron("30 2 * * *", "Australia/Sydney"), at("2026-04-04T00:00+11:00"), 0, 3)
    assert local(sydney, "Australia/Sydney") == ["04-04 02:30", "04-05 02:30", "04-06 02:30"]


@pytest.mark.parametrize("text", ["0 3 * * *", "*/5 * * * *", "0 0 29 2 *", "0 0 L 12 *", "0 0 1 1 MON#1"])
@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "Pacific/Kiritimati", "Etc/GMT+12"])
def test_behind_the_last_year_nothing_is_due(text: str, name: str) -> None:
    # Whoever proposes says when it is, and a clock may say anything: one such schedule is not to end who leads.
    for after in (253_402_300_799, due_times.LATEST, due_times.LATEST - DAY_S):
        assert all(after < due <= due_times.LATEST for due in upcoming(cron(text, name), after, 0, 3))
        assert passed(cron(text, name), after, 253_402_300_799, 0, 3).count <= DAY_S // 300


def test_short_names_of_expressions() -> None:
    assert next_due(cron("@daily"), at("2026-01-01T00:00+00:00"), 0) == at("2026-01-02T00:00+00:00")
    assert next_due(cron("@Hourly"), at("2026-01-01T00:00+00:00"), 0) == at("2026-01-01T01:00+00:00")


@pytest.mark.parametrize(
    ("trigger", "says"),
    [
        (cron("0 3 * *"), "five fields"),
        (cron("0 0 3 * * *"), "five fields"),
        (cron("61 3 * * *"), "cannot be read"),
        (cron("@sometimes"), "five fields"),
        (cron("0 3 * * *", "Europe/Berln"), "did you mean Europe/Berlin"),
        (cron("0 3 * * *", "../../etc/passwd"), "no time zone"),
        (cron("0 0 30 2 *"), "Bad day-of-month"),
        ({"kind": "at", "at": 5}, "never due"),
    ],
)
def test_what_cannot_be_understood_is_named(trigger: Any, says: str) -> None:
    with pytest.raises(InvalidSchedule, match=says):
        check_trigger(trigger, 1_000_000.0)


def test_of_a_month_without_anybody_the_latest_is_found_and_the_count_is_bounded() -> None:
    begin = at("2026-01-01T00:00+00:00")
    every_minute = passed(cron("* * * * *"), begin, begin + 60 * DAY_S, begin, 3)
    assert every_minute.latest == tuple(begin + 60 * DAY_S - 60 * back for back in (2, 1, 0))
    assert 7 * 1440 <= every_minute.count <= due_times.COUNTED_MAX
    yearly = passed(cron("@yearly"), begin, begin + 5 * 366 * DAY_S, begin, 10)
    assert [datetime.fromtimestamp(each, UTC).year for each in yearly.latest] == [2027, 2028, 2029, 2030, 2031]
    assert yearly.count == 5


@given(
    every_s=st.integers(1, 400),
    counts_from=st.integers(0, 2_000),
    after=st.integers(0, 4_000),
    length=st.integers(0, 3_000),
    most=st.integers(1, 20),
)
def test_intervals_that_have_passed_are_those_that_were_to_come(
    every_s: int, counts_from: int, after: int, length: int, most: int
) -> None:
    trigger: Any = {"kind": "every", "every_s": every_s}
    until = after + length
    expected = [due for due in upcoming(trigger, after, counts_from, length // every_s + 2) if after < due <= until]
    found = passed(trigger, after, until, counts_from, most)
    assert found.count == len(expected) and list(found.latest) == expected[-most:]


@settings(max_examples=40)  # each asks for 1,300 times
@given(
    text=st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 */3 * * *", "15,45 1-3 * * 0", "0 0 1 * *"]),
    name=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    after=st.integers(at("2026-02-01T00:00+00:00"), at("2026-12-01T00:00+00:00")),
    length=st.integers(0, 6 * DAY_S),
)
def test_cron_times_are_in_order_however_one_starts(text: str, name: str, after: int, length: int) -> None:
    due = upcoming(cron(text, name), after, 0, 20)
    assert all(first < second for first, second in pairwise([after, *due]))
    # Whoever begins to look later sees the same times: a new leader decides as the one before would have.
    later = due[len(due) // 2]
    assert (
        upcoming(cron(text, name), later, 0, 5)
        == [each for each in upcoming(cron(text, name), after, 0, 26) if each > later][:5]
    )
    all_of_them = [each for each in upcoming(cron(text, name), after, 0, 1300) if each <= after + length]
    found = passed(cron(text, name), after, after + length, 0, 100)
    assert list(found.latest) == all_of_them[-100:] and found.count == len(all_of_them)
