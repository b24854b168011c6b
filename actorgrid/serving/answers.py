"""What goes back over HTTP: JSON of what methods give, errors in the shape of OpenAI's, server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import web
from pydantic_core import PydanticSerializationError, to_json

from actorgrid.errors import ActorGridError, BadRequest, NotFound, Overloaded, WrongAnswer

from .batching import USUAL

LOG = logging.getLogger(__name__)
JSON = "application/json"
COMMENT_S = 15.0
"""After so long without a piece a stream gets a comment: what stands between may cut a silent connection after 60 s."""
STALL_S = 60.0
"""How long a reader of a stream may take nothing before it is cut."""
RETRY_S = 1
PRIORITY_HEADER = "x-actorgrid-priority"
TIMEOUT_HEADER = "x-actorgrid-timeout-s"
ID_HEADER = "x-request-id"
DONE = b"data: [DONE]\n\n"


class UnknownModel(NotFound):
    """The replica serves no model of that name."""

    @property
    def code(self) -> str:
        """As OpenAI names it."""
        return "model_not_found"


def json_of(value: Any) -> bytes:
    """*value* as JSON. Raises WrongAnswer for what has no JSON form."""
    try:
        return to_json(value, inf_nan_mode="null", fallback=_plain)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise WrongAnswer(
            f"the method gave what has no JSON form: {error}", found=type(value).__name__, hint="give plain values"
        ) from error


def _plain(value: Any) -> Any:
    """Arrays and their numbers as plain ones."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")


def answer(value: Any) -> web.Response:
    """The answer 200 with *value* as JSON."""
    return web.Response(body=json_of(value), content_type=JSON)


def error_status(error: Exception) -> int:
    """The status of an error: our own have one, whatever else a class raises is 500."""
    return error.http_status if isinstance(error, ActorGridError) else 500


def error_body(error: Exception) -> dict[str, Any]:
    """The error as OpenAI's clients read it."""
    status = error_status(error)
    kinds = {
        400: "invalid_request_error",
        404: "not_found_error",
        413: "invalid_request_error",
        429: "rate_limit_error",
    }
    ours = isinstance(error, ActorGridError)
    message = str(error) if ours else f"{type(error).__name__}: {error}"
    parameter = error.details.get("param") if isinstance(error, ActorGridError) else None
    code = error.code if isinstance(error, ActorGridError) else type(error).__name__
    kind = kinds.get(status, "server_error")
    return {"error": {"message": message[:4000], "type": kind, "param": parameter, "code": code}}


def refusal(error: Exception) -> web.Response:
    """The answer to a request that failed before anything of its answer was sent."""
    noted(error)
    response = web.Response(status=error_status(error), body=to_json(error_body(error)), content_type=JSON)
    if isinstance(error, Overloaded):
        response.headers["retry-after"] = str(RETRY_S)
    if error_status(error) == 503:
        response.force_close()
    return response


def noted(error: Exception) -> None:
    """Put a fault of the class into the log, with its traceback; what callers did wrong is theirs to hear."""
    if not isinstance(error, ActorGridError):
        LOG.error("a method raised", exc_info=error)


def request_id(request: web.BaseRequest) -> str:
    """The request's own id, where it has a sensible one; else a new one."""
    given = request.headers.get(ID_HEADER, "")
    return given if 0 < len(given) <= 128 and given.isascii() and given.isprintable() else uuid.uuid4().hex


def priority_of(request: web.BaseRequest) -> int:
    """The priority that the request's header says. Raises BadRequest."""
    given = request.headers.get(PRIORITY_HEADER)
    if given is None:
        return USUAL
    if len(given) != 1 or not ("0" <= given <= "9"):
        raise BadRequest(f"{PRIORITY_HEADER} is from 0 (first) to 9", asked=given[:40])
    return int(given)


def timeout_of(request: web.BaseRequest) -> float | None:
    """In how many seconds the request has to have begun. Raises BadRequest."""
    given = request.headers.get(TIMEOUT_HEADER)
    if given is None:
        return None
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0 < found <= 86_400:
        raise BadRequest(f"{TIMEOUT_HEADER} is over 0 and at most a day", asked=given[:40])
    return found


class EventStream:
    """Server-sent events to one client. Nothing is sent before the first event, so that a failure until then is an
    ordinary answer."""

    def __init__(self, request: web.BaseRequest, headers: Mapping[str, str] | None = None) -> None:
        self._request = request
        self._response = web.StreamResponse(
            headers={
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
                **(headers or {}),
            }
        )
        self._begun = False
        self._turn = asyncio.Lock()
        self._wrote_s = asyncio.get_running_loop().time()

    @contextlib.asynccontextmanager
    async def commented(self) -> AsyncIterator[None]:
        """While the stream is written to: it gets a comment when it has been silent for COMMENT_S."""
        task = asyncio.create_task(self._comment())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _comment(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._wrote_s + COMMENT_S - loop.time())
            if loop.time() >= self._wrote_s + COMMENT_S:
                await self.write(b": waiting\n\n")

    async def send(self, value: Any, event: str = "") -> None:
        """An event with *value* as JSON."""
        name = f"event: {event}\n".encode() if event else b""
        await self.write(name + b"data: " + json_of(value) + b"\n\n")

    async def write(self, data: bytes) -> None:
        """Send *data* as it is; waits for a slow reader, and cuts one that takes nothing."""
        try:
            async with self._turn, asyncio.timeout(STALL_S):
                if not self._begun:
                    await self._response.prepare(self._request)
                    self._begun = True
                await self._response.write(data)
                self._wrote_s = asyncio.get_running_loop().time()
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the reader of the stream took nothing") from None

    async def fail(self, error: Exception) -> None:
        """Tell the client of an error, in the middle of the stream. Raises it where the stream has not begun."""
        if not self._begun:
            raise error
        noted(error)
        await self.write(b"data: " + to_json(error_body(error)) + b"\n\n")

    async def end(self, last: bytes = DONE) -> web.StreamResponse:
        """The response, whole."""
        if last:
            await self.write(last)
        await self._response.write_eof()
        return self._response

    async def broken(self) -> web.StreamResponse:
        """The response, ended after an error was told."""
        return await self.end(b"")
