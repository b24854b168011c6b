"""Texts to a service: a real one answers, and what it refuses, fails with, or has no time for is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from actorgrid.errors import InvalidWork, NotFound, Overloaded, ServingError
from actorgrid.work_types import service_inference
from actorgrid.work_types.registry import find_work_type
from actorgrid.work_types.service_inference import ServiceQuestion, ask_service
from tests.serving.served import Parrot, Served, serving


@pytest.fixture(scope="module")
def parrot() -> Iterator[Served]:
    with serving(Parrot) as served:
        yield served


def planned(served: Served, **arguments: Any) -> list[Any]:
    """What the plan of the work gives."""
    kind = find_work_type("machine_learning_inference")
    plan = kind.plan(kind.checked({"service": "parrot", "url": f"{served.url}/v1", **arguments}))
    assert plan.function is ask_service
    found: list[Any] = plan.function(*plan.arguments)
    return found


def test_each_input_gets_its_answer_in_order(parrot: Served) -> None:
    texts = [f"say {number} and more" for number in range(40)]
    assert planned(parrot, inputs=texts, max_tokens=2) == [f"say {number}" for number in range(40)]
    assert planned(parrot, inputs=["go on"], ask="complete", seed=3, max_tokens=9) == ["go on seed=3 temperature=1"]
    vectors = planned(parrot, inputs=["abc", "a", "ab"], ask="embed", batch_size=2)
    assert [each[0] for each in vectors] == [3.0, 1.0, 2.0]


def test_what_goes_wrong_is_named(parrot: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{parrot.url}/v1"
    with pytest.raises(ServingError, match="as it was told"):
        ask_service(ServiceQuestion("parrot", "chat", {}, url), ["fail at once"], 1)
    with pytest.raises(NotFound, match="does not exist"):
        ask_service(ServiceQuestion("other", "chat", {}, url), ["x"], 1)
    with pytest.raises(InvalidWork, match="temperature"):
        ask_service(ServiceQuestion("parrot", "chat", {"temperature": 9}, url), ["x"], 1)
    with pytest.raises(InvalidWork, match="no key in NO_SUCH_KEY"):
        ask_service(ServiceQuestion("parrot", "chat", {}, url, "NO_SUCH_KEY"), ["x"], 1)
    with pytest.raises(InvalidWork, match="begins with http"):
        ask_service(ServiceQuestion("parrot", "chat", {}, "ftp://x"), ["x"], 1)
    monkeypatch.setattr(service_inference, "PATIENCE_S", 0.01)
    monkeypatch.setattr(service_inference, "PAUSE_S", 0.001)
    with pytest.raises(Overloaded, match="no time"):
        ask_service(ServiceQuestion("parrot", "chat", {}, "http://127.0.0.1:1/v1"), ["x"], 1)


def test_a_service_that_has_no_time_is_asked_again(parrot: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_inference, "PAUSE_S", 0.001)
    monkeypatch.setattr(service_inference, "PAUSE_MAX_S", 0.001)
    waited: list[float] = []
    monkeypatch.setattr(service_inference.time, "sleep", lambda seconds: (waited.append(seconds), free(len(waited))))

    def free(times: int) -> None:
        if times == 3:
            parrot.replica.in_flight -= 2000

    parrot.replica.in_flight += 2000
    found = ask_service(ServiceQuestion("parrot", "chat", {}, f"{parrot.url}/v1"), ["at last"], 1)
    assert (found, len(waited)) == (["at last"], 3)
