"""Lengths of time as they are written on the command line, alike for every command that takes one."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from actorgrid.cli.main import cli
from actorgrid.cli.times import left, length_in_seconds, seconds, seconds_above_zero


@pytest.mark.parametrize(
    ("text", "length_s"),
    [("0", 0.0), ("30", 30.0), ("90s", 90.0), ("1.5m", 90.0), (" 10 m ", 600.0), ("2h", 7200.0), ("7d", 604_800.0)],
)
def test_a_number_with_or_without_a_unit_is_a_length_of_time(text: str, length_s: float) -> None:
    assert length_in_seconds(text) == length_s


@pytest.mark.parametrize("text", ["", "s", "-1", "1e3", "1w", "1h30m", "nan", "inf", "9" * 400, "1h\n1h"])
def test_anything_else_is_none(text: str) -> None:
    assert length_in_seconds(text) is None


def test_only_options_that_nought_makes_sense_for_take_it() -> None:
    context, option = click.Context(cli), click.Option(["--x"])
    assert seconds(context, option, "0s") == 0 and seconds(context, option, None) is None
    assert seconds_above_zero(context, option, "1s") == 1 and seconds_above_zero(context, option, None) is None
    with pytest.raises(click.BadParameter, match="above 0"):
        seconds_above_zero(context, option, "0m")


@pytest.mark.parametrize(
    "words",
    [
        ["token", "create", "--ttl", "soon"],
        ["key", "create", "--ttl", "soon"],
        ["drain", "1", "--timeout", "soon"],
        ["upgrade", "--timeout", "soon"],
        ["lock", "run", "name", "--wait", "soon", "--", "true"],
        ["run", "--timeout", "soon", "--", "true"],
        ["run", "--grace", "soon", "--", "true"],
        ["run", "--max-isolation", "soon", "--", "true"],
    ],
)
def test_every_command_refuses_what_is_none_in_the_same_words(words: list[str]) -> None:
    outcome = CliRunner().invoke(cli, words)
    assert outcome.exit_code == 2
    told = " ".join(outcome.output.split())
    assert "'soon' is not a length of time; write for example 30, 90s, 10m, 2h or 7d" in told


@pytest.mark.parametrize(
    ("left_s", "told"), [(59, "59 s"), (60, "1 m"), (119, "119 s"), (7200, "2 h"), (86_400, "1 d"), (90_000, "25 h")]
)
def test_what_is_left_is_told_in_a_unit_that_says_enough(left_s: float, told: str) -> None:
    assert left(left_s) == told
