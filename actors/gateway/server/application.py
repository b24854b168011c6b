"""The door: one aiohttp application made from the route table, and what its handlers share.

Everything here lives in the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from aiohttp import web
from pydantic import BaseModel

import actorgrid
from actorgrid.access import EVERYTHING, Identity
from actorgrid.actors.files.blob_store import BlobStore
from actorgrid.actors.files.sent_files import SentFiles
from actorgrid.actors.gateway.graph_files import GraphFiles
from actorgrid.actors.gateway.routes import (
    alerts,
    audit,
    cluster,
    environments,
    faults,
    graphs,
    health,
    hosts,
    inspect,
    job_channels,
    job_files,
    job_results,
    job_waits,
    jobs,
    keys,
    leases,
    leaving,
    load,
    locks,
    mig,
    notifications,
    objects,
    partitions,
    paths,
    quotas,
    relays,
    schedules,
    services,
    sessions,
    sign_in,
    state,
    tenant_secrets,
    tenants,
    token_streams,
    tokens,
    trust,
    tuning,
    usage,
    websockets,
    working_dirs,
)
from actorgrid.actors.gateway.sign_in import SignIns
from actorgrid.actors.host.children import CHILDREN, OF_A_CLUSTER
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.security.audit_log import AuditLog
from actorgrid.actors.telemetry.collect import collect
from actorgrid.actors.telemetry.processes import read_processes
from actorgrid.actors.telemetry.prometheus import HttpFigures, render
from actorgrid.configs.schema import Settings
from actorgrid.errors import ActorGridError, BadRequest, HostUnreachable, NotFound, TooManyRequests
from actorgrid.sizes import STATE_KEY_MAX
from actorgrid.supervisors.span_sender import sender_for

from .audit_rules import FIRST, facts_of, is_told
from .auth import TokenGate, allowed_names, authorization_of, check_host, is_here, is_of_door
from .bridge import Bridge
from .codec import JSON, MSGPACK, BodyReader, decode, encode_json, encode_msgpack, parse_query, wants_msgpack
from .connections import Connections
from .door_headers import PEER_HEADER
from .hub import Hub
from .openapi import document
from .rechecks import Rechecks
from .request_rate import RequestLimits, RequestRate
from .rights import scope_of
from .route import REQUEST_STATE, RequestContext, RequestState, Route
from .token_streams import TokenStreams
from .websocket import WebSockets
from .worker_relay import WorkerRelays

if TYPE_CHECKING:
    from .tls_listener import Certificate

log = logging.getLogger("actorgrid.gateway")

_SUBJECTS = (
    health,
    cluster,
    environments,
    objects,
    usage,
    faults,
    alerts,
    tuning,
    hosts,
    quotas,
    audit,
    tokens,
    keys,
    sign_in,
    trust,
    leaving,
    load,
    paths,
    inspect,
    jobs,
    job_files,
    job_results,
    job_waits,
    job_channels,
    graphs,
    schedules,
    services,
    notifications,
    working_dirs,
    state,
    tenant_secrets,
    locks,
    websockets,
    mig,
    partitions,
    sessions,
    relays,
    leases,
    tenants,
    token_streams,
)
ROUTES = tuple(route for subject in _SUBJECTS for route in subject.ROUTES.routes)
"""All that is served, and all that is documented."""

KEPT_S = 5.0
"""So long an answer waits for its audit record to be on the disk."""
SCRAPE_KEPT_S = 0.2
LARGE_BODY = 512 * 1024
STRANGERS_BODY_MAX = 64 * 1024
"""Bytes of a body that comes without a token."""
POOL_THREADS = 4
"""Threads that write blobs, and read what the system says of processes."""
FILE_THREADS = 4
"""Threads that read what users' work has left. They are others: where such a file lies on a disk that hangs, those who
read it wait, and nobody else."""
SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Server": "actorgrid",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
T = TypeVar("T")


@runtime_checkable
class ProvableConnection(Protocol):
    """What proves a connection: it keeps its place once a good token was shown on it."""

    def prove(self, caller: str) -> None:
        """Raises Overloaded where its owner has too many."""


Prefixes = Callable[[str], Coroutine[Any, Any, None]]


class GatewayApp:
    """What handlers share: the bridge, the hub, the pool, settings, figures.

    *ledger* is the server's: only its thread writes there, and the loop's reads one record at a time. *url*: where
    clients reach the host, those of other machines if there is a *certificate* for it.
    """

    def __init__(
        self,
        host: HostContext,
        bridge: Bridge,
        hub: Hub,
        gate: TokenGate,
        watch_prefix: Prefixes,
        unwatch_prefix: Callable[[str], None],
        ledger: LedgerClient,
        url: str,
        certificate: Certificate | None = None,
    ) -> None:
        self.host = host
        self.ledger = ledger
        self.spans = sender_for(host)
        self.url = url
        self.certificate = certificate
        self.bridge = bridge
        self.hub = hub
        self.gate = gate
        self.watch_prefix = watch_prefix
        self.unwatch_prefix = unwatch_prefix
        self.blobs = BlobStore(host.paths.blobs_dir)
        self.sent_files = SentFiles(host.paths.sent_dir)
        self.graph_files = GraphFiles()
        self.bodies = BodyReader()
        self.figures = HttpFigures()
        self.followers = 0
        self.serving = 0
        self.stopping = False
        self.idle = asyncio.Event()
        self.idle.set()
        self.connections = Connections()
        self.relays = WorkerRelays(self)
        self.websockets = WebSockets()
        self.token_streams = TokenStreams(host.paths.security_dir)
        self.door_secret = ""
        """What the host's gRPC door shows; empty: there is none."""
        self.rechecks = Rechecks(gate)
        self.rates = RequestLimits()
        self.sign_ins = SignIns(self)
        self.audit_signed: Callable[[AuditLog], None] = lambda _: None
        """Told, in the audit log's thread, of each head that it signed."""
        self._audit: AuditLog | None = None
        self._audit_lock = threading.Lock()
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="gateway-files")
        self._file_pool = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="gateway-output")
        self._scrape: asyncio.Task[bytes] | None = None
        self._scraped: tuple[float, bytes] = (-math.inf, b"")
        enrolment = host.enrolment
        self._names = allowed_names(host.settings.cluster.bind, *(() if enrolment is None else (enrolment.address,)))
        self._background: set[asyncio.Task[None]] = set()

    @functools.cached_property
    def openapi(self) -> bytes:
        """The served document, made when it is first asked for: making it takes some megabytes."""
        return encode_json(document(ROUTES, actorgrid.__version__))

    @property
    def authority(self) -> str | None:
        """The fingerprint by which clients know the cluster's authority; ``None``: there is none."""
        return None if self.certificate is None else self.certificate.authority

    @property
    def settings(self) -> Settings:
        """The host's settings; live ones may change at any time."""
        return self.host.settings

    async def in_pool(self, work: Callable[[], T]) -> T:
        """Run *work* that blocks on our own files in the thread pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def in_file_pool(self, work: Callable[[], T]) -> T:
        """Run *work* that reads users' files in the threads kept for that."""
        return await asyncio.get_running_loop().run_in_executor(self._file_pool, work)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on with *work* for a client that has gone; at most one piece for each connection that was open."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def close(self) -> None:
        """End the thread pools; nothing may be asked of the application afterwards."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self.spans is not None:
            self.spans.close()
        if self._audit is not None:
            self._audit.close()
        self._file_pool.shutdown(wait=False, cancel_futures=True)  # a disk that hangs does not keep us

    @property
    def audit(self) -> AuditLog:
        """The audit log, opened for its first record or reader: what signs it takes 10 MB, which a host that nobody
        asks anything does without."""
        with self._audit_lock:
            if self._audit is None:
                folder, bytes_max = self.host.paths.audit_dir, lambda: int(self.settings.security.audit_bytes)
                self._audit = AuditLog(folder, self.host.host_id, bytes_max, self.audit_signed)
            return self._audit

    # -- figures

    async def scrape(self) -> bytes:
        """The metrics as text. Those who ask while one scrape is under way share it."""
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.create_task(self._collect())
        # Shielded: were the first to ask cancelled, the others would lose the scrape that they share.
        return await asyncio.shield(self._scrape)

    async def latest_scrape(self) -> bytes:
        """The metrics as text, as they were at most ``SCRAPE_KEPT_S`` ago: many may ask for them all the time."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._scraped[0] > SCRAPE_KEPT_S:
            text = await self.scrape()
            self._scraped = (loop.time(), text)
        return self._scraped[1]

    async def _collect(self) -> bytes:
        async def read(pids: dict[str, int]) -> Any:
            return await self.in_pool(lambda: read_processes(pids))

        children = CHILDREN if self.host.enrolment is None else OF_A_CLUSTER
        names = ("host", *(child.id for child in children))
        reading = await collect(self.bridge.call, names, read, ("gateway", os.getpid()))
        self.figures.note(len(self.connections), self.gate.refused_total)
        return render(reading, self.host.hostname, self.figures)

    def charge(self, who: Identity, cost: int = 1) -> None:
        """Count requests of *who*. Raises TooManyRequests."""
        limits = self.settings.security
        left = self.rates.take(
            who,
            RequestRate(limits.requests_per_s, limits.requests_burst),
            RequestRate(limits.tenant_requests_per_s, limits.tenant_requests_burst),
            time.monotonic_ns(),
            cost,
        )
        if left is None:
            return
        REQUEST_STATE.get().headers = left.headers
        if left.wait_s:
            raise TooManyRequests(
                f"too many requests of this {left.name}",
                asked=who.name,
                found=f"{left.rate.per_s} a second, {left.rate.burst} at once",
                hint=f"wait {left.wait_s} s; jobs that are submitted together need one request",
                retry_after_s=left.wait_s,
            )

    # -- answers

    def encoded(self, request: web.Request, value: Any, status: int = 200) -> web.Response:
        """Encode plain values in the form the client prefers."""
        if wants_msgpack(request):
            return web.Response(body=encode_msgpack(value), status=status, content_type=MSGPACK)
        return web.Response(body=encode_json(value), status=status, content_type=JSON)

    def refusal(
        self, request: web.Request, error: ActorGridError, status: int | None = None, allow: str = ""
    ) -> web.Response:
        """The HTTP answer for a named error."""
        REQUEST_STATE.get().outcome = error.code
        response = self.encoded(request, {"error": error.to_dict()}, status or error.http_status)
        if response.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        if allow:
            response.headers["Allow"] = allow
        if response.status == 429:
            response.headers["Retry-After"] = str(error.details.get("retry_after_s", 1))
        return response

    # -- the application

    def application(self) -> web.Application:
        """The aiohttp application that serves ``ROUTES``."""
        app = web.Application(middlewares=[self._front], client_max_size=0)
        for route in ROUTES:
            app.router.add_route(route.method, route.path, self._serve(route))
        app.on_response_prepare.append(_add_headers)
        return app

    def _serve(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        strict = route.path.startswith("/api/")

        async def serve(request: web.Request) -> web.StreamResponse:
            REQUEST_STATE.get().route = route
            for name, part in request.match_info.items():
                if len(part) > STATE_KEY_MAX:
                    raise BadRequest(
                        f"{name} is too long to name anything",
                        asked=f"{part[:80]}…, {len(part)} characters",
                        found=f"at most {STATE_KEY_MAX}",
                    )
            if route.query is not None:
                query: Any = parse_query(request.query, route.query)
            elif strict and request.query:
                raise BadRequest(
                    f"there is no query parameter {next(iter(request.query))!r} here", hint="this path takes none"
                )
            else:
                query = None
            who = REQUEST_STATE.get().who
            # Before the body is read: what the caller may not do must not cost memory.
            scope = scope_of(route, who) if route.token else EVERYTHING
            if not route.unlimited:
                self.charge(who)
            if route.request is None:
                result = await route.handler(RequestContext(self, request, None, query, who, scope))
            else:
                limit = self.settings.security.max_body_bytes
                raw = await self.bodies.read(request, limit if route.token else min(limit, STRANGERS_BODY_MAX))
                try:
                    body = await self._decoded(raw, request.content_type, route.request)
                    result = await route.handler(RequestContext(self, request, body, query, who, scope))
                finally:
                    self.bodies.done(raw)
            if isinstance(result, web.StreamResponse):
                return result
            return self.encoded(request, result, route.status)

        return serve

    async def _decoded(self, raw: bytes, content_type: str, model: type[BaseModel]) -> BaseModel:
        """The body as a *model*; a large one, a graph of thousands of steps, does not hold others up."""
        if len(raw) < LARGE_BODY:
            return decode(raw, content_type, model)
        return await self.in_pool(lambda: decode(raw, content_type, model))

    @web.middleware
    async def _front(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        self.serving += 1
        self.idle.clear()
        status = 500
        request_state = RequestState(address=request.remote)
        if is_of_door(request, self.door_secret):
            request_state.address = request.headers.get(PEER_HEADER, "")[:64]
        REQUEST_STATE.set(request_state)
        try:
            try:
                response = await self._guarded(request, handler)
            except ActorGridError as error:
                response = self._instead(request, error)
            except web.HTTPMethodNotAllowed as error:
                response = self._wrong_method(request, error)
            except web.HTTPNotFound:
                response = self._unknown_path(request)
            except web.HTTPException as error:
                response = self._instead(request, BadRequest(error.reason), error.status)
            except (ConnectionError, web.PayloadAccessError, web.RequestPayloadError, asyncio.CancelledError):
                status = 499  # the client hung up: nobody reads an answer
                raise
            except Exception:  # noqa: BLE001 - the outermost loop of a request: told by reference, logged in full
                response = self._unexpected(request)
            status = response.status
            await self._tell(request, request_state, status)
            return response
        finally:
            if not request_state.told:
                self._audited(request, request_state, status)
            self.serving -= 1
            if not self.serving:
                self.idle.set()
            route = request_state.route
            waited = route is None or route.streams or route.waits or "wait_s" in request.query
            self.figures.answered(
                request.method if route else "other",
                route.documented_path if route else "unmatched",
                status,
                None if waited else loop.time() - started_s,
            )

    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self.stopping:
            raise HostUnreachable("this host is stopping", hint="start it again with actorgrid up")
        check_host(request.headers.get("Host"), self._names)
        # Everything under /api asks for the token, paths that do not exist too: a stranger learns nothing here.
        if request.path.startswith("/api"):
            REQUEST_STATE.get().who = self.admit(request)
            with self.rechecks.open(request):
                return await handler(request)
        return await handler(request)

    def admit(self, request: web.Request) -> Identity:
        """Find out who asks, by the token. Raises WrongToken, or Overloaded after too many wrong ones."""
        address = REQUEST_STATE.get().address
        source = "" if is_here(address) else str(address)
        token = authorization_of(request)
        now_s = asyncio.get_running_loop().time()
        who = self.gate.check(token, now_s, time.time(), source)
        connection = request.protocol
        if isinstance(connection, ProvableConnection):
            connection.prove(who.name)
        return who

    def _audited(self, request: web.Request, state: RequestState, status: int) -> asyncio.Future[None] | None:
        """Have the audit log tell of a request, if it is one of those. Done once the record is on the disk."""
        state.told = True
        if not is_told(state.route, state.outcome):
            return None
        loop = asyncio.get_running_loop()
        kept: asyncio.Future[None] = loop.create_future()

        def done() -> None:
            if not kept.done():
                kept.set_result(None)

        def when_kept() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done)

        self.audit.add(facts_of(request, state, status), when_kept)
        return kept

    async def _tell(self, request: web.Request, state: RequestState, status: int) -> None:
        kept = self._audited(request, state, status)
        if kept is not None and state.route is not None and state.route.right in FIRST and status < 400:
            await asyncio.wait((kept,), timeout=KEPT_S)

    def _instead(self, request: web.Request, error: ActorGridError, status: int | None = None) -> web.StreamResponse:
        if REQUEST_STATE.get().streaming:
            # Half an answer is out: all that is left is to break it off so that it is not taken for whole.
            log.warning("%s broke off: %s", request.path, error)
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the answer was broken off")
        return self.refusal(request, error, status)

    def _unexpected(self, request: web.Request) -> web.StreamResponse:
        reference = secrets.token_hex(6)
        log.exception("reference %s: %s %s failed", reference, request.method, request.path)
        error = ActorGridError(
            "something broke inside the gateway",
            asked=f"{request.method} {request.path}"[:300],
            hint=f"the agent's log has the details under reference {reference}",
            reference=reference,
        )
        return self._instead(request, error)

    def _wrong_method(self, request: web.Request, error: web.HTTPMethodNotAllowed) -> web.StreamResponse:
        allow = ", ".join(sorted(error.allowed_methods))
        refusal = BadRequest(
            f"{request.method} is not possible here", asked=f"{request.method} {request.path}"[:300], found=allow
        )
        return self.refusal(request, refusal, 405, allow)

    def _unknown_path(self, request: web.Request) -> web.StreamResponse:
        close = nearest_path(request.path)
        return self.refusal(
            request,
            NotFound(
                "there is no such path",
                asked=request.path[:300],
                hint=f"did you mean {close}?" if close else "GET /openapi.json lists all paths",
            ),
        )


def nearest_path(path: str) -> str:
    """The served path most like *path*, or an empty text."""
    known = {route.documented_path for route in ROUTES}
    parts = path.rstrip("/").split("/")[:6]
    best, best_score = "", 0.0
    for candidate in sorted(known):
        wanted = candidate.split("/")
        if len(wanted) != len(parts):
            continue
        # What stands where a name goes always fits; the words around it say how like the rest is.
        words = [(a, b) for a, b in zip(parts, wanted, strict=True) if not b.startswith("{")]
        score = min((difflib.SequenceMatcher(None, a, b).ratio() for a, b in words if a or b), default=0.0)
        if score > best_score:
            best, best_score = candidate, score
    if best_score >= 0.6:
        return best
    close = difflib.get_close_matches(path[:200], sorted(known), n=1, cutoff=0.6)
    return close[0] if close else ""


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY_HEADERS)
    response.headers.update(REQUEST_STATE.get().headers)
