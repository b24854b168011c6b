"""What clients are told when they get no answer of a replica: errors in the shape that OpenAI's clients read.

    {"error": {"message", "type", "param", "code"}}

Another shape loses the message in those clients. They try again on 408, 409, 429 and 5xx, unless ``x-should-retry``
says otherwise, and wait for ``retry-after`` only up to 120 s: beyond that they do not try again at all. So overload is
429 with ``retry-after``, and a budget that is spent is 429 with ``x-should-retry: false``.
"""

from __future__ import annotations

import json
from typing import Any

RETRY_AFTER_MAX_S = 120.0
PHRASES = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 413: "Content Too Large", 415: "Unsupported Media Type", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway",
    503: "Service Unavailable", 504: "Gateway Timeout", 505: "HTTP Version Not Supported",
}  # fmt: skip
_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "invalid_request_error", 429: "rate_limit_error", 431: "invalid_request_error",
}  # fmt: skip


_STATUS_LINES = {status: f"HTTP/1.1 {status} {phrase}\r\n".encode() for status, phrase in PHRASES.items()}


def status_line(status: int) -> bytes:
    """The first line of an answer."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Error\r\n" % status


class RequestRefused(Exception):
    """A request is answered by the gateway itself, with an error. *closes*: nothing after it on the connection counts,
    since where the next request begins is not known."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
        self.closes = closes

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What the answer says beside the error."""
        found: list[tuple[bytes, bytes]] = []
        if self.retry_after_s is not None:
            seconds = max(1, round(min(self.retry_after_s, RETRY_AFTER_MAX_S)))
            found.append((b"retry-after", str(seconds).encode()))
        if self.should_retry is not None:
            found.append((b"x-should-retry", b"true" if self.should_retry else b"false"))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return found

    def body(self) -> bytes:
        """The error as JSON."""
        return error_body(self.status, self.message, self.code, self.param)


def error_body(status: int, message: str, code: str | None = None, param: str | None = None) -> bytes:
    """An error in OpenAI's shape."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def error_event(message: str, code: str) -> bytes:
    """An error in the middle of a stream: both clients raise it, where ``event: error`` would break them."""
    return b"data: " + error_body(502, message, code) + b"\n\n"


def is_openai_error(plain: Any) -> bool:
    """Whether clients read *plain* as an error, with its message."""
    error = plain.get("error") if isinstance(plain, dict) else None
    return isinstance(error, dict) and isinstance(error.get("message"), str)


def is_servers_fault(plain: Any) -> bool:
    """Whether an error in a stream is one of the server, as far as it says: not of what it was asked."""
    error = plain
    for key in ("response", "error"):
        if isinstance(error, dict) and error.get(key):
            error = error[key]
    if not isinstance(error, dict):
        return True
    code, kind = str(error.get("code")), str(error.get("type"))
    is_4xx = len(code) == 3 and code.startswith("4") and code.isdigit()
    return not (is_4xx or code.startswith("invalid_") or kind.startswith("invalid_request"))


def as_openai_error(status: int, body: bytes) -> bytes:
    """A replica's error in OpenAI's shape: as it is where it has that, else with its text as the message."""
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError):
        plain = None
    if isinstance(plain, dict):
        if is_openai_error(plain):
            return body
        said = plain.get("error") or plain.get("detail") or plain.get("message")
        message = said if isinstance(said, str) else json.dumps(said if said is not None else plain)
    else:
        text = plain if isinstance(plain, str) else body.decode("utf-8", "replace").strip()
        message = "the replica answered with a page" if text.startswith("<") else text
    return error_body(status, message[:2_000] or f"the replica answered with status {status}", "replica_error")
