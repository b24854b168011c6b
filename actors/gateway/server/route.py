"""What one row of the route table holds, and what a handler is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast

from aiohttp import web
from pydantic import BaseModel

from actorgrid.access import DEFAULT_TENANT, Identity, Right, Role, Scope
from actorgrid.actors.ledger.client import LEADERLESS_S
from actorgrid.actors.ledger.command import Command
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.ref import Ref

if TYPE_CHECKING:
    from .application import GatewayApp

COMMIT_S = 30.0
NOBODY = Identity("", "", Role.VIEWER, DEFAULT_TENANT)
"""Who has shown nothing, at a path that asks for nothing."""
ModelT = TypeVar("ModelT", bound=BaseModel)
P = ParamSpec("P")
Media = Literal["application/octet-stream", "text/event-stream", "text/plain", "application/json"]


@dataclass(slots=True)
class RequestContext:
    """One request, decoded and checked against its route."""

    app: GatewayApp
    http: web.Request
    body: Any
    query: Any
    who: Identity
    """Who asks, by the token."""
    scope: Scope
    """What of others is in reach of the route's right: what is not, is not there for whoever asks."""

    @property
    def caller(self) -> str:
        """Who asks, as records and logs name it."""
        return self.who.name

    def part(self, name: str) -> str:
        """The decoded part of the path under that name."""
        return self.http.match_info[name]

    async def ask(self, server: str | Ref, request: Any, timeout_s: float = 5.0) -> Any:
        """Ask a server of this host, by name or by reference, and await its answer."""
        return await self.app.bridge.call(server, request, timeout_s)

    async def propose(self, command: Command) -> Any:
        """The result of the ledger's *command*, once it is committed. Raises what it refuses with, and NoQuorum."""
        ledger = self.app.ledger

        async def commit() -> Any:
            return await ledger.propose(command, COMMIT_S, leaderless_s=LEADERLESS_S)

        return await self.app.bridge.run(commit, COMMIT_S, command.verb)

    @property
    def seen(self) -> int:
        """The ledger index that this host's clients may have seen: no answer may be of an earlier state."""
        return self.app.hub.last_index

    def body_as(self, kind: type[ModelT]) -> ModelT:
        """The body as a *kind*, which the route table says it is."""
        return cast(ModelT, self.body)

    def query_as(self, kind: type[ModelT]) -> ModelT:
        """The query as a *kind*, which the route table says it is."""
        return cast(ModelT, self.query)


Handler = Callable[[RequestContext], Awaitable[Any]]
"""Returns plain values to encode, or a response it has made itself."""


@dataclass(frozen=True, slots=True)
class Route:
    """One operation: what is served and what is documented come from this and the handler's docstring alone.

    ``path`` may hold ``{name}`` and ``{name:pattern}``. ``answer`` is a model, or the media type of a body that
    is not one. ``right``: what whoever asks must have. ``other`` lists further statuses that carry the answer's model
    (readiness has one). ``waits``: it may take as long as the client says, so that its time is no figure.
    ``unlimited``: it gives something back, or keeps it: no key asks that too often. ``websocket``: the connection
    becomes one, whose messages are of the answer's form.
    """

    handler: Handler
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    answer: type[BaseModel] | Media
    tag: str
    right: Right
    request: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    errors: tuple[type[ActorGridError], ...] = ()
    status: int = 200
    other: tuple[int, ...] = ()
    token: bool = True
    waits: bool = False
    unlimited: bool = False
    websocket: bool = False

    @property
    def summary(self) -> str:
        """What it does, for the documentation: the first line of its handler's docstring."""
        return (self.handler.__doc__ or "").partition("\n")[0].removesuffix(".")

    @property
    def streams(self) -> bool:
        """Whether the answer may go on for as long as the client listens."""
        return self.websocket or self.answer in ("text/event-stream", "application/octet-stream")

    @property
    def documented_path(self) -> str:
        """The path as OpenAPI writes it: no patterns."""
        parts = []
        for part in self.path.split("/"):
            parts.append("{" + part[1:-1].partition(":")[0] + "}" if part.startswith("{") else part)
        return "/".join(parts)

    @property
    def operation(self) -> str:
        """A stable name of the operation: that of its handler."""
        return self.handler.__name__


HandlerT = TypeVar("HandlerT", bound=Handler)


class RouteTable(Generic[P]):
    """The operations of one subject; earlier ones win where two paths match.

    ``@ROUTES.add(...)`` above a handler takes what :class:`Route` does beside the handler.
    """

    def __init__(self, make: Callable[Concatenate[Handler, P], Route]) -> None:
        self.routes: list[Route] = []
        self._make = make

    def add(self, *args: P.args, **more: P.kwargs) -> Callable[[HandlerT], HandlerT]:
        """Decorates a handler: it serves these requests."""

        def added(handler: HandlerT) -> HandlerT:
            self.routes.append(self._make(handler, *args, **more))
            return handler

        return added


@dataclass(slots=True)
class RequestState:
    """How far the request being served has come."""

    route: Route | None = None
    streaming: bool = False
    who: Identity = NOBODY
    address: str | None = None
    """Where it comes from: of a request through another door of this host, what that says."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """What is added to its answer."""
    outcome: str = ""
    """The name of the error that it is answered with."""
    told: bool = False
    """Whether the audit log knows of it, or has nothing to know."""


REQUEST_STATE: ContextVar[RequestState] = ContextVar("gateway_request_state")
"""Set for each request by the outermost handler."""
