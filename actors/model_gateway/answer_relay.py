"""A replica's answer on its way to the client.

Streams of events are passed on event by event, with a comment where there is nothing for 15 s (what stands between cuts
connections that are silent for 60 s). Embeddings and errors are taken whole, since their form may have to be another.
All else goes through as it comes. Nothing is compressed, and a stream says that it is not to be buffered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .embedding_values import ANSWER_MAX, convert_embeddings
from .event_stream import KEEP_ALIVE, EventRelay
from .refusals import as_openai_error, status_line
from .request_head import AnswerHead, passed_back
from .token_usage import UsageScanner, UsedTokens

if TYPE_CHECKING:
    from .exchange import Exchange

KEEP_ALIVE_S, NEVER_S = 15.0, 86_400.0
ERROR_MAX = 64 * 1024
_UNBUFFERED = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"


class AnswerRelay:
    """Takes one answer for one exchange."""

    __slots__ = (
        "_error_lines", "_events", "_exchange", "_has_begun", "_is_chunked", "_is_over", "_lines", "_out", "_scanner",
        "_status", "_whole", "_whole_max", "body_bytes", "keep_alive_s", "last_piece_at",
    )  # fmt: skip

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._events: EventRelay | None = None
        self._scanner: UsageScanner | None = None
        self._whole: bytearray | None = None
        self._whole_max = 0
        self._status = 0
        self._lines = self._error_lines = b""  # of the replica's head, what the client gets; and with an error of ours
        self._is_chunked = False
        self._has_begun = False
        self._is_over = False
        self.last_piece_at = exchange.gateway.now()
        self.keep_alive_s = NEVER_S
        """How long it may be silent before the client is sent a comment."""
        self.body_bytes = 0
        self._out: list[bytes] = []  # what one read gave goes out in one piece

    # -- what is known of it

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream of events."""
        return self._events is not None

    @property
    def has_failed(self) -> bool:
        """Whether the replica told, in the middle of a stream, that it failed."""
        return self._events is not None and self._events.has_failed

    @property
    def events(self) -> int:
        """Events with data so far."""
        return 0 if self._events is None else self._events.events

    @property
    def usage(self) -> UsedTokens | None:
        """The usage that it told."""
        if self._events is not None:
            return self._events.usage
        return None if self._scanner is None else self._scanner.usage

    # -- the replica's side

    def answer_began(self, head: AnswerHead) -> None:
        """The head has come."""
        exchange = self._exchange
        status = head.status
        if status == 503 and exchange.is_from_draining and exchange.may_try_again():
            self._is_over = True
            exchange.try_another()
            return
        if exchange.is_unsent(head.headers):
            self._is_over = True
            exchange.not_sent(status)
            return
        self._status = status
        exchange.note_answer(status)
        if exchange.client.is_peer:
            exchange.heard(exchange.gateway.now())
            self._lines = head.lines()
            self._begin(head.content_length)
            return
        path = exchange.path
        if status >= 400:
            self._error_lines = passed_back(head.headers, b"content-type") + b"content-type: application/json\r\n"
            self._lines = head.lines()
            self._whole, self._whole_max = bytearray(), ERROR_MAX
        elif head.kind.startswith(b"text/event-stream"):
            self.keep_alive_s = KEEP_ALIVE_S
            request = exchange.request
            asked = request is not None and request.wants_usage
            injected = path is not None and path.has_stream_options and not asked
            leaves_out_usage = injected and exchange.service is not None and exchange.service.route.asks_usage
            self._events = EventRelay(leaves_out_usage, path is not None and path.has_named_events)
            self._lines = passed_back(head.headers, b"cache-control", b"x-accel-buffering") + _UNBUFFERED
            self._begin(None)
        elif (
            path is not None
            and path.is_embedding
            and (head.content_length is None or head.content_length <= ANSWER_MAX)
        ):
            self._lines = head.lines()
            self._whole, self._whole_max = bytearray(), ANSWER_MAX
            self._scanner = UsageScanner()
        else:
            if head.kind.startswith(b"application/json"):
                self._scanner = UsageScanner()
            self._lines = head.lines()
            self._begin(head.content_length)
        exchange.heard(exchange.gateway.now())

    def answer_body(self, data: bytes) -> None:
        """The next piece."""
        if self._is_over:
            return
        exchange = self._exchange
        self.last_piece_at = now = exchange.gateway.now()
        self.body_bytes += len(data)
        exchange.heard(now)
        if self._scanner is not None:
            self._scanner.feed(data)
        if self._whole is not None:
            self._whole += data
            if len(self._whole) > self._whole_max:
                whole, self._whole = self._whole, None
                self._begin(None)
                self._pass(bytes(whole))
        elif self._events is not None:
            self._pass(self._events.feed(data))
        else:
            self._pass(data)

    def answer_ended(self, can_be_used_again: bool) -> None:
        """It is whole."""
        if self._is_over:
            return
        self._is_over = True
        if self._whole is not None:
            whole = bytes(self._whole)
            self._whole = None
            if self._status >= 400:
                body = as_openai_error(self._status, whole)
                self._lines = self._error_lines
            else:
                request = self._exchange.request
                body = convert_embeddings(whole, request is not None and request.wants_base64)
            self._begin(len(body))
            self._pass(body)
        elif self._events is not None:
            self._pass(self._events.end())
        if self._is_chunked:
            self._out.append(b"0\r\n\r\n")
        self.flush()
        self._exchange.answer_over(can_be_used_again, is_whole=not self._ends_with_connection)

    def answer_broke(self, why: str, heard_anything: bool) -> None:
        """The connection to the replica broke."""
        if self._is_over:
            return
        if not self._has_begun:
            self._is_over = True
            self._exchange.replica_failed(why, heard_anything)
        else:
            self.break_off(why, "replica_failed")

    # -- the client's side

    @property
    def _ends_with_connection(self) -> bool:
        return self._exchange.head.is_http_1_0 and not self._is_chunked

    def break_off(self, why: str, code: str) -> None:
        """End an answer that has begun: a stream with an error that clients raise, all else by cutting it short."""
        self._is_over = True
        client = self._exchange.client
        if self._events is not None and not client.is_peer:
            self._pass(self._events.broken_off(why, code))
            if self._is_chunked:
                self._out.append(b"0\r\n\r\n")
        self.flush()
        # Without its last chunk, or short of its length, the client sees that an answer is not whole.
        self._exchange.answer_over(False, is_whole=False)

    def keep_alive(self, now: float) -> None:
        """Send a comment where the stream has been silent."""
        if self._events is not None and self._events.is_between and now - self.last_piece_at >= KEEP_ALIVE_S - 1:
            self._pass(KEEP_ALIVE)
            self.flush()

    def _begin(self, length: int | None) -> None:
        exchange = self._exchange
        self._has_begun = True
        text = status_line(self._status) + self._lines
        if length is not None:
            text += b"content-length: %d\r\n" % length
        elif not exchange.head.is_http_1_0:
            self._is_chunked = True
            text += b"transfer-encoding: chunked\r\n"
        if not exchange.head.keeps_alive or exchange.gateway.is_draining:
            text += b"connection: close\r\n"
        self._out.append(b"%sx-request-id: %s\r\n\r\n" % (text, exchange.request_id))

    def _pass(self, data: bytes) -> None:
        if not data:
            return
        if self._is_chunked:
            data = b"%x\r\n%s\r\n" % (len(data), data)
        self._out.append(data)

    def flush(self) -> None:
        """Send to the client what is ready."""
        out = self._out
        if out:
            self._exchange.client.send(out[0] if len(out) == 1 else b"".join(out))
            self._out = []
