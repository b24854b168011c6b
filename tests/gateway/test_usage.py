"""Usage over HTTP: by what, since when, whose."""

from __future__ import annotations

from time import time
from typing import Any

import pytest

from actorgrid.actors.model_gateway.process_spec import FOLDER
from actorgrid.actors.model_gateway.usage_store import UsageStore
from actorgrid.actors.serving.table import ModelUsage


def test_rows_that_make_no_sense_are_left_out_and_the_rest_is_added_up(town: Any) -> None:
    answer = town.http("GET", "/api/usage?by=job&since_s=60").json
    (row,) = answer["rows"]
    assert (row["key"], row["gpu_s"], row["models"], row["energy_j"]) == ("job", 2.0, {"H100": 2.0}, None)
    assert answer["since"] > 1e9 and answer["kept_since"] == 5.0 and answer["by"] == "job"
    assert town.http("GET", "/api/usage?by=label:team&user=ann").json["rows"][0]["key"] == "ann"
    odd = town.http("GET", "/api/usage?by=kind")
    assert odd.status == 200 and odd.json["rows"] == [] and odd.json["kept_since"] is None


def test_the_users_of_a_tenant_are_one_row(town: Any) -> None:
    (row,) = town.http("GET", "/api/usage?by=tenant&user=ann@lab").json["rows"]
    assert (row["key"], row["gpu_s"]) == ("lab", 2.0), "a user's name says the tenant"


@pytest.mark.parametrize(
    ("asked", "hint"), [("lable", "did you mean label?"), ("label:", "did you mean label?"), ("%00", "--by user")]
)
def test_a_word_that_usage_is_not_known_by_is_refused(town: Any, asked: str, hint: str) -> None:
    reply = town.http("GET", f"/api/usage?by={asked}")
    assert reply.status == 400 and hint in reply.json["error"]["hint"]
    assert town.http("GET", "/api/usage?since_s=-1").status in (400, 422)


def test_what_models_used_is_told_by_key_and_model(town: Any) -> None:
    folder = town.host.paths.data_dir / FOLDER
    folder.mkdir()
    store = UsageStore(folder)
    for key, user, model in (("k1", "ann@lab", "m"), ("k2", "eve", "m"), ("k2", "eve", "n")):
        store.add(
            [ModelUsage(key, user, user.partition("@")[2] or "default", "chat", model, 1, 0, 10, 4, 5, 0)], time()
        )
    answer = town.http("GET", "/api/usage/models?by=key&since_s=60").json
    assert [(row["key"], row["user"], row["requests"], row["prompt_tokens"]) for row in answer["rows"]] == [
        ("k2", "eve", 2, 20),
        ("k1", "ann@lab", 1, 10),
    ]
    assert answer["since"] % 3_600 == 0 and answer["kept_since"] is None and answer["missing_hosts"] == []
    assert [row["key"] for row in town.http("GET", "/api/usage/models?user=ann@lab").json["rows"]] == ["m"]
    assert [row["key"] for row in town.http("GET", "/api/usage/models?by=host").json["rows"]] == [town.host.host_id]
    odd = town.http("GET", "/api/usage/models?by=gpu")
    assert odd.status == 400 and "--by key" in odd.json["error"]["hint"]
    store.close()
