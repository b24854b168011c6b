"""A replica's HTTP server: its methods, its health and figures, and the /v1 routes where it is a language model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from actorgrid.errors import BodyTooLarge, NotFound

from .answers import ID_HEADER, EventStream, answer, priority_of, refusal, request_id, timeout_of
from .endpoints import LANGUAGE, ServedMethod, served_methods
from .figures import ReplicaFigures
from .openai_door import LanguageDoor
from .openai_responses import ResponsesDoor
from .replica import ServiceReplica

BODY_BYTES_MAX = 32 * 1024 * 1024
HEAD_BYTES_MAX = 64 * 1024
KEEPALIVE_S = 75.0
BACKLOG = 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ServiceDoor:
    """What answers for a replica. *models*: the names that a language model goes by."""

    def __init__(self, replica: ServiceReplica, models: Sequence[str] = ()) -> None:
        self.replica = replica
        named = replica.options.model or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", replica.cls.__name__).lower()
        self.models = tuple(models) or (named,)
        self.methods = served_methods(replica.cls)
        self.figures = ReplicaFigures(replica, self.models[0])
        self.language = tuple(name for name in LANGUAGE if replica.has(name))
        self._runner: web.AppRunner | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; the port. Raises OSError where that is not possible."""
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.router.add_get("/health", self._health)
        application.router.add_get("/metrics", self._metrics)
        for method in self.methods.values():
            application.router.add_post(f"/{method.name}", self._guarded(self._handler(method)))
        self._add_language(application.router)
        application.router.add_route("*", "/{anything:.*}", self._guarded(self._nothing))
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            max_line_size=HEAD_BYTES_MAX // 2,
            max_field_size=HEAD_BYTES_MAX // 2,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=BACKLOG)
        await site.start()
        found: int = self._runner.addresses[0][1]
        return found

    async def close(self) -> None:
        """Stop listening, and close what is connected."""
        if self._runner is not None:
            await self._runner.cleanup()

    # -- routes

    def _add_language(self, router: web.UrlDispatcher) -> None:
        if not self.language:
            return
        door = LanguageDoor(self.replica, self.models, self.figures)
        router.add_get("/v1/models", self._told(door.list_models))
        router.add_get("/v1/models/{name:.+}", self._told(door.show_model))
        if "chat" in self.language:
            router.add_post("/v1/chat/completions", self._guarded(door.chat))
            router.add_post("/v1/responses", self._guarded(ResponsesDoor(door).respond))
        if "complete" in self.language:
            router.add_post("/v1/completions", self._guarded(door.complete))
        if "embed" in self.language:
            router.add_post("/v1/embeddings", self._guarded(door.embed))

    def _told(self, handler: Handler) -> Handler:
        """*handler*, whose errors are answers, and whose answers have the request's id."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                response = await handler(request)
            except web.HTTPRequestEntityTooLarge:
                response = refusal(BodyTooLarge(f"a body has at most {BODY_BYTES_MAX} bytes"))
                response.force_close()
            except (web.HTTPException, ConnectionResetError):
                raise
            except Exception as error:  # noqa: BLE001  (a class may raise whatever it likes: the request fails, not the replica)
                response = refusal(error)
            if not response.prepared:
                response.headers[ID_HEADER] = request_id(request)
            return response

        return handle

    def _guarded(self, handler: Handler) -> Handler:
        """The same, as one of the requests that the replica has in hand."""

        async def handle(request: web.Request) -> web.StreamResponse:
            with self.replica.in_hand():
                return await handler(request)

        return self._told(handle)

    def _handler(self, method: ServedMethod) -> Handler:
        async def call(request: web.Request) -> web.StreamResponse:
            given = method.checked(await request.read())
            arguments, keywords = ((given,), {}) if method.whole else ((), given)
            how: Any = {"priority": priority_of(request), "timeout_s": timeout_of(request)}
            if not method.streams:
                return answer(await self.replica.call(method.name, arguments, keywords, **how))
            stream = EventStream(request)
            values = self.replica.stream(method.name, arguments, keywords, **how)
            async with stream.commented(), contextlib.aclosing(values):
                try:
                    async for value in values:
                        await stream.send(value)
                except ConnectionResetError:
                    raise
                except Exception as error:  # noqa: BLE001  (whatever the class raises is its caller's to hear)
                    await stream.fail(error)
                    return await stream.broken()
            return await stream.end()

        return call

    async def _nothing(self, request: web.Request) -> web.StreamResponse:
        paths = [f"POST /{name}" for name in self.methods] + ["GET /health", "GET /metrics"]
        if self.language:
            paths.append("/v1/...")
        raise NotFound(f"there is no {request.method} {request.path[:200]} here", found=", ".join(paths))

    async def _health(self, _request: web.Request) -> web.StreamResponse:
        state = self.replica.state
        response = answer({"status": state, "in_flight": self.replica.in_flight, "waiting": self.replica.waiting})
        if state != "ok":
            response.set_status(503)
        return response

    async def _metrics(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(body=self.figures.text(), content_type="text/plain", charset="utf-8")
