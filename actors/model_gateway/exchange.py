"""One request, from its head to the last byte of its answer, or to its end in whichever phase.

Phases: it is *admitted* (key, model, limits), perhaps *held* until a replica is there, *sent* to one, *answered* as its
bytes come. Each of them ends at once when the client is gone: the connection to the replica is closed, which is how
servers of models are told to stop, and what it counted for is given back. It is tried again at another replica only
while nothing of an answer has been passed on: a connection that was refused, one that was kept and turned out to be
dead, a 503 of a replica that is going; twice at most, and within the service's budget of tries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from actorgrid.actors.serving.routing import BYTES_OF_TOKEN, Assignment, PromptHead
from actorgrid.actors.serving.table import ReplicaEndpoint, ReplicaState, RoutingStrategy, ServiceKey

from . import replica_probe
from .answer_relay import AnswerRelay
from .refusals import RequestRefused, status_line
from .replica_connections import ReplicaConnection
from .replica_health import RETRIES_MAX, ReplicaCondition
from .request_body import ModelRequest, read_form, read_json
from .request_head import RequestHead
from .routes import FORMS, ModelPath, is_own, path_of
from .token_usage import UsedTokens

if TYPE_CHECKING:
    from .gateway_client import GatewayClient
    from .running_service import RunningService

CONNECT_S = 2.0
PEER_NEWS = "/peer/news"
REPLICA_HEADER, ATTEMPT_HEADER = b"x-actorgrid-replica", b"x-actorgrid-attempt"
_NO_PROMPT = PromptHead("")
_NOBODY: frozenset[str] = frozenset()
UNSENT_HEADER = b"x-actorgrid-unsent"
"""In what the gateway of a replica's host answers itself: the replica has not got the request, another may be tried."""


class RequestDeadline:
    """The time of whatever phase the request on a connection is in.

    One for a connection: it stays on the wheel until its turn comes, and thousands of requests come and go meanwhile.
    """

    __slots__ = ("due_at", "exchange", "wheel_at")

    def __init__(self) -> None:
        self.due_at: float | None = None
        self.wheel_at: float | None = None
        self.exchange: Exchange | None = None

    def ran_out(self, now: float) -> None:
        """A time of this phase is over."""
        if self.exchange is not None:
            self.exchange.ran_out(now)


class Exchange:
    """One request of one client."""

    __slots__ = (
        "_answering_model", "_assignment", "_avoid", "_condition", "_connecting", "_counted_tokens", "_deadline",
        "_fallbacks", "_is_over", "_is_reused", "_is_unsent", "_last_refusal", "_prompt", "_status", "_tries",
        "_upstream", "body", "client", "first_byte_at", "gateway", "head", "held_bytes", "held_since", "key", "path",
        "relay", "request", "request_id", "sent_at", "service", "started",
    )  # fmt: skip

    def __init__(self, client: GatewayClient, head: RequestHead, body: bytes) -> None:
        self.client = client
        self.gateway = client.gateway
        self.head = head
        self.body = body
        self.started = self.gateway.now()
        self.request_id = (head.header(b"x-request-id") if client.is_peer else None) or self.gateway.next_request_id()
        self.key: ServiceKey | None = None
        self.request: ModelRequest | None = None
        self.service: RunningService | None = None
        self.path: ModelPath | None = None
        self.relay: AnswerRelay | None = None
        self.first_byte_at: float | None = None
        self.sent_at: float | None = None
        self.held_since = 0.0
        self.held_bytes = 0
        self._deadline = client.request_deadline
        self._deadline.exchange = self
        self._prompt = _NO_PROMPT
        self._assignment: Assignment | None = None
        self._condition: ReplicaCondition | None = None
        """Of the replica that has it."""
        self._upstream: ReplicaConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._is_reused = False
        self._is_unsent = False
        self._avoid: set[str] | frozenset[str] = _NOBODY
        self._tries = 0
        self._fallbacks: tuple[str, ...] = ()
        self._answering_model = ""
        """The model that was asked for, or the one that answers in its place."""
        self._is_over = False
        self._counted_tokens = 0
        self._status = 0
        self._last_refusal: RequestRefused | None = None

    def _wait_until(self, at: float) -> None:
        self.gateway.wheel.put(self._deadline, at)

    # -- admission

    def start(self) -> None:
        """Take the request in hand."""
        self.gateway.began(self, len(self.body))
        try:
            if self.client.is_peer:
                self._forward_for_peer()
            else:
                self._admit()
        except RequestRefused as refused:
            self._refuse(refused)

    def _admit(self) -> None:
        head, gateway = self.head, self.gateway
        if is_own(head.path):
            status, kind, body = gateway.answer_own(self)
            self._answer(status, body, [(b"content-type", kind)])
            return
        path = self.path = path_of(head.method, head.path)
        client = self.client
        self.key = gateway.keys.check(head.header(b"authorization"), client.source, self.started, gateway.at())
        if not path.takes_model:
            self._answer(200, gateway.models_answer(self.key, head.path), [(b"content-type", b"application/json")])
            return
        kind = (head.header(b"content-type") or b"application/json").partition(b";")[0].strip().lower()
        if kind == b"multipart/form-data" and head.path in FORMS:
            request = read_form(self.body)
        elif kind in (b"application/json", b"text/plain", b""):
            request = read_json(self.body)
        else:
            raise RequestRefused(
                415, "the body is JSON (content-type: application/json; curl --json)", "unsupported_media_type"
            )
        self.request = request
        service = gateway.find(request.model, self.key)
        service.requests_total += 1
        service.last_request_at = gateway.at()
        service.retries.asked(self.started)
        tokens = len(self.body) // BYTES_OF_TOKEN + 1
        gateway.keys.admit(self.key, tokens, self.started, gateway.at())
        self._counted_tokens = tokens
        self._fallbacks = service.route.fallback_models
        self._answering_model = request.model
        self._use(service)
        if service.in_flight > service.route.limits.in_flight_max:
            raise RequestRefused(429, "the service has too many requests", "overloaded", retry_after_s=1)
        self._route()

    def _use(self, service: RunningService) -> None:
        """Have *service* answer."""
        if self.service is not None:
            self.service.in_flight -= 1
        self.service = service
        service.in_flight += 1
        assert self.request is not None
        header = self.head.header(service.route.affinity_header.encode()) if service.route.affinity_header else None
        tenant = (self.key.tenant if self.key is not None else "") or service.route.tenant
        self._prompt = self.request.prompt(
            service.route.name,
            tenant,
            None if header is None else header.decode("latin-1"),
            service.route.strategy is RoutingStrategy.PREFIX_COST,
        )

    # -- a replica

    def _route(self) -> None:
        service = self.service
        assert service is not None
        assignment = service.choose(self._prompt, self.gateway.now(), self.gateway.draw, self._avoid)
        if assignment is not None:
            self._assignment = assignment
            self._condition = service.condition_of(assignment.replica)
            service.revision(assignment.replica.revision).requests_total += 1
            if assignment.new_blocks:
                self.gateway.news.blocks(service.route.name, assignment.replica.attempt, assignment.new_blocks)
            self._open(assignment.replica)
            return
        if self._fallbacks and not service.has_ready:
            service.want(self.gateway.now(), self.gateway.wake)  # the next requests may be its own again
            if self._next_model():
                self._route()
                return
        if self._last_refusal is None and service.may_hold and not self._avoid:
            self._hold(service)
            return
        if self._next_model():
            self._route()
            return
        if self._last_refusal is not None:
            raise self._last_refusal
        self.gateway.wake(service.route.name)
        reason = service.route.reason or "none is ready"
        raise RequestRefused(503, f"the model {self._model} has no replica: {reason}", "no_replica", retry_after_s=5)

    @property
    def _model(self) -> str:
        return self.request.model if self.request is not None else ""

    def _next_model(self) -> bool:
        """Go on to the next model that may answer in place of the one that was asked for."""
        while self._fallbacks:
            name, *rest = self._fallbacks
            self._fallbacks = tuple(rest)
            try:
                service = self.gateway.find(name, self.key)
            except RequestRefused:
                continue
            if service is self.service or not service.has_ready:
                continue
            self._avoid = _NOBODY
            self._answering_model = name
            self._use(service)
            self.gateway.figures.fallbacks_total += 1
            return True
        return False

    def _hold(self, service: RunningService) -> None:
        limits = service.route.limits
        self.held_bytes = len(self.body)
        if len(service.held) >= limits.held_max or service.held_bytes + self.held_bytes > limits.held_bytes_max:
            self.held_bytes = 0
            raise RequestRefused(429, "too many requests wait for the model", "overloaded", retry_after_s=5)
        if not service.held:
            self.gateway.wake(service.route.name)
        self.held_since = self.gateway.now()
        service.held[id(self)] = self
        service.held_bytes += self.held_bytes
        service.in_flight -= 1
        self._wait_until(self.held_since + limits.held_s)

    def _let_go(self) -> bool:
        """Be held no longer; whether it was."""
        service = self.service
        if service is None or service.held.pop(id(self), None) is None:
            return False
        service.held_bytes -= self.held_bytes
        service.in_flight += 1
        self._deadline.due_at = None
        return True

    def try_again(self) -> None:
        """There may be a replica now."""
        service = self.service
        if service is not None and service.may_hold and not service.has_ready:
            return
        if self._let_go():
            self._guarded(self._route)

    def _forward_for_peer(self) -> None:
        """Have the replica of this host that another gateway names answer."""
        if self.head.path == PEER_NEWS:
            self.gateway.take_peer_news(self.client.host, self.body)
            self._answer(204, b"", [])
            return
        replica = (self.head.header(REPLICA_HEADER) or b"").decode("latin-1")
        attempt = (self.head.header(ATTEMPT_HEADER) or b"").decode("latin-1")
        endpoint = self.gateway.local_replica(replica, attempt)
        if endpoint is None:
            self._is_unsent = True
            raise RequestRefused(503, "that replica is not here (any more)", "replica_gone")
        self._open(endpoint)

    # -- the connection to it

    def _open(self, endpoint: ReplicaEndpoint) -> None:
        connection = self.gateway.pool.take(endpoint)
        if connection is not None:
            self._is_reused = True
            self._send(connection, endpoint)
            return
        self._is_reused = False
        self._wait_until(self.gateway.now() + CONNECT_S)
        self._connecting = asyncio.get_running_loop().create_task(self._connect(endpoint))

    async def _connect(self, endpoint: ReplicaEndpoint) -> None:
        try:
            connection = await self.gateway.open(endpoint)
        except OSError as error:
            self._connecting = None
            self._failed(f"no connection to the replica: {error.strerror or error}", 502, may_retry=True, at_once=True)
            return
        self._connecting = None
        if self._is_over:
            connection.close()
        else:
            self._send(connection, endpoint)

    def _send(self, connection: ReplicaConnection, endpoint: ReplicaEndpoint) -> None:
        self._upstream = connection
        now = self.sent_at = self.gateway.now()
        self.relay = AnswerRelay(self)
        body, request, service = self.body, self.request, self.service
        if request is not None and service is not None:
            body = request.body_as(
                self.gateway.served_as(service, self._answering_model),
                self.path is not None and self.path.has_stream_options and request.is_stream
                and not request.wants_usage and service.route.asks_usage,
            )  # fmt: skip
        head = self.head
        lines = (
            b"%s %s HTTP/1.1\r\nhost: 127.0.0.1\r\n%s%saccept-encoding: identity\r\nx-request-id: %s\r\n"
            b"content-length: %d\r\n\r\n"
            % (head.method, head.target, head.passed, self._way_to(endpoint), self.request_id, len(body))
        )
        connection.ask(self.relay, lines, body)
        self._wait_for_first_byte(now)

    def _way_to(self, endpoint: ReplicaEndpoint) -> bytes:
        """The headers by which the gateway of another host knows which of its replicas is meant."""
        if self.gateway.pool.is_local(endpoint):
            return b""
        replica, attempt = (each.encode("latin-1", "replace") for each in (endpoint.replica_id, endpoint.attempt))
        return b"%s: %s\r\n%s: %s\r\n" % (REPLICA_HEADER, replica, ATTEMPT_HEADER, attempt)

    def _wait_for_first_byte(self, now: float) -> None:
        """Wait for as long as the service allows, and look every few seconds whether the replica is there."""
        sent_at = self.sent_at if self.sent_at is not None else now
        due_at = sent_at + (3_600.0 if self.service is None else self.service.route.timeouts.first_byte_s)
        looks = self.service is not None and self._tries < RETRIES_MAX
        self._wait_until(min(due_at, now + replica_probe.SUSPECT_S) if looks else due_at)

    def replica_is_wedged(self, attempt: str) -> None:
        """That replica does not answer: go to another, if nothing came from it, as far as tries go."""
        assignment = self._assignment
        if self._is_over or assignment is None or assignment.replica.attempt != attempt:
            return
        if self.relay is not None and self.first_byte_at is None and self.may_try_again():
            self._note_failure(at_once=True)
            self.try_another()

    # -- what comes of it (called by the relay)

    @property
    def is_from_draining(self) -> bool:
        """Whether the replica that has it takes no more, by the newest table."""
        if self._assignment is None or self.service is None:
            return False
        attempt = self._assignment.replica.attempt
        return not any(
            each.attempt == attempt and each.state is ReplicaState.READY for each in self.service.route.replicas
        )

    def is_unsent(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Whether an answer with these headers is the word of another gateway that its replica was not asked."""
        elsewhere = self._assignment is not None and not self.gateway.pool.is_local(self._assignment.replica)
        return elsewhere and any(name == UNSENT_HEADER for name, _ in headers)

    def not_sent(self, status: int) -> None:
        """The gateway of the replica's host could not pass the request on."""
        self._failed("the replica's host has no connection to it", status, may_retry=True, at_once=True)

    def may_try_again(self) -> bool:
        """Whether another replica may be tried. It is counted as tried then."""
        service = self.service
        return service is not None and self._tries < RETRIES_MAX and service.retries.may_retry(self.gateway.now())

    def try_another(self) -> None:
        """Have another replica answer."""
        self._tries += 1
        if self.service is not None:
            self.service.retries_total += 1
        if self._assignment is not None:
            self._avoid = {*self._avoid, self._assignment.replica.replica_id}
        self._leave_replica()
        self._guarded(self._route)

    def heard(self, now: float) -> None:
        """The replica said something."""
        if self._condition is not None:
            self._condition.heard_at = now
        service = self.service
        if self.first_byte_at is None:
            self.first_byte_at = now
            if service is not None and self._assignment is not None:
                service.router.answered(self._assignment)
                service.revision(self._assignment.replica.revision).first_bytes_s.append(now - self.started)
        idle_s = 3_600.0 if service is None else service.route.timeouts.idle_s
        if self.relay is not None and self.relay.keep_alive_s < idle_s:
            idle_s = self.relay.keep_alive_s
        self._wait_until(now + idle_s)

    def replica_failed(self, why: str, heard_anything: bool) -> None:
        """The connection broke before anything was passed on."""
        self._failed(why, 502, may_retry=self._is_reused and not heard_anything, at_once=False)

    def _failed(self, why: str, status: int, may_retry: bool, at_once: bool) -> None:
        """Note that the replica failed, and try another or say so."""
        self._note_failure(at_once)
        self._is_unsent = may_retry
        self._last_refusal = RequestRefused(status, why, "replica_failed")
        if may_retry and self.may_try_again():
            self.try_another()
            return
        self._leave_replica()
        if self._next_model():
            self._guarded(self._route)
        else:
            self._refuse(self._last_refusal)

    def _note_failure(self, at_once: bool) -> None:
        if self.service is not None and self._assignment is not None and self._condition is not None:
            self._condition.failed(self.gateway.now(), at_once)
            self.service.revision(self._assignment.replica.revision).failures_total += 1

    def note_answer(self, status: int) -> None:
        """The replica answers with *status*."""
        self._status = status
        if status >= 500:
            self._note_failure(at_once=False)
        elif self._condition is not None:
            self._condition.succeeded()

    def answer_over(self, connection_is_good: bool, is_whole: bool) -> None:
        """The answer is passed on, whole or broken off."""
        if self.relay is not None and (not is_whole or self.relay.has_failed) and self._status < 500:
            self._note_failure(at_once=False)
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            if connection_is_good:
                self.gateway.pool.keep(upstream, self.gateway.now())
            else:
                upstream.close()
        self._finish(aborted=not is_whole)
        self.client.finished(self.head.keeps_alive and is_whole)

    # -- the client

    def pause(self) -> None:
        """The client does not read."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """It reads again."""
        if self._upstream is not None:
            self._upstream.resume()

    def client_gone(self) -> None:
        """The client is gone: all that is done for it ends now."""
        if self._is_over:
            return
        if self.service is not None:
            self.service.aborted_total += 1
            if self._condition is not None:
                self._condition.gave_up()
        self._let_go()
        self._leave_replica()
        self._finish(aborted=True)

    def ran_out(self, now: float) -> None:
        """A time of this phase is over."""
        if self._is_over:
            return
        if self._let_go():
            service = self.service
            reason = (service.route.reason if service is not None else "") or "it did not start in time"
            self._refuse(
                RequestRefused(503, f"the model {self._model} has no replica: {reason}", "no_replica", retry_after_s=30)
            )
        elif self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
            self._failed("no connection to the replica in time", 504, may_retry=True, at_once=True)
        elif self.relay is not None and self.first_byte_at is None:
            first_byte_s = 3_600.0 if self.service is None else self.service.route.timeouts.first_byte_s
            if self.sent_at is None or now - self.sent_at >= first_byte_s:
                self._failed("the replica did not answer in time", 504, may_retry=False, at_once=False)
                return
            if self.service is not None and self._assignment is not None:
                replica = self._assignment.replica
                self.gateway.suspect(self.service, replica, self._way_to(replica))
            self._wait_for_first_byte(now)
        elif self.relay is not None and self.service is not None:
            timeouts = self.service.route.timeouts
            if now - self.relay.last_piece_at >= timeouts.idle_s or now - self.started >= timeouts.total_s:
                self.relay.break_off("the replica did not go on with its answer in time", "timeout")
            else:
                self.relay.keep_alive(now)
                self._wait_until(now + min(timeouts.idle_s, self.relay.keep_alive_s))

    # -- ends

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except RequestRefused as refused:
            self._refuse(refused)

    def _leave_replica(self) -> None:
        """Have nothing to do with the replica any more: its connection is closed, whatever is under way there."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close()
        if self._assignment is not None and self.service is not None:
            self.service.release(self._assignment, self.gateway.now())
            if not self._is_over:
                self._assignment = self._condition = None

    def _refuse(self, refused: RequestRefused) -> None:
        self._leave_replica()
        self.gateway.figures.refused_total += 1
        headers = [(b"content-type", b"application/json"), *refused.headers()]
        if self.client.is_peer and self._is_unsent:
            headers.append((UNSENT_HEADER, b"1"))
        self._answer(refused.status, refused.body(), headers, refused.closes)

    def _answer(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]], closes: bool = False) -> None:
        """Answer with what the gateway itself has to say."""
        self._status = status
        keeps = self.head.keeps_alive and not closes and not self.gateway.is_draining
        lines = [*headers, (b"content-length", b"%d" % len(body)), (b"x-request-id", self.request_id)]
        if not keeps:
            lines.append((b"connection", b"close"))
        text = status_line(status) + b"".join(b"%s: %s\r\n" % line for line in lines) + b"\r\n"
        self._finish(aborted=False)
        self.client.send(text + (b"" if self.head.method == b"HEAD" else body))
        self.client.finished(keeps)

    def _finish(self, aborted: bool) -> None:
        """Give back everything that this request counts for. Once."""
        if self._is_over:
            return
        self._is_over = True
        self._deadline.due_at = self._deadline.exchange = None
        service = self.service
        now = self.gateway.now()
        if service is not None:
            if self._assignment is not None:
                service.release(self._assignment, now)
            service.in_flight -= 1
            has_failed = self.relay is not None and self.relay.has_failed
            if self._status >= 500 or has_failed or (aborted and not self.client_is_gone):
                service.errors_total += 1
        usage, estimated = self._usage()
        self.gateway.ended(self, self._status, usage, estimated, aborted, self._counted_tokens)
        self.relay = None  # which knows this exchange: without that the collector would have to find each request

    @property
    def client_is_gone(self) -> bool:
        """Whether the client has closed its connection."""
        return self.client.transport is None or self.client.transport.is_closing()

    def _usage(self) -> tuple[UsedTokens, int]:
        """What was used, and how many tokens of it are estimated."""
        relay = self.relay
        if relay is None or self._status >= 400:
            return UsedTokens(), 0
        if relay.usage is not None:
            return relay.usage, 0
        prompt = len(self.body) // BYTES_OF_TOKEN + 1
        answer = relay.events if relay.is_stream else relay.body_bytes // BYTES_OF_TOKEN
        if not self._has_tokens:
            return UsedTokens(), 0
        return UsedTokens(prompt, 0, answer), prompt + answer

    @property
    def _has_tokens(self) -> bool:
        return self.path is not None and self.path.has_tokens
