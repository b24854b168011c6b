"""A served class over HTTP: its methods of every kind, its bounds, its faults, and its end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel

from actorgrid.errors import BadRequest, NotAService
from actorgrid.serving.endpoints import find_class, served_methods
from actorgrid.serving.service import batch, service

from .served import Served, serving


class Point(BaseModel):
    x: float
    y: float = 0.0


@service(in_flight_max=8)
class Several:
    """A method of every kind."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.gate = threading.Event()
        self.sizes: list[int] = []
        self.closed_streams = 0

    @batch(max_size=4)
    def norm(self, points: list[Point]) -> list[float]:
        """The length of a vector."""
        self.sizes.append(len(points))
        return [abs(complex(point.x, point.y)) for point in points]

    @batch(max_size=4)
    def held(self, items: list[int]) -> list[int]:
        self.sizes.append(len(items))
        assert self.gate.wait(30)
        return items

    @batch(max_size=4, rerun_alone=False)
    def short(self, items: list[int]) -> list[int]:
        return []

    @batch(rows=len, max_size=4)
    def total(self, items: list[list[int]]) -> list[int]:
        return [sum(item) for item in items]

    def add(self, a: int, b: int = 2) -> int:
        assert threading.current_thread().name == self.thread.name == "actorgrid-model"
        return a + b

    async def later(self, value: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"value": value, "norm": await self.norm(Point(x=3, y=4))}

    def count(self, until: int) -> Iterator[int]:
        try:
            for number in range(until):
                if number == 5:
                    raise LookupError("five")
                yield number
        finally:
            self.closed_streams += 1

    async def tick(self, until: int) -> AsyncIterator[int]:
        for number in range(until):
            yield number

    def odd(self) -> object:
        return object()

    def numbers(self) -> list[float]:
        return [float("nan"), float("inf"), 1.5]

    def broken(self) -> None:
        raise RuntimeError("no")

    def fatal(self) -> None:
        raise SystemExit(3)

    def _private(self) -> str:
        return "not served"


@pytest.fixture(scope="module")
def several() -> Iterator[Served]:
    with serving(Several) as served:
        yield served


def test_arguments_go_by_name_and_results_come_as_json(several: Served) -> None:
    assert several.ask("/add", {"a": 1})[2] == 3
    assert several.ask("/add", {"a": 1, "b": 5})[2] == 6
    assert several.ask("/later", {"value": [1, None]})[2] == {"value": [1, None], "norm": 5.0}
    assert several.ask("/numbers")[2] == [None, None, 1.5]


def test_a_batched_method_takes_one_item_each(several: Served) -> None:
    assert several.ask("/norm", {"x": 3, "y": 4})[2] == 5.0
    assert several.ask("/total", [1, 2, 3])[2] == 6


def test_generators_are_streams_of_events(several: Served) -> None:
    status, headers, body = several.ask("/count", {"until": 3})
    assert (status, body) == (200, b"data: 0\n\ndata: 1\n\ndata: 2\n\ndata: [DONE]\n\n")
    assert headers["content-type"].startswith("text/event-stream")
    assert several.ask("/tick", {"until": 2})[2] == b"data: 0\n\ndata: 1\n\ndata: [DONE]\n\n"
    body = several.ask("/count", {"until": 9})[2]
    assert b"data: 4\n\n" in body and b'"message":"LookupError: five"' in body and b"[DONE]" not in body


def test_a_reader_that_leaves_closes_the_generator(several: Served) -> None:
    before = several.replica._object.closed_streams
    with socket.create_connection(("127.0.0.1", several.port)) as raw:
        body = b'{"until": 100000000}'
        raw.sendall(b"POST /tick HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        raw.settimeout(60)
        with raw.makefile("rb") as lines:
            assert any(line == b"data: 0\n" for line in lines)
    several.until(lambda: several.replica.in_flight == 0)
    several.ask("/count", {"until": 1})
    several.until(lambda: several.replica._object.closed_streams == before + 1)


@pytest.mark.parametrize(
    "path, body, status, code",
    [
        ("/add", {"a": "x"}, 400, "MalformedBody"),
        ("/add", {"a": 1, "c": 1}, 400, "MalformedBody"),
        ("/add", b"", 400, "MalformedBody"),
        ("/add", b"[1]", 400, "MalformedBody"),
        ("/add", b"{", 400, "MalformedBody"),
        ("/add", b"\xff", 400, "MalformedBody"),
        ("/norm", b"[" * 100_000, 400, "MalformedBody"),
        ("/norm", {"y": 1}, 400, "MalformedBody"),
        ("/total", [1, 2, 3, 4, 5], 400, "ItemTooLarge"),
        ("/short", 1, 500, "WrongResultLength"),
        ("/odd", b"", 500, "WrongAnswer"),
        ("/broken", b"", 500, "RuntimeError"),
        ("/fatal", b"", 500, "ExecutorDied"),
        ("/_private", b"", 404, "NotFound"),
        ("/nothing", b"", 404, "NotFound"),
        ("/v1/chat/completions", b"{}", 404, "NotFound"),
    ],
)
def test_what_goes_wrong_is_named_and_the_replica_goes_on(
    several: Served, path: str, body: Any, status: int, code: str
) -> None:
    found, _, answer = several.ask(path, body)
    assert (found, answer["error"]["code"]) == (status, code)
    assert several.ask("/add", {"a": 1})[2] == 3


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"x-actorgrid-priority": "0", "x-actorgrid-timeout-s": "30"}, 200),
        ({"x-actorgrid-priority": "10"}, 400),
        ({"x-actorgrid-priority": "\u00b2".encode().decode("latin-1")}, 400),
        ({"x-actorgrid-timeout-s": "soon"}, 400),
        ({"x-actorgrid-timeout-s": "nan"}, 400),
        ({"x-actorgrid-timeout-s": "-1"}, 400),
    ],
)
def test_headers_say_priority_and_time(several: Served, headers: dict[str, str], status: int) -> None:
    assert several.ask("/norm", {"x": 1}, headers=headers)[0] == status


def test_the_id_of_a_request_comes_back(several: Served) -> None:
    assert several.ask("/add", {"a": 1}, headers={"x-request-id": "mine"})[1]["x-request-id"] == "mine"
    assert len(several.ask("/add", {"a": 1}, headers={"x-request-id": "x" * 999})[1]["x-request-id"]) == 32


def test_requests_of_several_clients_share_a_batch_and_one_too_many_is_refused(several: Served) -> None:
    held = several.replica._object
    held.gate.clear()
    held.sizes.clear()
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(several.ask, "/held", 0)
        several.until(lambda: held.sizes == [1])
        others = [pool.submit(several.ask, "/held", number) for number in range(1, 8)]
        several.until(lambda: several.replica.in_flight == 8)
        status, headers, body = several.ask("/held", 9)
        assert (status, body["error"]["code"], headers["retry-after"]) == (429, "ServiceBusy", "1")
        late = several.ask("/health", method="GET")
        assert late[2] == {"status": "ok", "in_flight": 8, "waiting": 7}
        held.gate.set()
        assert [each.result()[2] for each in (first, *others)] == list(range(8))
    assert held.sizes == [1, 4, 3]


def test_a_request_whose_time_is_over_is_not_run(several: Served) -> None:
    held = several.replica._object
    held.gate.clear()
    held.sizes.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(several.ask, "/held", 0)
        several.until(lambda: held.sizes == [1])
        status, _, body = several.ask("/held", 1, headers={"x-actorgrid-timeout-s": "0.01"})
        assert (status, body["error"]["code"]) == (504, "ItemExpired")
        held.gate.set()
        assert first.result()[2] == 0
    assert held.sizes == [1]


def test_a_body_that_is_too_large_is_refused(several: Served) -> None:
    with socket.create_connection(("127.0.0.1", several.port)) as raw:
        raw.sendall(b"POST /add HTTP/1.1\r\nHost: a\r\nContent-Length: 40000000\r\n\r\n")
        raw.settimeout(30)
        chunk = b" " * 1_000_000
        try:
            for _ in range(40):
                raw.sendall(chunk)
        except OSError:
            return  # cut while it was still sending
        assert b" 413 " in raw.recv(65536)


def test_before_it_is_loaded_it_says_so() -> None:
    with serving(Several, load=False) as served:
        assert served.ask("/health", method="GET")[0] == 503
        status, _, body = served.ask("/add", {"a": 1})
        assert (status, body["error"]["code"]) == (503, "ServiceLoading")
        served.run(served.replica.load())
        assert served.ask("/health", method="GET")[0] == 200


def test_one_that_ends_finishes_what_it_has_and_takes_nothing_new() -> None:
    closed = threading.Event()

    class Closing(Several):
        def close(self) -> None:
            closed.set()

    with serving(Closing) as served, ThreadPoolExecutor(2) as pool:
        held = served.replica._object
        first = pool.submit(served.ask, "/held", 5)
        served.until(lambda: held.sizes == [1])
        ending = asyncio.run_coroutine_threadsafe(served.replica.end(), served.loop)
        served.until(lambda: served.replica.ending)
        status, headers, body = served.ask("/add", {"a": 1})
        assert (status, body["error"]["code"]) == (503, "ServiceEnding")
        assert headers["connection"] == "close"
        assert served.ask("/health", method="GET")[2]["status"] == "ending"
        assert not closed.is_set()
        held.gate.set()
        assert first.result()[2] == 5
        assert ending.result(30) is True
        assert closed.is_set()


def test_one_that_does_not_finish_is_cut_at_the_end_of_its_time() -> None:
    @service(drain_s=0.05)
    class Slow(Several):
        pass

    with serving(Slow) as served, ThreadPoolExecutor(2) as pool:
        held = served.replica._object
        first = pool.submit(served.ask, "/held", 5)
        served.until(lambda: held.sizes == [1])
        second = pool.submit(served.ask, "/held", 6)
        served.until(lambda: served.replica.waiting == 1)
        assert served.run(served.replica.end()) is False
        assert second.result()[2]["error"]["code"] == "ServiceEnding"
        held.gate.set()
        first.result()


def test_a_call_that_takes_too_long_makes_it_unhealthy() -> None:
    @service(wedged_after_s=0.01)
    class Wedged(Several):
        pass

    with serving(Wedged) as served, ThreadPoolExecutor(1) as pool:
        first = pool.submit(served.ask, "/held", 1)
        served.until(lambda: served.replica.state == "hangs")
        assert served.ask("/health", method="GET")[0] == 503
        served.replica._object.gate.set()
        first.result()
        assert served.ask("/health", method="GET")[0] == 200


def test_a_class_that_cannot_be_made_says_why() -> None:
    @service
    class Unmade:
        def __init__(self) -> None:
            raise OSError("no weights")

        def call(self) -> None: ...

    with serving(Unmade, load=False) as served, pytest.raises(OSError, match="no weights"):
        served.run(served.replica.load())


def test_methods_are_listed_with_their_summaries() -> None:
    found = served_methods(Several)
    assert "_private" not in found and {"add", "norm", "count", "tick", "later"} <= set(found)
    assert found["norm"].summary == "The length of a vector."


class Starred:
    def call(self, *values: int) -> None: ...


class Unknown:
    def call(self, value: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class Nothing:
    _x = 1


class OwnHealth:
    def health(self) -> None: ...


class TwoLists:
    @batch
    def call(self, one: list[int], two: list[int]) -> list[int]:
        return one


@pytest.mark.parametrize("cls", [Starred, Unknown, Nothing, OwnHealth, TwoLists])
def test_classes_that_cannot_be_served_are_refused_with_the_reason(cls: type) -> None:
    with pytest.raises(NotAService):
        served_methods(cls)


@pytest.mark.parametrize(
    "target", ["", "json", "json:", ":x", "no_such_module:X", "json:NoSuch", "json:dumps", "json.decoder:x.y"]
)
def test_targets_that_name_no_class_are_refused(target: str) -> None:
    with pytest.raises(NotAService):
        find_class(target)


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"in_flight_max": 0}, {"drain_s": -1}, {"model": ""}, {"threads": True}]
)
def test_options_without_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        service(**options)(type("X", (), {}))


def test_decorators_refuse_what_they_cannot_stand_above() -> None:
    with pytest.raises(BadRequest):
        service(len)  # type: ignore[type-var]
    with pytest.raises(BadRequest):

        @batch
        def generator(self: object, items: list[int]) -> Iterator[int]:
            yield 1


def test_a_batched_method_can_be_used_without_a_server() -> None:
    several = Several()
    assert several.norm.direct([Point(x=3, y=4)]) == [5.0]

    async def course() -> list[float]:
        return await asyncio.gather(*(several.norm(Point(x=number)) for number in range(3)))

    assert asyncio.run(course()) == [0.0, 1.0, 2.0]
    assert asyncio.run(course()) == [0.0, 1.0, 2.0], "in a second loop too"
