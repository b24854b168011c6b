"""What batching costs: noop items through the batcher alone, through a served class over HTTP, and through LitServe."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

import actorgrid
from actorgrid.serving.batch_runner import BatchRunner
from actorgrid.serving.batching import BatchLimits
from actorgrid.serving.model_threads import ModelThreads

from .figures import Figure, Skipped, registry
from .peers import python_with

ITEMS = 20_000
CALLERS = 64
REQUESTS = 3_000
CONNECTIONS = 16
START_S = 120.0
MUST_ITEMS_S, MUST_CPU_US = 5_000, 150.0


@actorgrid.service
class Noop:
    """Gives back what it gets."""

    @actorgrid.batch(max_size=32)
    def noop(self, items: list[int]) -> list[int]:
        """Each item."""
        return items


@registry.add("serving")
def serving(runs: int) -> Iterator[Figure]:
    """The batcher in its own process, beside a queue with a timeout; and the whole server."""
    ours = [asyncio.run(_items()) for _ in range(runs)]
    yield Figure(f"noop items, {CALLERS} callers", "items/s", [each[0] for each in ours], True, must=MUST_ITEMS_S)
    yield Figure("CPU of an item", "us", [each[1] for each in ours], False, must=MUST_CPU_US)
    lone = [asyncio.run(_items(callers=1, items=2_000)) for _ in range(runs)]
    yield Figure("an item alone, from call to result", "us", [1e6 / each[0] for each in lone], False)
    textbook = [asyncio.run(_queue_and_timeout(callers=1, items=300)) for _ in range(runs)]
    yield Figure("the same in a queue with a 2 ms timeout", "us", [1e6 / each[0] for each in textbook], False)
    textbook = [asyncio.run(_queue_and_timeout(CALLERS, ITEMS)) for _ in range(runs)]
    yield Figure("CPU of an item in that queue", "us", [each[1] for each in textbook], False)
    with _server([sys.executable, "-m", "actorgrid.serving", f"{__name__}:Noop", "--port"], "/noop", b"1") as server:
        found = [server.measure(CONNECTIONS, REQUESTS) for _ in range(runs)]
    yield Figure(f"over HTTP, {CONNECTIONS} connections", "requests/s", [each[0] for each in found], True)
    yield Figure("CPU of a request, of the server", "us", [each[1] for each in found], False)


@registry.add("serving_peers")
def serving_peers(runs: int) -> Iterator[Figure]:
    """LitServe with the same noop."""
    python = python_with("litserve")
    program = Path(__file__).with_name("peer_litserve.py")
    for batch in (1, 16):
        command = [str(python), str(program)]
        with _server(command, "/predict", b'{"input": 1}', str(batch)) as server:
            found = [server.measure(CONNECTIONS, REQUESTS // 5) for _ in range(runs)]
        yield Figure(f"LitServe, batches of {batch}", "requests/s", [each[0] for each in found], True)
        yield Figure(f"LitServe, batches of {batch}: CPU of a request", "us", [each[1] for each in found], False)


# -- in one process


async def _items(callers: int = CALLERS, items: int = ITEMS) -> tuple[float, float]:
    """Items a second, and CPU of one in microseconds."""
    threads = ModelThreads(asyncio.get_running_loop(), 1)
    runner = BatchRunner(lambda values: values, BatchLimits(max_size=32), threads)

    async def caller() -> None:
        for number in range(items // callers):
            await runner.submit(number)

    try:
        return await _timed([caller() for _ in range(callers)], items)
    finally:
        threads.close()


async def _queue_and_timeout(callers: int, items: int) -> tuple[float, float]:
    """The usual batcher: an asyncio queue, from which as many are taken as come within 2 ms."""
    queue: asyncio.Queue[tuple[int, asyncio.Future[int]]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def work() -> None:
        while True:
            batch = [await queue.get()]
            end = loop.time() + 0.002
            while len(batch) < 32 and (left := end - loop.time()) > 0:
                try:
                    batch.append(await asyncio.wait_for(queue.get(), left))
                except TimeoutError:
                    break
            results = await loop.run_in_executor(None, list, [value for value, _ in batch])
            for (_, answer), result in zip(batch, results, strict=True):
                answer.set_result(result)

    async def caller() -> None:
        for number in range(items // callers):
            answer: asyncio.Future[int] = loop.create_future()
            await queue.put((number, answer))
            await answer

    worker = asyncio.create_task(work())
    try:
        return await _timed([caller() for _ in range(callers)], items)
    finally:
        worker.cancel()


async def _timed(work: Sequence[object], items: int) -> tuple[float, float]:
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*work)  # type: ignore[call-overload]
    return items / (time.perf_counter() - began), (time.process_time() - cpu) / items * 1e6


# -- over HTTP


class _Server:
    def __init__(self, process: subprocess.Popen[bytes], port: int, path: str, body: bytes) -> None:
        self.process = process
        self._port = port
        self._request = (
            f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def measure(self, connections: int, requests: int) -> tuple[float, float]:
        """Requests a second, and CPU of the server for one in microseconds."""
        asyncio.run(self._load(connections, connections * 4))
        cpu, began = self._cpu_s(), time.perf_counter()
        asyncio.run(self._load(connections, requests))
        return requests / (time.perf_counter() - began), (self._cpu_s() - cpu) / requests * 1e6

    def wait(self) -> None:
        """Until it answers. Raises Skipped."""
        end = time.monotonic() + START_S
        while True:
            try:
                asyncio.run(self._load(1, 1))
                return
            except (OSError, AssertionError, asyncio.IncompleteReadError):
                if time.monotonic() > end or self.process.poll() is not None:
                    raise Skipped("it does not come to serve here") from None
                time.sleep(0.2)

    async def _load(self, connections: int, requests: int) -> None:
        left = requests

        async def one() -> None:
            nonlocal left
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            while left > 0:
                left -= 1
                writer.write(self._request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                assert b" 200 " in head[:16], head
                length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
            writer.close()

        await asyncio.gather(*(one() for _ in range(connections)))

    def _cpu_s(self) -> float:
        whole = psutil.Process(self.process.pid)
        times = [each.cpu_times() for each in (whole, *whole.children(recursive=True))]
        return sum(each.user + each.system for each in times)


@contextmanager
def _server(command: list[str], path: str, body: bytes, *options: str) -> Iterator[_Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*command, str(port), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    server = _Server(process, port, path, body)
    try:
        server.wait()
        yield server
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
