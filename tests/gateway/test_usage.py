"""Usage over HTTP: by what, since when, whose."""

from __future__ import annotations

from typing import Any

import pytest


def test_rows_that_make_no_sense_are_left_out_and_the_rest_is_added_up(town: Any) -> None:
    answer = town.http("GET", "/api/usage?by=job&since_s=60").json
    (row,) = answer["rows"]
    assert (row["key"], row["gpu_s"], row["models"], row["energy_j"]) == ("job", 2.0, {"H100": 2.0}, None)
    assert answer["since"] > 1e9 and answer["kept_since"] == 5.0 and answer["by"] == "job"
    assert town.http("GET", "/api/usage?by=label:team&user=ann").json["rows"][0]["key"] == "ann"
    odd = town.http("GET", "/api/usage?by=kind")
    assert odd.status == 200 and odd.json["rows"] == [] and odd.json["kept_since"] is None


@pytest.mark.parametrize(
    ("asked", "hint"), [("lable", "did you mean label?"), ("label:", "did you mean label?"), ("%00", "--by user")]
)
def test_a_word_that_usage_is_not_known_by_is_refused(town: Any, asked: str, hint: str) -> None:
    reply = town.http("GET", f"/api/usage?by={asked}")
    assert reply.status == 400 and hint in reply.json["error"]["hint"]
    assert town.http("GET", "/api/usage?since_s=-1").status in (400, 422)
