"""Whose a keyword of submit is: the task's or the function's."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

import pytest

import actorgrid
from actorgrid.client.async_client import AsyncClient
from actorgrid.client.client import Client
from actorgrid.client.keywords import Keywords, divide, keywords_of
from actorgrid.errors import AmbiguousKeyword, BadRequest


def greet(text: str, name: str = "nobody", *, timeout: float = 1.0) -> tuple[str, str, float]:
    return text, name, timeout


def anything(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


@functools.wraps(greet)
def decorated(*args: Any, **kwargs: Any) -> tuple[str, str, float]:
    return greet(*args, **kwargs)


class Greeter:
    def __call__(self, text: str, gpus: float = 0.0) -> tuple[str, float]:
        return text, gpus

    def method(self, text: str, retries: int = 7) -> tuple[str, int]:
        return text, retries


@pytest.mark.parametrize(
    ("fn", "named", "any_name", "known"),
    [
        (greet, {"text", "name", "timeout"}, False, True),
        (decorated, {"text", "name", "timeout"}, False, True),
        (anything, set(), True, True),
        (lambda a, /, b, *, c: None, {"b", "c"}, False, True),
        (functools.partial(greet, "x", name="Ann"), {"name", "timeout"}, False, True),
        (Greeter(), {"text", "gpus"}, False, True),
        (Greeter().method, {"text", "retries"}, False, True),
        (time.sleep, set(), False, True),
        (actorgrid.task(gpus=1)(greet), {"text", "name", "timeout"}, False, True),
        (max, set(), False, False),
    ],
)
def test_the_keywords_of_a_callable_are_found(
    fn: Callable[..., Any], named: set[str], any_name: bool, known: bool
) -> None:
    for _ in range(2):  # looked at, and remembered
        found = keywords_of(fn)
        if found.known or not known:  # some builtins have got a signature since
            assert (set(found.names), found.any_name, found.known) == (named, any_name, known)


def test_a_signature_is_not_remembered_for_another_function_at_the_same_place() -> None:
    for number in range(200):
        name = f"a{number}"
        assert keywords_of(functools.partial(eval(f"lambda {name}: 0"))) == Keywords((name,))


def test_what_one_of_the_two_knows_is_that_ones() -> None:
    options, kwargs = divide(greet, 1, {"gpus": 0.5, "kwargs": {"name": "Ann"}})
    assert (options.gpus, kwargs) == (0.5, {"name": "Ann"})
    assert divide(lambda text, who: 0, 1, {"who": "Ann", "retries": 2})[1] == {"who": "Ann"}
    assert divide(anything, 1, {"colour": "red"})[1] == {"colour": "red"}


@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (greet, {"timeout": 30}),
        (decorated, {"timeout": 30}),
        (anything, {"gpus": 1}),
        (Greeter(), {"gpus": 1}),
        (Greeter().method, {"retries": 1}),
        (functools.partial(greet, "x", name="Ann"), {"name": "task"}),
        (lambda x, kwargs=None: 0, {"kwargs": {}}),
    ],
)
def test_what_both_know_is_refused_with_both_ways_out(fn: Callable[..., Any], given: dict[str, Any]) -> None:
    with pytest.raises(AmbiguousKeyword) as caught:
        divide(fn, 1, given)
    name = min(given)
    assert caught.value.asked == f"{name}="
    if name != "kwargs":
        assert f"client.options({name}=...).submit(" in caught.value.hint
    assert "client.options().submit(" in caught.value.hint


def test_a_parameter_that_is_filled_by_position_takes_no_keyword() -> None:
    assert divide(lambda timeout: 0, 1, {"timeout": 30})[0].timeout == 30
    with pytest.raises(AmbiguousKeyword):
        divide(lambda timeout: 0, 0, {"timeout": 30})


def test_what_neither_knows_is_refused_with_what_may_have_been_meant() -> None:
    with pytest.raises(BadRequest, match="did you mean gpus") as caught:
        divide(greet, 1, {"gpu": 1})
    assert "greet has no parameter 'gpu'" in caught.value.message
    with pytest.raises(BadRequest, match="did you mean text"):
        divide(greet, 0, {"txt": 1})
    with pytest.raises(BadRequest, match="given twice"):
        divide(anything, 0, {"a": 1, "kwargs": {"a": 2}})


def test_keywords_reach_the_function_on_a_worker(client: Client) -> None:
    assert client.submit(anything, 1, self=2, fn=3, colour="red").result(60) == (
        (1,),
        {"self": 2, "fn": 3, "colour": "red"},
    )
    with pytest.raises(AmbiguousKeyword):
        client.submit(greet, "x", name="Ann", timeout=30)
    calls = client.options(timeout=60, name="greeting")
    assert calls.submit(greet, "x", name="Ann", timeout=30).result(60) == ("x", "Ann", 30)
    assert calls.options(retries=0).submit(greet, "x").result(60) == ("x", "nobody", 1.0)
    assert list(client.map(anything, [1, 2], colour="red")) == [((n,), {"colour": "red"}) for n in (1, 2)]
    assert list(calls.map(greet, "ab", name="Ann", timeout=2, chunksize=2)) == [("a", "Ann", 2), ("b", "Ann", 2)]
    assert list(client.map(lambda chunksize: chunksize, [1, 2, 3], chunksize=2)) == [1, 2, 3]
    with pytest.raises(AmbiguousKeyword, match="map itself"):
        client.map(lambda x, *, buffersize: x, [1], buffersize=2)
    with pytest.raises(BadRequest, match="no option"):
        client.options(gpu=1)


def test_a_decorated_task_brings_its_options_and_takes_its_own_keywords(client: Client) -> None:
    task = actorgrid.task(timeout=60, name="t")(greet)
    assert client.submit(task, "x", retries=0).result(60) == ("x", "nobody", 1.0)
    assert task.submit("x", client=client, name="Ann", timeout=3).result(60) == ("x", "Ann", 3)
    with pytest.raises(AmbiguousKeyword):
        actorgrid.task(lambda client=None: client).submit(client=client)


def test_keywords_of_the_asynchronous_client(client: Client) -> None:
    async def calls() -> list[Any]:
        verbs = AsyncClient(client)
        one = await verbs.submit(anything, 1, colour="red")
        two = await verbs.options(timeout=60).submit(greet, "x", timeout=2)
        return [one, two, [value async for value in verbs.options(timeout=60).map(greet, "ab", name="Ann")]]

    assert asyncio.run(calls()) == [
        ((1,), {"colour": "red"}),
        ("x", "nobody", 2),
        [("a", "Ann", 1.0), ("b", "Ann", 1.0)],
    ]
