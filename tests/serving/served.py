"""Classes served in this process: a real server on a real port, in a loop of a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from actorgrid.serving.generation import ChatRequest, CompletionRequest, TextPiece, TokenUsage
from actorgrid.serving.http_door import ServiceDoor
from actorgrid.serving.replica import ServiceReplica
from actorgrid.serving.service import batch, service

WAIT_S = 60.0


class Served:
    """A class that is served, until it is closed."""

    def __init__(self, cls: type, models: tuple[str, ...] = (), load: bool = True) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.replica: ServiceReplica
        self.port = self.run(self._open(cls, models, load))
        self.url = f"http://127.0.0.1:{self.port}"

    async def _open(self, cls: type, models: tuple[str, ...], load: bool) -> int:
        self.replica = ServiceReplica(cls)
        self.door = ServiceDoor(self.replica, models)
        port = await self.door.open("127.0.0.1", 0)
        if load:
            await self.replica.load()
        return port

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    def until(self, condition: Any) -> None:
        """Wait in its loop until *condition* holds."""

        async def wait() -> None:
            async with asyncio.timeout(WAIT_S):
                while not condition():
                    await asyncio.sleep(0.002)

        self.run(wait())

    def ask(
        self, path: str, body: Any = None, *, method: str = "POST", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON (else bytes) of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        with contextlib.closing(connection):
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            found = response.read()
            given = {name.lower(): value for name, value in response.getheaders()}
        is_json = given.get("content-type", "").startswith("application/json")
        return response.status, given, json.loads(found) if is_json else found

    def close(self) -> None:
        self.run(self.door.close())

        async def rest() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run(rest())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()


@contextlib.contextmanager
def serving(cls: type, models: tuple[str, ...] = (), load: bool = True) -> Iterator[Served]:
    served = Served(cls, models, load)
    try:
        yield served
    finally:
        served.close()


@service(model="parrot")
class Parrot:
    """A language model that says what it hears; what it is told to do beside that, it does."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.let_on = asyncio.Event()

    async def chat(self, request: ChatRequest) -> AsyncIterator[TextPiece | str]:
        said = request.turns[-1].text
        yield TextPiece(usage=TokenUsage(len(said), len(said) // 2))
        if said.startswith("fail at once"):
            raise ValueError("as it was told")
        try:
            for number, word in enumerate(said.split(" ")):
                if word == "FAIL":
                    raise ValueError("as it was told")
                if word == "WAIT":
                    await self.let_on.wait()
                yield f" {word}" if number else word
        except (asyncio.CancelledError, GeneratorExit):
            self.left.append(said)
            raise

    async def complete(self, request: CompletionRequest) -> AsyncIterator[str]:
        sampling = request.sampling
        for word in (request.prompt, f" seed={sampling.seed}", f" temperature={sampling.temperature:g}"):
            yield word

    @batch(max_size=8)
    def embed(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 0.5, -1.25] for text in texts]

    @staticmethod
    def count_tokens(text: str) -> int:
        return len(text)
