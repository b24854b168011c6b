"""What serve and rollout say of how requests come to replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorgrid.client.services import adapter_fields

from .conftest import Door, Invoke

VIEW: dict[str, Any] = {"revision": "0" * 12, "ready": 0, "target": 1, "rollout": None}
FILE = "route: round_robin\nadapters: [law, b=c]\nfallbacks: [small]\n"


def asked(door: Door) -> dict[str, Any]:
    body: dict[str, Any] = next(body for request, _, body in door.asked if request == "PUT /api/services/chat")
    return body


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], {}),
        (["--route", "least_loaded", "--affinity-header", ""], {"route": "least_loaded", "affinity_header": ""}),
        (["--fallback", "a", "--fallback", "b"], {"fallbacks": ["a", "b"]}),
        (["--fallback", "", "--adapter", ""], {"fallbacks": [], "adapters": []}),
        (
            ["--adapter", "law", "--adapter", "b=c"],
            {"adapters": [{"model": "law", "served_as": ""}, {"model": "b", "served_as": "c"}]},
        ),
    ],
)
def test_what_is_said_of_the_way_to_replicas_is_sent_and_nothing_else(
    call: Invoke, door: Door, words: list[str], told: dict[str, Any]
) -> None:
    door.on("PUT /api/services/chat", {"unchanged": False, "service": VIEW})
    assert call("serve", "chat", *words, "--", "true").exit_code == 0
    routing = ("route", "affinity_header", "adapters", "fallbacks")
    assert {name: value for name, value in asked(door).items() if name in routing} == told


def test_a_file_may_say_it_too(call: Invoke, door: Door, tmp_path: Path) -> None:
    door.on("PUT /api/services/chat", {"unchanged": False, "service": VIEW})
    (tmp_path / "chat.yaml").write_text(FILE)
    assert (
        call("serve", "chat", "-f", str(tmp_path / "chat.yaml"), "--route", "affinity_aware", "--", "true").exit_code
        == 0
    )
    body = asked(door)
    assert (body["route"], body["fallbacks"]) == ("affinity_aware", ["small"])
    assert body["adapters"] == [{"model": "law", "served_as": ""}, {"model": "b", "served_as": "c"}]
    assert adapter_fields({"law": "x"}) == [{"model": "law", "served_as": "x"}]
    assert adapter_fields(["law"]) == [{"model": "law"}]


def test_another_model_of_a_preset_is_started_for_what_replicas_have(call: Invoke, door: Door) -> None:
    had = {"gpus": 4.0, "gpu_count": 4, "gpu_milli": 1000, "gang": 2, "spread": True}
    door.on("GET /api/services/chat", {**VIEW, "revisions": [{"job": {"resources": had}}]})
    door.on("PUT /api/services/chat", {"unchanged": False, "service": VIEW})
    assert call("rollout", "chat", "--preset", "sglang", "--model", "m").exit_code == 0
    body = asked(door)
    words = body["job"]["command"]
    assert "resources" in body["keep"] and words[words.index("--tp") + 1] == "8"
    door.asked.clear()
    assert call("rollout", "chat", "--preset", "sglang", "--model", "m", "--gpus", "2").exit_code == 0
    words = asked(door)["job"]["command"]
    assert "--nnodes" not in words and words[words.index("--tp") + 1] == "2"
