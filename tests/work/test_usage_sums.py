"""Sums of past slots say what their work says, whatever is entered late, replaced, joined or taken away."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.work import usage_history, usage_sums
from actorgrid.actors.work.usage_history import UsageHistory
from actorgrid.actors.work.usage_meter import HeldDevice
from actorgrid.actors.work.usage_rows import OTHERS
from actorgrid.actors.work.usage_sums import SLOT_S, UsageSums, spans_without
from tests.work.test_usage_history import NOW, entry

GROUPS = ("user", "tenant", "gpu", "model", "host", "kind", "label", "label:team", "job")


def rounded(rows: list[Any]) -> dict[str, dict[str, Any]]:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        return round(value, 4) if isinstance(value, float) else value

    return {row["key"]: plain(row) for row in rows}


def work(dice: random.Random, number: int) -> Any:
    devices = (HeldDevice(f"GPU-{dice.randrange(3)}", dice.choice(("H100", "A100"))),)
    labels = {"team": dice.choice("xy")} if dice.random() < 0.6 else {}
    ended_at = NOW - dice.uniform(0, 30 * SLOT_S)
    lasted_s = dice.choice((5.0, 200.0, 5_000.0))
    more = {"labels": labels, "kind": dice.choice(("attempt", "session")), "devices": devices}
    return entry(f"j{number}.1", dice.choice(("ann", "bob")), lasted_s, ended_at, cpu_s=dice.uniform(0, 9), **more)


@pytest.mark.parametrize("seed", range(8))
def test_sums_say_what_the_work_itself_says(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(usage_sums, "ENTRIES_AT_A_TIME", dice.choice((1, 20, 2_000)))
    history = UsageHistory(tmp_path / "history.db", entries_max=150)
    now = NOW
    made: list[Any] = []
    for step in range(25):
        made += [work(dice, 100 * step + number) for number in range(dice.randrange(12))]
        some = made[-12:] + dice.sample(made, min(len(made), 2))  # and some that are there already
        if dice.random() < 0.3 and made:
            some.append({**dice.choice(made), "incomplete": "the agent was away"})
        now += dice.choice((5.0, SLOT_S))
        history.add(some, now)
    history.add([], now)
    since = dice.choice((0.0, now - 12.5 * SLOT_S, now - 3.2 * SLOT_S))
    running = [entry("r.1", ended_at=None)]

    def answers() -> dict[str, Any]:
        users = ("", "ann")
        return {
            f"{by} {user}": rounded(history.rows(running, by, since, now, user, "h1"))
            for by in GROUPS
            for user in users
        }

    with_sums = answers()
    used = history._sums.usable("user", 0.0, now)
    assert len(used) >= 2, "else nothing is looked at"
    none: Callable[..., frozenset[int]] = lambda *_args: frozenset()  # noqa: E731
    monkeypatch.setattr(UsageSums, "usable", none)
    assert with_sums == answers()
    history.close()


def test_sums_outlive_the_agent_and_a_change_that_is_rolled_back(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    history = UsageHistory(path)
    history.add([entry("a.1", ended_at=NOW - 5 * SLOT_S)], NOW)
    before = history._sums.usable("user", 0.0, NOW)
    assert before
    with pytest.raises(KeyError):
        history.add([entry("b.1", ended_at=NOW - 5 * SLOT_S), {"incomplete": ""}], NOW)  # type: ignore[list-item]
    assert history._sums.usable("user", 0.0, NOW) == before
    history.close()
    again = UsageHistory(path)
    assert again._sums.usable("user", 0.0, NOW) == before
    assert [row["gpu_s"] for row in again.rows([], "user", 0.0, NOW)] == [10.0]
    again.close()


def test_of_many_jobs_those_that_used_most_have_rows_and_the_others_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_history, "ROWS_MAX", 5)
    history = UsageHistory(tmp_path / "history.db")
    some = [entry(f"j{number}.{attempt}", gpu_s=float(number + 1)) for number in range(9) for attempt in (1, 2)]
    history.add(some, NOW)
    rows = history.rows([entry("j0.3", gpu_s=100.0, ended_at=None)], "job", 0.0, NOW)
    assert {row["key"]: row["gpu_s"] for row in rows} == {
        "j0": 102.0, "j8": 18.0, "j7": 16.0, "j6": 14.0, OTHERS: 40.0
    }  # fmt: skip
    assert sum(row["works"] for row in rows) == 19
    history.close()


def test_what_is_not_summed_is_between_and_behind() -> None:
    assert list(spans_without(frozenset(), 7.0)) == [(7.0, float("inf"))]
    assert list(spans_without(frozenset({0, 1, 3}), 0.0)) == [(2 * SLOT_S, 3 * SLOT_S), (4 * SLOT_S, float("inf"))]
